//! The recipe of docs/operations.md: nginx ends TLS in front of the server, clients come the same way as visitors.

use std::{fs, path::Path};

use tests::{
    client::Client,
    eventually::eventually,
    origin::Origin,
    part,
    process::{Process, home},
    server::Server,
    tls::Authority,
};
use tokio::net::{TcpListener, TcpStream};

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
    let authority = Authority::new();
    authority.certify("tunnel", &["web.localhost", "wormhole.localhost"]);
    let folder = home();
    let path = folder.path();
    for file in ["ca.pem", "tunnel.pem", "tunnel.key"] {
        fs::copy(authority.path(file), path.join(file)).unwrap();
    }
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
