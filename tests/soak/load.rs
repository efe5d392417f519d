//! What visitors do: small and large, slow, broken off, upgraded, over HTTP/2.

use std::{net::SocketAddr, ops::AddAssign};

use sha2::{Digest, Sha256};
use tests::{
    chance::{Chance, bytes},
    eventually::soon,
    http2::{Asker, request_to},
    visitor::Visitor,
};
use tokio::{io::AsyncWriteExt, time::Instant};

/// A tunnel to visit.
#[derive(Clone, Debug)]
pub struct Target {
    pub name: String,
    pub trust: Trust,
}

/// What may be expected of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    Full,
    /// Its client is 0.1.19, which carries plain requests.
    Published,
    /// Its client may be gone at any time. What comes whole must be right all the same.
    None,
}

/// What the visitors have done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    /// Exchanges whose every byte was right.
    pub whole: u64,
    /// Broken off by the visitor or by the local service.
    pub broken_off: u64,
    /// Failed as they may where the client was killed.
    pub failed: u64,
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.whole += other.whole;
        self.broken_off += other.broken_off;
        self.failed += other.failed;
    }
}

/// How one exchange ended.
enum Outcome {
    Whole,
    BrokenOff,
    Failed(String),
}

use Outcome::{BrokenOff, Failed, Whole};

/// Visits one tunnel after the other until the time is over.
pub async fn visit(door: SocketAddr, targets: Vec<Target>, mut chance: Chance, until: Instant) -> Count {
    let mut count = Count::default();
    while Instant::now() < until {
        let target = &targets[chance.below(targets.len() as u64) as usize];
        let kind = if target.trust == Trust::Published { chance.below(2) } else { chance.below(10) };
        let what = format!("visit of kind {kind} to {}", target.name);
        match soon(&what, exchange(door, &target.name, kind, &mut chance)).await {
            Whole => count.whole += 1,
            BrokenOff => count.broken_off += 1,
            Failed(_) if target.trust == Trust::None => count.failed += 1,
            Failed(why) => panic!("{what}: {why}"),
        }
    }
    count
}

async fn exchange(door: SocketAddr, name: &str, kind: u64, chance: &mut Chance) -> Outcome {
    let seed = chance.below(1 << 40);
    let large = 200_000 + chance.below(2_000_000) as usize;
    let mut visitor = Visitor::connect(door).await;
    match kind {
        0 => {
            for _ in 0..1 + chance.below(20) {
                let len = chance.below(3000) as usize;
                match download(&mut visitor, name, &format!("/bytes/{len}/{seed}"), &bytes(seed, len)).await {
                    Whole => {}
                    other => return other,
                }
            }
            Whole
        }
        1 => upload(&mut visitor, name, &bytes(seed, 1 + chance.below(20_000) as usize)).await,
        2 => download(&mut visitor, name, &format!("/bytes/{large}/{seed}"), &bytes(seed, large)).await,
        3 => upload(&mut visitor, name, &bytes(seed, large)).await,
        4 => download(&mut visitor, name, &format!("/chunks/{large}/{seed}"), &bytes(seed, large)).await,
        5 => download(&mut visitor, name, &format!("/slow/5000/{seed}"), &bytes(seed, 5000)).await,
        6 => leave_early(&mut visitor, name, large, chance).await,
        7 => half(&mut visitor, name).await,
        8 => upgraded(&mut visitor, name, seed, chance).await,
        _ => http2(door, name, seed).await,
    }
}

async fn download(visitor: &mut Visitor, name: &str, path: &str, wanted: &[u8]) -> Outcome {
    if visitor.try_send(format!("GET {path} HTTP/1.1\r\nHost: {name}.localhost\r\n\r\n")).await.is_err() {
        return Failed("not sent".into());
    }
    compare(visitor, wanted).await
}

async fn upload(visitor: &mut Visitor, name: &str, body: &[u8]) -> Outcome {
    let head =
        format!("POST /sum HTTP/1.1\r\nHost: {name}.localhost\r\nContent-Length: {}\r\n\r\n", body.len());
    let sent = visitor.try_send(&[head.as_bytes(), body].concat()).await;
    match compare(visitor, &Sha256::digest(body)).await {
        Failed(why) => Failed(format!("{why}, upload {sent:?}")),
        other => other,
    }
}

/// An answer that is whole and of status 200 must be the wanted one.
async fn compare(visitor: &mut Visitor, wanted: &[u8]) -> Outcome {
    match visitor.try_answer().await {
        Err(error) => Failed(error.to_string()),
        Ok(answer) if answer.status != 200 => Failed(format!("status {}", answer.status)),
        Ok(answer) => {
            assert!(
                answer.body == wanted,
                "other bytes than were sent, {} of {}",
                answer.body.len(),
                wanted.len()
            );
            Whole
        }
    }
}

/// In the middle of an upload, or of an answer.
async fn leave_early(visitor: &mut Visitor, name: &str, large: usize, chance: &mut Chance) -> Outcome {
    let _ = match chance.below(3) {
        0 => {
            let head =
                format!("POST /sum HTTP/1.1\r\nHost: {name}.localhost\r\nContent-Length: {large}\r\n\r\n");
            visitor.try_send(head + "some").await
        }
        before_or_within => {
            let request = format!("GET /bytes/{large}/1 HTTP/1.1\r\nHost: {name}.localhost\r\n\r\n");
            match visitor.try_send(request).await {
                Ok(()) if before_or_within == 1 => visitor.socket.readable().await,
                sent => sent,
            }
        }
    };
    BrokenOff
}

/// An answer that its service breaks off must not look whole.
async fn half(visitor: &mut Visitor, name: &str) -> Outcome {
    if visitor.try_send(format!("GET /half HTTP/1.1\r\nHost: {name}.localhost\r\n\r\n")).await.is_err() {
        return Failed("not sent".into());
    }
    match visitor.try_answer().await {
        Ok(answer) if answer.status == 200 => panic!("half an answer looked whole"),
        Ok(answer) if answer.status != 502 => Failed(format!("status {}", answer.status)),
        _ => BrokenOff,
    }
}

async fn upgraded(visitor: &mut Visitor, name: &str, seed: u64, chance: &mut Chance) -> Outcome {
    let request = format!(
        "GET /echo HTTP/1.1\r\nHost: {name}.localhost\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n"
    );
    if visitor.try_send(request).await.is_err() {
        return Failed("not sent".into());
    }
    match visitor.try_head().await {
        Ok(head) if head.starts_with("HTTP/1.1 101 ") => {}
        other => return Failed(format!("{other:?}")),
    }
    for round in 0..1 + chance.below(8) {
        let sent = bytes(seed + round, 1 + chance.below(60_000) as usize);
        if visitor.try_send(&sent).await.is_err() {
            return Failed("not sent".into());
        }
        match visitor.try_exactly(sent.len()).await {
            Ok(back) => assert!(back == sent, "other bytes than were sent"),
            Err(error) => return Failed(error.to_string()),
        }
    }
    match visitor.socket.shutdown().await {
        Ok(()) => Whole,
        Err(error) => Failed(error.to_string()),
    }
}

async fn http2(door: SocketAddr, name: &str, seed: u64) -> Outcome {
    let asker = Asker::to(door).await;
    for len in [0, 10, 70_000] {
        let body = bytes(seed, len);
        let mut request = request_to(name, "POST", "/sum");
        request.headers_mut().insert("content-length", len.into());
        match asker.try_ask(request, Some(&body)).await {
            Ok(got) if got.response.status() == 200 => {
                assert!(got.body == Sha256::digest(&body)[..], "another sum of {len} bytes");
            }
            Ok(got) => return Failed(format!("status {}", got.response.status())),
            Err(error) => return Failed(error.to_string()),
        }
    }
    Whole
}
