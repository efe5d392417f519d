//! A balancer in front of instances, as an orchestrator runs one: new connections go in turn to those that are not
//! being stopped; what is open goes on.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

pub struct Balancer {
    pub address: SocketAddr,
    behind: Arc<Mutex<Vec<SocketAddr>>>,
    task: JoinHandle<()>,
}

impl Balancer {
    pub async fn start(behind: impl IntoIterator<Item = SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let behind = Arc::new(Mutex::new(behind.into_iter().collect::<Vec<_>>()));
        let (doors, turn) = (behind.clone(), AtomicUsize::new(0));
        let task = tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let turn = turn.fetch_add(1, Ordering::Relaxed);
                let doors: Vec<SocketAddr> = doors.lock().expect("not poisoned").clone();
                tokio::spawn(async move {
                    for at in 0..doors.len() {
                        if let Ok(mut door) = TcpStream::connect(doors[(turn + at) % doors.len()]).await {
                            // Either side may break it off.
                            let _ = copy_bidirectional(&mut socket, &mut door).await;
                            return;
                        }
                    }
                });
            }
        });
        Self { address, behind, task }
    }

    /// No new connections go there.
    pub fn take_out(&self, door: SocketAddr) {
        self.behind.lock().expect("not poisoned").retain(|other| *other != door);
    }

    pub fn put_in(&self, door: SocketAddr) {
        self.behind.lock().expect("not poisoned").push(door);
    }

    pub fn url(&self) -> String {
        format!("ws://{}", self.address)
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.task.abort();
    }
}
