//! The recipe of docs/operations.md: nginx ends TLS in front of the server, clients come the same way as visitors.

use std::{fs, path::Path, process::Command};

use tests::{
    client::Client,
    eventually::eventually,
    origin::Origin,
    part,
    process::{Process, home},
    server::Server,
};
use tokio::net::{TcpListener, TcpStream};

/// An authority of our own, and a certificate of it for the names used here.
fn certificates(folder: &Path) {
    let openssl = |arguments: &str| {
        let output =
            Command::new("openssl").args(arguments.split(' ')).current_dir(folder).output().expect("openssl");
        assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    };
    fs::write(folder.join("names"), "subjectAltName=DNS:web.localhost,DNS:wormhole.localhost\n").unwrap();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!("req -x509 {key} -days 2 -subj /CN=test-ca -keyout ca.key -out ca.pem"));
    openssl(&format!("req {key} -subj /CN=tunnel -keyout tunnel.key -out tunnel.csr"));
    openssl(
        "x509 -req -in tunnel.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out tunnel.pem",
    );
}

/// The recipe's own server block, with this test's ports and files.
fn configuration(folder: &Path, port: u16, door: u16) -> String {
    let page = include_str!("../../docs/operations.md");
    let recipe = page.split("```nginx\n").nth(1).unwrap().split("```").next().unwrap();
    let recipe = recipe
        .replace("listen 443 ssl", &format!("listen 127.0.0.1:{port} ssl"))
        .replace("server_name tunnel.example.com *.tunnel.example.com", "server_name localhost *.localhost")
        .replace("/etc/ssl/", &format!("{}/", folder.display()))
        .replace("127.0.0.1:8080", &format!("127.0.0.1:{door}"));
    let folder = folder.display();
    format!(
        "daemon off; pid {folder}/pid; error_log {folder}/error.log;\nevents {{}}\nhttp {{ access_log off;\n\
         client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;\n\
         uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n{recipe}\n}}\n"
    )
}

#[tokio::test]
async fn visitors_and_clients_come_through_nginx_by_tls() {
    let Some(nginx) = part::command("nginx", "the recipe for nginx") else { return };
    let folder = home();
    let path = folder.path();
    certificates(path);
    let port = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap().port()
    };
    let server = Server::with()
        .env("PUBLIC_URL", format!("https://localhost:{port}"))
        .env("TRUSTED_PROXIES", "127.0.0.1")
        .start()
        .await;
    fs::write(path.join("nginx.conf"), configuration(path, port, server.visitors.port())).unwrap();
    let arguments = ["-c".into(), path.join("nginx.conf"), "-e".into(), path.join("error.log")];
    let mut running = Process::start(nginx, arguments, &[], folder.clone());
    eventually("nginx listens", || async { TcpStream::connect(("127.0.0.1", port)).await.is_ok() }).await;

    let origin = Origin::echo().await;
    let environment = [
        ("TUNNELTO_SERVER", format!("wss://wormhole.localhost:{port}")),
        ("SSL_CERT_FILE", path.join("ca.pem").display().to_string()),
    ];
    let client = Client::with_environment(&[&origin.target(), "-s", "web"], &environment);
    let url = client.url().await;
    assert_eq!(url, format!("https://web.localhost:{port}"));

    let curl = tokio::process::Command::new("curl")
        .args(["-sS", "--max-time", "20", "--cacert"])
        .arg(path.join("ca.pem"))
        .args(["--resolve", &format!("web.localhost:{port}:127.0.0.1"), "-d", "body", &format!("{url}/path")])
        .output()
        .await
        .expect("curl runs");
    let said = String::from_utf8_lossy(&curl.stdout);
    assert_eq!(said, "POST /path body", "{}", String::from_utf8_lossy(&curl.stderr));
    let seen = &origin.requests()[0];
    assert_eq!(seen.field("x-forwarded-proto"), Some("https"));
    assert_eq!(seen.field("x-forwarded-for"), Some("127.0.0.1, 127.0.0.1"));
    running.signal("TERM");
    running.exit().await;
}
