//! The orders: what is due, a few at a time, each with its end.

use std::{
    rc::Rc,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use instant_acme::Account;
use tokio::{
    sync::{Notify, OnceCell},
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
    sharing::{AskOthers, Certified, from_others},
};
use crate::tls::{Terms, certificate::Validity, files, source::IsHeld};

/// Orders at once.
const MAX_ORDERS: usize = 4;

/// How often it is looked whether something is due that nobody has asked for.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// How long the ACME server may take to open the account.
const OPENING_LIMIT: Duration = Duration::from_secs(60);

/// How long it may take until what was put into the folder is in use.
const TAKEN_UP: Duration = Duration::from_secs(10);

/// The wait after a first failure; each further one doubles it. Let's Encrypt takes five failures an hour for one name, and
/// one try may be two.
const FIRST_WAIT: Duration = Duration::from_secs(20 * 60);
const LONGEST_WAIT: Duration = Duration::from_secs(86_400);

/// The wait where the ACME server has not heard of it.
const SHORT_WAIT: Duration = Duration::from_secs(15);

/// The wait once ACME_WEEKLY is used up.
const WEEKLY_WAIT: Duration = Duration::from_secs(3600);

pub struct Tending {
    pub(super) acme: Arc<Acme>,
    pub(super) account: Opening,
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
    /// Heard by whoever watches the folder.
    nudge: Arc<Notify>,
}

type Done = (Errand, Result<Validity, OrderError>);

impl Tending {
    /// Never ends.
    pub async fn run(self, is_held: IsHeld, ask_others: Option<AskOthers>) {
        let Self { acme, account: opening, mut book, ledger, hook, instance, terms, nudge } = self;
        let (account, ledger) = (OnceCell::new(), Mutex::new(ledger));
        let desk = Desk { acme, opening, account, ledger, hook, instance, terms, ask_others, nudge };
        let desk = Rc::new(desk);
        let progress = &desk.acme.progress;
        let mut orders: JoinSet<Done> = JoinSet::new();
        loop {
            let certificates = desk.acme.found.borrow().clone();
            let places = MAX_ORDERS.saturating_sub(orders.len());
            for errand in book.due(progress, &certificates, &is_held, places) {
                let desk = desk.clone();
                orders.spawn_local(async move {
                    let result = desk.get(&errand).await;
                    (errand, result)
                });
            }
            tokio::select! {
                () = progress.asked.notified() => {}
                Some(done) = orders.join_next() => match done {
                    Ok((errand, Ok(validity))) => {
                        tracing::info!(host = errand.host, renewed = errand.replaces.is_some(), "certificate got");
                        book.got(&errand.host, validity);
                        progress.succeed(&errand.host);
                    }
                    Ok((errand, Err(error))) => {
                        let again_in = match deferral(&error) {
                            Some(wait) => {
                                progress.defer(&errand.host, wait);
                                wait
                            }
                            None => progress.fail(&errand.host, wait),
                        };
                        tracing::warn!(host = errand.host, %error, ?again_in, "no certificate was got");
                    }
                    Err(error) => tracing::error!(%error, "an order for a certificate ended at once"),
                },
                () = sleep(LOOK_EVERY) => {}
            }
        }
    }
}

/// How long to wait where it is no failure that the ACME server would count.
fn deferral(error: &OrderError) -> Option<Duration> {
    use instant_acme::Error::{Http, Hyper, InvalidUri, Other};
    match error {
        OrderError::Acme(Http(_) | Hyper(_) | InvalidUri(_) | Other(_)) | OrderError::Away => {
            Some(SHORT_WAIT)
        }
        OrderError::FailedElsewhere(left) => Some(*left),
        OrderError::Weekly => Some(WEEKLY_WAIT),
        _ => None,
    }
}

fn wait(failures: u32) -> Duration {
    (FIRST_WAIT * (1 << failures.min(16))).min(LONGEST_WAIT)
}

impl Desk {
    async fn get(&self, errand: &Errand) -> Result<Validity, OrderError> {
        let (progress, proofs) = (&self.acme.progress, &self.acme.proofs);
        let theirs = match &self.ask_others {
            Some(ask) => from_others(ask, errand, &self.instance, progress, &self.terms).await?,
            None => None,
        };
        let Certified { pem, certificate } = match theirs {
            Some(theirs) => theirs,
            None => {
                let opened =
                    timeout(OPENING_LIMIT, self.account.get_or_try_init(|| self.opening.open())).await;
                let account = opened.map_err(|_| OrderError::Away)??;
                self.enter(errand)?;
                let (first, second) = self.ways(errand);
                let pem = match (order(account, &errand.names, first, proofs).await, second) {
                    (Err(error @ (OrderError::Refused(_) | OrderError::NotOffered(_))), Some(second)) => {
                        tracing::info!(host = errand.host, %error, ?second, "trying another way of proof");
                        order(account, &errand.names, second, proofs).await?
                    }
                    (result, _) => result?,
                };
                Certified::read(pem, errand, &self.terms).ok_or(OrderError::Unusable)?
            }
        };
        let path = self.acme.file(&errand.host);
        files::put(&path, &pem).map_err(|error| OrderError::Io(path.display().to_string(), error))?;
        let mut found = self.acme.found.clone();
        self.nudge.notify_one();
        let is_in_use =
            found.wait_for(|found| found.find(Some(&errand.host)).is_some_and(|it| !it.validity.is_over()));
        if !matches!(timeout(TAKEN_UP, is_in_use).await, Ok(Ok(_))) {
            tracing::warn!(file = %path.display(), "a certificate was got and is not in use yet");
        }
        Ok(certificate.validity)
    }

    /// Names that are new count; what the server holds already, and its own hosts, do not.
    fn enter(&self, errand: &Errand) -> Result<(), OrderError> {
        if errand.is_own || errand.replaces.is_some() {
            return Ok(());
        }
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        match ledger.enter(&errand.host, SystemTime::now()) {
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
