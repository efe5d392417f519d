//! Certificates in files: every form that people keep them in, renewed while visitors come and go.

use std::{fs, net::SocketAddr, os::unix::fs::symlink, path::Path};

use tests::{
    eventually::eventually,
    origin::Origin,
    process::home,
    server::Server,
    stack::Stack,
    tls::{Authority, ask},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn serve(folder: &Path) -> (Stack, SocketAddr) {
    let server = Server::with().env("TLS_PORT", "0").env("TLS_CERTS", folder.display().to_string());
    let stack = Stack::on(server.start().await, Origin::echo().await).await;
    let door = stack.server.tls.expect("a door for TLS");
    (stack, door)
}

#[tokio::test]
async fn every_form_of_files_is_read() {
    let authority = Authority::new();
    let folder = home();
    let path = folder.path();
    let read = |file: &str| fs::read(authority.path(file)).unwrap();
    for name in ["one", "two", "three", "four", "five"] {
        authority.certify(name, &[&format!("{name}.localhost"), &format!("*.{name}.localhost")]);
    }
    fs::write(path.join("one.pem"), [read("one.pem"), read("one.key")].concat()).unwrap();
    fs::write(path.join("two.crt"), read("two.pem")).unwrap();
    fs::write(path.join("two.key"), read("two.key")).unwrap();
    authority.put("three", path);
    for (name, chain, key) in [("four", "tls.crt", "tls.key"), ("five", "fullchain.pem", "privkey.pem")] {
        fs::create_dir(path.join(name)).unwrap();
        fs::write(path.join(name).join(chain), read(&format!("{name}.pem"))).unwrap();
        fs::write(path.join(name).join(key), read(&format!("{name}.key"))).unwrap();
    }
    // Neither of them stops the others.
    fs::write(path.join("broken.pem"), "no certificate").unwrap();
    fs::write(path.join("wrong.crt"), read("one.pem")).unwrap();
    fs::write(path.join("wrong.key"), read("two.key")).unwrap();
    let (stack, door) = serve(path).await;
    for name in ["one", "two", "three", "four", "five"] {
        assert!(authority.connect(door, &format!("{name}.localhost"), &[]).await.is_ok(), "{name}");
        assert!(authority.connect(door, &format!("wild.{name}.localhost"), &[]).await.is_ok(), "{name}");
        assert!(authority.connect(door, &format!("too.wild.{name}.localhost"), &[]).await.is_err(), "{name}");
    }
    let said = stack.server.process.stderr().join("\n");
    for file in ["broken.pem", "wrong.crt"] {
        assert!(said.contains(file), "{said}");
    }
}

/// As Kubernetes mounts a secret: files that are links into a folder that is swapped whole.
fn mount(folder: &Path, authority: &Authority, version: &str) {
    let data = folder.join(format!("..{version}"));
    fs::create_dir(&data).unwrap();
    fs::copy(authority.path("tunnel.pem"), data.join("tls.crt")).unwrap();
    fs::copy(authority.path("tunnel.key"), data.join("tls.key")).unwrap();
    symlink(&data, folder.join("..new")).unwrap();
    fs::rename(folder.join("..new"), folder.join("..data")).unwrap();
}

#[tokio::test]
async fn renewed_files_are_taken_up_and_nobody_notices() {
    let (old, new) = (Authority::new(), Authority::new());
    for authority in [&old, &new] {
        authority.certify("tunnel", &["web.localhost"]);
    }
    let folder = home();
    let path = folder.path();
    mount(path, &old, "1");
    for file in ["tls.crt", "tls.key"] {
        symlink(Path::new("..data").join(file), path.join(file)).unwrap();
    }
    let (_stack, door) = serve(path).await;
    let mut kept = old.connect(door, "web.localhost", &[]).await.unwrap();
    assert!(new.connect(door, "web.localhost", &[]).await.is_err());
    mount(path, &new, "2");
    eventually("the new certificate is used", || async {
        let renewed = new.connect(door, "web.localhost", &[]).await.is_ok();
        // One of them always is.
        assert!(
            renewed || old.connect(door, "web.localhost", &[]).await.is_ok() || {
                new.connect(door, "web.localhost", &[]).await.is_ok()
            }
        );
        renewed
    })
    .await;
    let request = "GET /path HTTP/1.1\r\nHost: web.localhost\r\n\r\n";
    kept.write_all(request.as_bytes()).await.unwrap();
    let mut answer = [0; 15];
    kept.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
}

#[tokio::test]
async fn a_broken_file_leaves_the_last_good_one() {
    let authority = Authority::new();
    authority.certify("tunnel", &["web.localhost"]);
    let folder = authority.folder_of("tunnel");
    let (stack, door) = serve(folder.path()).await;
    fs::write(folder.path().join("tunnel.pem"), "half a certific").unwrap();
    let process = &stack.server.process;
    process.complains("tunnel.pem").await;
    let mut visitor = authority.connect(door, "web.localhost", &[]).await.unwrap();
    let request = "GET /path HTTP/1.1\r\nHost: web.localhost\r\nConnection: close\r\n\r\n";
    assert!(ask(&mut visitor, request).await.ends_with("GET /path "));
    // The folder itself may vanish for a while.
    fs::rename(folder.path().join("tunnel.pem"), folder.path().join("elsewhere")).unwrap();
    process.complains("no certificate is left").await;
    assert!(authority.connect(door, "web.localhost", &[]).await.is_ok());
}
