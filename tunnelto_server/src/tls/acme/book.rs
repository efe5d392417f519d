//! Which certificates there should be, and which of them are due.

use std::{
    collections::BTreeMap,
    fs, io,
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use rand::RngExt;
use tunnelto_lib::name::Hostname;

use crate::tls::certificate::Certificates;

/// The wait after a first failure; each further one doubles it. Let's Encrypt takes five failures an hour for one name.
const FIRST_WAIT: Duration = Duration::from_secs(300);
const LONGEST_WAIT: Duration = Duration::from_secs(86_400);

/// The wait when the ACME server could not be asked: nobody counts that.
const NOBODY_ASKED: Duration = Duration::from_secs(15);

/// By how much of its time a renewal may come earlier, so that not all come at once.
const EARLIER: f64 = 1.0 / 30.0;

pub struct Book(BTreeMap<String, Page>);

/// One certificate.
struct Page {
    /// What it is for, the host by which it is known first.
    names: Vec<String>,
    /// The server's own hosts: wanted whether anybody asks or not.
    is_own: bool,
    /// Somebody waits for it.
    is_asked: bool,
    is_under_way: bool,
    failures: u32,
    not_before: Option<Instant>,
    earlier: f64,
}

/// A certificate to be got.
#[derive(Clone, Debug)]
pub struct Errand {
    pub host: String,
    pub names: Vec<String>,
    pub is_own: bool,
    /// It has one that is still good.
    pub is_renewal: bool,
}

impl Page {
    fn new(names: Vec<String>, is_own: bool) -> Self {
        Self {
            names,
            is_own,
            is_asked: false,
            is_under_way: false,
            failures: 0,
            not_before: None,
            earlier: rand::rng().random_range(0.0..EARLIER),
        }
    }
}

impl Book {
    /// The server's own hosts, and those that `folder` has certificates for.
    pub fn open(folder: &Path, own: &[Hostname], has_wildcards: bool) -> io::Result<Self> {
        let mut pages = BTreeMap::new();
        for host in own {
            let host = host.as_str().to_owned();
            let label = if has_wildcards { "*" } else { "wormhole" };
            let names = vec![host.clone(), format!("{label}.{host}")];
            pages.insert(host, Page::new(names, true));
        }
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "pem")
                && let Some(host) = path.file_stem().and_then(|stem| stem.to_str())
            {
                pages.entry(host.to_owned()).or_insert_with(|| Page::new(vec![host.to_owned()], false));
            }
        }
        Ok(Self(pages))
    }

    /// Somebody waits for this host's.
    pub fn ask(&mut self, host: &str) {
        let page = self.0.entry(host.to_owned()).or_insert_with(|| Page::new(vec![host.to_owned()], false));
        page.is_asked = true;
    }

    /// What should be begun now. A name that nobody holds gets no new certificate.
    pub fn due(
        &mut self,
        certificates: &Certificates,
        is_held: impl Fn(&str) -> bool,
        most: usize,
    ) -> Vec<Errand> {
        let (now, clock) = (Instant::now(), SystemTime::now());
        let mut errands = Vec::new();
        for (host, page) in &mut self.0 {
            if errands.len() >= most {
                break;
            }
            if page.is_under_way || page.not_before.is_some_and(|then| then > now) {
                continue;
            }
            let there =
                certificates.exactly(host).filter(|it| page.names.iter().all(|name| it.names.include(name)));
            let is_fresh = there.is_some_and(|it| !it.validity.wants_renewal(clock, page.earlier));
            if is_fresh || !(page.is_own || page.is_asked || is_held(host)) {
                continue;
            }
            page.is_under_way = true;
            errands.push(Errand {
                host: host.clone(),
                names: page.names.clone(),
                is_own: page.is_own,
                is_renewal: there.is_some(),
            });
        }
        errands
    }

    pub fn got(&mut self, host: &str) {
        if let Some(page) = self.0.get_mut(host) {
            (page.is_under_way, page.is_asked, page.failures, page.not_before) = (false, false, 0, None);
        }
    }

    /// When it may be tried again.
    pub fn failed(&mut self, host: &str, was_asked: bool) -> Instant {
        let now = Instant::now();
        let Some(page) = self.0.get_mut(host) else { return now };
        let wait = if was_asked {
            page.failures = page.failures.saturating_add(1);
            (FIRST_WAIT * 2u32.saturating_pow(page.failures - 1).min(1 << 16)).min(LONGEST_WAIT)
        } else {
            NOBODY_ASKED
        };
        (page.is_under_way, page.is_asked) = (false, false);
        page.not_before = Some(now + wait);
        now + wait
    }
}
