//! The orders: what is due, at most a few at once, each with its end.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use instant_acme::Account;
use tokio::{
    sync::{Notify, OnceCell, mpsc},
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    Acme,
    account::Opening,
    book::{Book, Errand},
    hook::Hook,
    ledger::Ledger,
    order::{OrderError, Way, order},
};
use crate::tls::{files, source::IsHeld};

/// Orders at once.
const MAX_ORDERS: usize = 4;

/// One order, from the account to the certificate; a DNS hook has its own time.
const ORDER_LIMIT: Duration = Duration::from_secs(600);

/// How often it is looked whether something is due that nobody has asked for.
const LOOK_EVERY: Duration = Duration::from_secs(5);

pub struct Tending {
    pub(super) acme: Arc<Acme>,
    pub(super) account: Opening,
    pub(super) asked: mpsc::Receiver<String>,
    pub(super) book: Book,
    pub(super) ledger: Ledger,
    /// With it the server's own certificates have wildcards.
    pub(super) hook: Option<Hook>,
    /// Whether a validation can reach no other instance.
    pub(super) is_alone: bool,
    pub(super) folder: PathBuf,
    pub(super) nudge: Arc<Notify>,
}

/// What orders share.
struct Desk {
    acme: Arc<Acme>,
    opening: Opening,
    account: OnceCell<Account>,
    hook: Option<Hook>,
    is_alone: bool,
    folder: PathBuf,
    nudge: Arc<Notify>,
}

type Done = (Errand, Result<(), OrderError>);

impl Tending {
    /// Never ends.
    pub async fn run(self, is_held: IsHeld) {
        let Self { acme, account: opening, mut asked, mut book, mut ledger, hook, is_alone, folder, nudge } =
            self;
        let account = OnceCell::new();
        let desk = Arc::new(Desk { acme, opening, account, hook, is_alone, folder, nudge });
        let mut orders: JoinSet<Done> = JoinSet::new();
        loop {
            let certificates = desk.acme.found.borrow().clone();
            for errand in book.due(&certificates, &is_held, MAX_ORDERS.saturating_sub(orders.len())) {
                match may_go(&errand, &mut ledger) {
                    Ok(()) => {
                        let desk = desk.clone();
                        orders.spawn_local(async move {
                            let result = desk.run(&errand).await;
                            (errand, result)
                        });
                    }
                    Err(why) => {
                        tracing::warn!(host = errand.host, why, "no certificate is asked for");
                        desk.acme.settle(&errand.host, Some(book.failed(&errand.host, true)));
                    }
                }
            }
            tokio::select! {
                Some(host) = asked.recv() => book.ask(&host),
                Some(done) = orders.join_next() => match done {
                    Ok((errand, Ok(()))) => {
                        tracing::info!(host = errand.host, renewed = errand.is_renewal, "certificate got");
                        book.got(&errand.host);
                        desk.acme.settle(&errand.host, None);
                    }
                    Ok((errand, Err(error))) => {
                        let until = book.failed(&errand.host, was_asked(&error));
                        let again_in = until.saturating_duration_since(Instant::now());
                        tracing::warn!(host = errand.host, %error, ?again_in, "no certificate was got");
                        desk.acme.settle(&errand.host, Some(until));
                    }
                    Err(error) => tracing::error!(%error, "an order for a certificate ended at once"),
                },
                () = sleep(LOOK_EVERY) => {}
            }
        }
    }
}

/// Names that are new count; what the server holds already, and its own hosts, do not.
fn may_go(errand: &Errand, ledger: &mut Ledger) -> Result<(), String> {
    if errand.is_own || errand.is_renewal {
        return Ok(());
    }
    match ledger.enter(SystemTime::now()) {
        Ok(true) => Ok(()),
        Ok(false) => {
            Err("as many new names as ACME_WEEKLY allows have been asked for in the last seven days".into())
        }
        Err(error) => Err(format!("DATA_DIR/acme-orders: {error}")),
    }
}

/// Whether the ACME server may have heard of it, which counts against its limits.
fn was_asked(error: &OrderError) -> bool {
    use instant_acme::Error::{Http, Hyper, InvalidUri, Other};
    !matches!(error, OrderError::Acme(Http(_) | Hyper(_) | InvalidUri(_) | Other(_)))
}

impl Desk {
    async fn run(&self, errand: &Errand) -> Result<(), OrderError> {
        let limited = timeout(ORDER_LIMIT, self.get(errand)).await;
        limited.unwrap_or(Err(OrderError::TooLong(ORDER_LIMIT)))
    }

    async fn get(&self, errand: &Errand) -> Result<(), OrderError> {
        let account = self.account.get_or_try_init(|| self.opening.open()).await?;
        let pem = match self.ways(errand) {
            (first, None) => order(account, &errand.names, first, &self.acme.proofs).await?,
            (first, Some(second)) => match order(account, &errand.names, first, &self.acme.proofs).await {
                Err(error @ (OrderError::Refused(_) | OrderError::NotOffered(_))) => {
                    tracing::info!(host = errand.host, %error, ?second, "trying another way of proof");
                    order(account, &errand.names, second, &self.acme.proofs).await?
                }
                result => result?,
            },
        };
        let path = self.folder.join(format!("{}.pem", errand.host));
        files::put(&path, &pem).map_err(|error| OrderError::Io(path.display().to_string(), error))?;
        // Whoever watches the folder reads it.
        let mut found = self.acme.found.clone();
        let before = Instant::now();
        self.nudge.notify_one();
        loop {
            let is_there = found
                .borrow_and_update()
                .exactly(&errand.host)
                .is_some_and(|it| !it.validity.wants_renewal(SystemTime::now(), 0.0));
            if is_there {
                return Ok(());
            }
            let left = TAKEN_UP.saturating_sub(before.elapsed());
            timeout(left, found.changed())
                .await
                .map_err(|_| OrderError::Unusable)?
                .map_err(|_| OrderError::Unusable)?;
        }
    }

    /// How to prove that the names are ours, and how else. In a cluster a validation may come to any instance.
    fn ways(&self, errand: &Errand) -> (Way<'_>, Option<Way<'_>>) {
        match &self.hook {
            Some(hook) if errand.is_own => (Way::Dns(hook), None),
            _ if !self.is_alone => (Way::Http, None),
            _ => (Way::Tls, Some(Way::Http)),
        }
    }
}

/// How long the folder may take to show what was put into it.
const TAKEN_UP: Duration = Duration::from_secs(10);
