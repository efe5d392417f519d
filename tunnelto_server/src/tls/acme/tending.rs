//! The orders: what is due, at most a few at once, each with its end.

use std::{
    rc::Rc,
    sync::{Arc, Mutex, PoisonError},
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
    sharing::{AskOthers, from_others},
};
use crate::tls::{Terms, files, source::IsHeld};

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
    pub(super) instance: String,
    pub(super) terms: Terms,
    pub(super) nudge: Arc<Notify>,
}

/// What orders share.
struct Desk {
    acme: Arc<Acme>,
    opening: Opening,
    account: OnceCell<Account>,
    ledger: Mutex<Ledger>,
    hook: Option<Hook>,
    instance: String,
    terms: Terms,
    /// `None`: there are none.
    ask_others: Option<AskOthers>,
    nudge: Arc<Notify>,
}

type Done = (Errand, Result<(), OrderError>);

impl Tending {
    /// Never ends.
    pub async fn run(self, is_held: IsHeld, ask_others: Option<AskOthers>) {
        let Self { acme, account: opening, mut asked, mut book, ledger, hook, instance, terms, nudge } = self;
        let (account, ledger) = (OnceCell::new(), Mutex::new(ledger));
        let desk = Desk { acme, opening, account, ledger, hook, instance, terms, ask_others, nudge };
        let desk = Rc::new(desk);
        let mut orders: JoinSet<Done> = JoinSet::new();
        loop {
            let certificates = desk.acme.found.borrow().clone();
            for errand in book.due(&certificates, &is_held, MAX_ORDERS.saturating_sub(orders.len())) {
                let desk = desk.clone();
                orders.spawn_local(async move {
                    let result = desk.run(&errand).await;
                    (errand, result)
                });
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
        let _getting = self.acme.under_way.begin(&errand.host);
        let theirs = match &self.ask_others {
            Some(ask) => from_others(ask, errand, &self.instance, &self.terms).await?,
            None => None,
        };
        let pem = match theirs {
            Some(pem) => pem,
            None => self.order(errand).await?,
        };
        let path = self.acme.file(&errand.host);
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

    async fn order(&self, errand: &Errand) -> Result<String, OrderError> {
        self.enter(errand)?;
        let account = self.account.get_or_try_init(|| self.opening.open()).await?;
        let (first, second) = self.ways(errand);
        match (order(account, &errand.names, first, &self.acme.proofs).await, second) {
            (Err(error @ (OrderError::Refused(_) | OrderError::NotOffered(_))), Some(second)) => {
                tracing::info!(host = errand.host, %error, ?second, "trying another way of proof");
                order(account, &errand.names, second, &self.acme.proofs).await
            }
            (result, _) => result,
        }
    }

    /// Names that are new count; what the server holds already, and its own hosts, do not.
    fn enter(&self, errand: &Errand) -> Result<(), OrderError> {
        if errand.is_own || errand.is_renewal {
            return Ok(());
        }
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        match ledger.enter(SystemTime::now()) {
            Ok(true) => Ok(()),
            Ok(false) => Err(OrderError::Weekly),
            Err(error) => Err(OrderError::Io("DATA_DIR/acme-orders".into(), error)),
        }
    }

    /// How to prove that the names are ours, and how else. In a cluster a validation may come to any instance.
    fn ways(&self, errand: &Errand) -> (Way<'_>, Option<Way<'_>>) {
        match &self.hook {
            Some(hook) if errand.is_own => (Way::Dns(hook), None),
            _ if self.ask_others.is_some() => (Way::Http, None),
            _ => (Way::Tls, Some(Way::Http)),
        }
    }
}

/// How long the folder may take to show what was put into it.
const TAKEN_UP: Duration = Duration::from_secs(10);
