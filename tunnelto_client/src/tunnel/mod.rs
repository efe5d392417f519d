//! One tunnel over as many connections as its server wants, rather on different instances: either alone keeps it
//! working. [`slot`] keeps one of them up.

mod slot;

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use tokio::{sync::Notify, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tunnelto_lib::hello::Success;

use crate::{
    config::{Config, ServerAddress},
    error::ClientError,
    local::dial::Dialer,
    session::Identity,
    ui::{Event, Ui},
};
use slot::Slot;

/// More than any server has a reason to want.
const MOST_CONNECTIONS: u16 = 4;

pub struct Tunnel {
    config: Config,
    dialer: Rc<Dialer>,
    identity: Rc<Identity>,
    pub ui: RefCell<Ui>,
    stop: CancellationToken,
    stop_now: CancellationToken,
    /// The connections that stand.
    standing: RefCell<Vec<Standing>>,
    wanted: Cell<u16>,
    more_wanted: Notify,
    /// Connections that end once another one stands.
    to_finish: RefCell<Vec<CancellationToken>>,
}

struct Standing {
    number: u16,
    /// Unknown in protocol 1.
    instance: Option<String>,
}

impl Tunnel {
    pub fn new(
        config: Config,
        dialer: Rc<Dialer>,
        ui: Ui,
        stop: CancellationToken,
        stop_now: CancellationToken,
    ) -> Rc<Self> {
        Rc::new(Self {
            config,
            dialer,
            identity: Rc::default(),
            ui: RefCell::new(ui),
            stop,
            stop_now,
            standing: RefCell::default(),
            wanted: Cell::new(1),
            more_wanted: Notify::new(),
            to_finish: RefCell::default(),
        })
    }

    /// Connects again and again. Returns when the user stops it; an error is final.
    pub async fn keep_open(self: Rc<Self>) -> Result<(), ClientError> {
        let mut slots = JoinSet::new();
        let mut numbers = 0..MOST_CONNECTIONS;
        loop {
            // The first has shown by then that more are wanted.
            while numbers.start < self.wanted.get()
                && let Some(number) = numbers.next()
            {
                slots.spawn_local(Slot::new(self.clone(), number).keep_up());
            }
            tokio::select! {
                () = self.more_wanted.notified() => {}
                ended = slots.join_next() => match ended {
                    Some(ended) => outcome(ended)?,
                    None => return Ok(()),
                },
            }
        }
    }

    /// A connection stands: tells the user if the tunnel had none, and lets others finish.
    fn stands(&self, number: u16, server: &ServerAddress, success: &Success) {
        self.identity.keep(success);
        let is_first = self.standing.borrow().is_empty();
        let extended = success.extended.as_ref();
        let instance = extended.map(|extended| extended.instance.clone());
        if is_first {
            self.greet(server, success);
        } else {
            tracing::info!(number, ?instance, "further connection");
        }
        self.standing.borrow_mut().push(Standing { number, instance });
        for finish in self.to_finish.borrow_mut().drain(..) {
            finish.cancel();
        }
        let wanted = extended.map_or(1, |extended| extended.connections.clamp(1, MOST_CONNECTIONS));
        self.wanted.set(wanted);
        self.more_wanted.notify_one();
    }

    /// The server to try, and with which of its addresses to begin.
    fn server(&self, attempt: usize) -> (ServerAddress, usize) {
        let servers = &self.config.servers;
        (servers[attempt % servers.len()].clone(), attempt / servers.len())
    }

    fn fell(&self, number: u16) {
        self.standing.borrow_mut().retain(|standing| standing.number != number);
    }

    fn is_standing(&self) -> bool {
        !self.standing.borrow().is_empty()
    }

    /// Whether another connection than this one goes to the same instance.
    fn is_double(&self, number: u16, success: &Success) -> bool {
        let instance = success.extended.as_ref().map(|extended| &extended.instance);
        let standing = self.standing.borrow();
        standing.iter().any(|other| other.number != number && other.instance.as_ref() == instance)
    }

    fn greet(&self, server: &ServerAddress, success: &Success) {
        let url = match &success.extended {
            Some(extended) if !extended.urls.is_empty() => extended.urls[0].clone(),
            _ => protocol_1_url(&success.hostname, server),
        };
        self.ui.borrow_mut().tell(&Event::Connected {
            url: &url,
            name: &success.sub_domain,
            target: &self.dialer.target().to_string(),
            server: &server.url(),
        });
    }
}

fn outcome(ended: Result<Result<(), ClientError>, tokio::task::JoinError>) -> Result<(), ClientError> {
    ended.unwrap_or_else(|error| Err(ClientError::Unexpected(error.to_string())))
}

/// Protocol 1 names the host only.
fn protocol_1_url(hostname: &str, server: &ServerAddress) -> String {
    let scheme = if server.tls { "https" } else { "http" };
    format!("{scheme}://{hostname}")
}
