//! A certificate authority of a test's own, by openssl.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use crate::{eventually::soon, process::home};

/// A visitor's connection.
pub type Tls = tokio_rustls::client::TlsStream<TcpStream>;

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

    /// A folder of its own with STEM's files in it.
    pub fn folder_of(&self, stem: &str) -> Arc<TempDir> {
        let folder = home();
        self.put(stem, folder.path());
        folder
    }

    /// Copies STEM's files into a folder.
    pub fn put(&self, stem: &str, folder: &Path) {
        for ending in ["key", "pem"] {
            let file = format!("{stem}.{ending}");
            fs::copy(self.path(&file), folder.join(file)).expect("copied");
        }
    }

    /// Connects to `door` as a visitor of `name`, which trusts this authority only.
    pub async fn connect(&self, door: SocketAddr, name: &str, protocols: &[&str]) -> io::Result<Tls> {
        connect(door, name, &trusting(&self.path("ca.pem"), protocols)).await
    }

    /// The same over a connection that stands.
    pub async fn over(&self, socket: TcpStream, name: &str, protocols: &[&str]) -> io::Result<Tls> {
        shake_hands(socket, name, &trusting(&self.path("ca.pem"), protocols)).await
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

/// A visitor's setting, which trusts the authority in this file only.
pub fn trusting(root: &Path, protocols: &[&str]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(root).expect("a certificate")).expect("a root");
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().expect("versions");
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// Who uses the same setting again goes on with the TLS it had.
pub async fn connect(door: SocketAddr, name: &str, config: &Arc<ClientConfig>) -> io::Result<Tls> {
    shake_hands(TcpStream::connect(door).await?, name, config).await
}

async fn shake_hands(socket: TcpStream, name: &str, config: &Arc<ClientConfig>) -> io::Result<Tls> {
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    soon("a handshake", TlsConnector::from(config.clone()).connect(name, socket)).await
}

/// One request on a connection, and all that comes until its end.
pub async fn ask(tls: &mut Tls, request: &str) -> String {
    let asking = async {
        tls.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        tls.read_to_end(&mut answer).await?;
        io::Result::Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    soon("an answer by TLS", asking).await.expect("a whole answer")
}
