//! A certificate authority of a test's own, by openssl.

use std::{fs, net::IpAddr, path::PathBuf, process::Command, sync::Arc};

use tempfile::TempDir;

use crate::process::home;

pub struct Authority {
    folder: Arc<TempDir>,
}

const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

impl Authority {
    pub fn new() -> Self {
        let authority = Self { folder: home() };
        authority.openssl(&format!("req -x509 {KEY} -days 2 -subj /CN=test-ca -keyout ca.key -out ca.pem"));
        authority
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    /// What whoever trusts it is given.
    pub fn root(&self) -> String {
        self.path("ca.pem").display().to_string()
    }

    /// Makes STEM.pem and STEM.key for `names`, which may be addresses.
    pub fn certify(&self, stem: &str, names: &[&str]) {
        let kind = |name: &str| if name.parse::<IpAddr>().is_ok() { "IP" } else { "DNS" };
        let names: Vec<_> = names.iter().map(|name| format!("{}:{name}", kind(name))).collect();
        fs::write(self.path("names"), format!("subjectAltName={}\n", names.join(","))).expect("written");
        self.openssl(&format!("req {KEY} -subj /CN=tunnel -keyout {stem}.key -out {stem}.csr"));
        self.openssl(&format!(
            "x509 -req -in {stem}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out {stem}.pem"
        ));
    }

    fn openssl(&self, arguments: &str) {
        let output =
            Command::new("openssl").args(arguments.split(' ')).current_dir(self.folder.path()).output();
        let output = output.expect("openssl runs");
        assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}
