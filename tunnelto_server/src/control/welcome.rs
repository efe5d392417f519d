//! From a hello to a granted name, or to a final refusal.

use std::{
    sync::Arc,
    time::{Instant, SystemTime},
};

use tokio::time::sleep;
use tunnelto_lib::{
    hello::{ClientHello, Kind, Refusal, ServerHello},
    name::Label,
};

use crate::{
    active_stream::ConnectionId,
    auth::{Proved, Prover, Refused, Wish},
    connected_clients::{
        Claim, ConnectedClients, Farewell, Holder, Member, Orders, Owner, Verdict, any_alive,
    },
    gauge::Gauge,
    limits::{UNDECIDED, UNDECIDED_LOOK},
    network::{Contested, Directory},
};

/// A client that has its name.
pub struct Welcomed {
    pub name: Label,
    pub owner: Owner,
    pub client_id: Arc<str>,
    pub session: Option<uuid::Uuid>,
    /// Clients with a key and of protocol 1 need no token.
    pub has_key: bool,
}

/// The connection that wants a name.
pub struct Seat {
    pub connection: ConnectionId,
    pub load: Gauge,
    pub orders: Orders,
}

/// Made-up names that are tried before giving up; each has 50 random bits.
const NAMES_TO_TRY: u64 = 32;

/// What a refused client is told, in the words of its protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Final {
    Auth,
    NameTaken,
    NameInvalid,
    NameNotAllowed,
    KindUnknown,
}

pub async fn welcome(
    hello: &ClientHello,
    prover: &Prover,
    names: &Names<'_>,
    seat: &Seat,
) -> Result<Welcomed, Final> {
    let tunnel = hello.tunnel.as_ref();
    if tunnel.is_some_and(|tunnel| tunnel.kind != Kind::Http) {
        return Err(Final::KindUnknown);
    }
    let proved = prover.prove(hello, SystemTime::now())?;
    let claim = |name: Label| Claim {
        name,
        owner: proved.owner.clone(),
        session: proved.session,
        pool: tunnel.is_some_and(|tunnel| tunnel.pool),
        takeover: tunnel.is_some_and(|tunnel| tunnel.takeover),
        member: Member {
            connection: seat.connection,
            load: seat.load.clone(),
            number: hello.connection.unwrap_or(0),
            client_id: proved.client_id.clone(),
            orders: seat.orders.clone(),
        },
    };
    let name = match &proved.wish {
        Wish::Exactly(name) => names.insist(claim(name.clone())).await.then(|| name.clone()),
        Wish::Rather(name) if names.insist(claim(name.clone())).await => Some(name.clone()),
        Wish::Rather(_) | Wish::Any => names.any_name(prover, &proved, claim).await,
    };
    let Proved { owner, client_id, session, has_key, .. } = proved;
    name.map(|name| Welcomed { name, owner, client_id, session, has_key }).ok_or(Final::NameTaken)
}

/// Where names are claimed: here, and against the other instances.
pub struct Names<'l> {
    pub clients: &'l ConnectedClients,
    pub directory: &'l Directory,
}

impl Names<'_> {
    /// Claims one name; a holder that may be dead is asked for a sign of life first.
    async fn insist(&self, claim: Claim) -> bool {
        let granted = match self.decided(&claim).await {
            Verdict::Granted(granted) => granted,
            Verdict::Taken | Verdict::Undecided => return false,
            Verdict::Held(members) if any_alive(&members).await => return false,
            Verdict::Held(members) => {
                let silent = Holder::Silent(members.iter().map(|member| member.connection).collect());
                match self.clients.claim(claim.clone(), &silent, Instant::now()) {
                    Verdict::Granted(granted) => granted,
                    Verdict::Taken | Verdict::Undecided | Verdict::Held(_) => return false,
                }
            }
        };
        granted.is_settled || self.directory.is_alone() || self.contest(&claim).await
    }

    /// Another owner's claim that other instances are being asked about may yet be lost.
    async fn decided(&self, claim: &Claim) -> Verdict {
        let deadline = Instant::now() + UNDECIDED;
        loop {
            match self.clients.claim(claim.clone(), &Holder::Unknown, Instant::now()) {
                Verdict::Undecided if Instant::now() < deadline => sleep(UNDECIDED_LOOK).await,
                verdict => return verdict,
            }
        }
    }

    /// Withdraws what another instance's claim comes before.
    async fn contest(&self, claim: &Claim) -> bool {
        let mut seat = Given {
            clients: self.clients,
            name: &claim.name,
            connection: claim.member.connection,
            is_kept: false,
        };
        let Some(mine) = self.clients.held(&claim.name, Instant::now()) else { return false };
        match self.directory.contest(&claim.name, mine, claim.takeover).await {
            Contested::Won { since, took_over } => {
                self.clients.settle(&claim.name, claim.member.connection, since, took_over);
                seat.keep();
                true
            }
            Contested::Lost => false,
        }
    }

    /// A key's own names come in a fixed row; one whose connection may be dead is asked for before the next is taken.
    async fn any_name(
        &self,
        prover: &Prover,
        proved: &Proved,
        claim: impl Fn(Label) -> Claim,
    ) -> Option<Label> {
        for attempt in 0..NAMES_TO_TRY {
            let name = prover.made_up_name(proved, attempt);
            let may_be_had = !prover.blocked_names.contains(&name)
                && self.clients.may_belong_to(&name, &proved.owner, Instant::now());
            if may_be_had && self.insist(claim(name.clone())).await {
                return Some(name);
            }
        }
        None
    }
}

/// A name that is given back when this is dropped: the contest was lost, or nobody waits for it any more.
struct Given<'l> {
    clients: &'l ConnectedClients,
    name: &'l Label,
    connection: ConnectionId,
    is_kept: bool,
}

impl Given<'_> {
    fn keep(&mut self) {
        self.is_kept = true;
    }
}

impl Drop for Given<'_> {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        self.clients.depart(self.name, self.connection, Farewell::Said, Instant::now());
    }
}

impl From<Refused> for Final {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::BadKey => Self::Auth,
            Refused::BadName => Self::NameInvalid,
            Refused::NameNotAllowed => Self::NameNotAllowed,
        }
    }
}

impl Final {
    pub fn code(self) -> &'static str {
        match self {
            Self::Auth => "auth_failed",
            Self::NameTaken => "name_taken",
            Self::NameInvalid => "name_invalid",
            Self::NameNotAllowed => "name_not_allowed",
            Self::KindUnknown => "kind_unknown",
        }
    }

    pub fn to_hello(self, protocol: u8) -> ServerHello {
        if protocol == 1 {
            return match self {
                Self::Auth => ServerHello::AuthFailed,
                Self::NameTaken => ServerHello::SubDomainInUse,
                Self::NameInvalid | Self::NameNotAllowed => ServerHello::InvalidSubDomain,
                Self::KindUnknown => ServerHello::Error("this server carries HTTP tunnels only".into()),
            };
        }
        let message = match self {
            Self::Auth => {
                "the key is missing or not one of this server's; ask its operator for one and store it with `tunnelto set-auth -k KEY`"
            }
            Self::NameTaken => {
                "the name is in use; choose another with -s, or take it over with --takeover if it is your own"
            }
            Self::NameInvalid => {
                "a name is 1 to 63 letters, digits and hyphens, with no hyphen at either end"
            }
            Self::NameNotAllowed => "the operator of this server does not give this name away",
            Self::KindUnknown => "this server carries HTTP tunnels only",
        };
        ServerHello::Refused(Refusal { code: self.code().into(), message: message.into(), retry_after: None })
    }
}
