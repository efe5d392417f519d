//! Which certificates there should be, and which of them are due.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use rand::RngExt;
use tunnelto_lib::name::Hostname;

use super::progress::{Progress, Stage};
use crate::tls::{
    Terms,
    certificate::{Certificate, Certificates, Validity},
};

/// By how much of its time a renewal may come earlier, so that not all come at once.
pub const EARLIER: f64 = 1.0 / 30.0;

/// How long a certificate is kept that is over and that nobody has asked for.
const KEPT: Duration = Duration::from_secs(30 * 86_400);

pub struct Book {
    folder: PathBuf,
    pages: BTreeMap<String, Page>,
}

/// One certificate.
struct Page {
    /// What it is for, the host by which it is known first.
    names: Vec<String>,
    /// The server's own hosts: wanted whether anybody asks or not.
    is_own: bool,
    /// Of what lies in the folder.
    there: Option<Validity>,
    earlier: f64,
}

/// A certificate to be got.
#[derive(Clone, Debug)]
pub struct Errand {
    pub host: String,
    pub names: Vec<String>,
    pub is_own: bool,
    /// When the one ends that is there.
    pub replaces: Option<SystemTime>,
}

impl Page {
    fn new(names: Vec<String>, is_own: bool) -> Self {
        Self { names, is_own, there: None, earlier: rand::rng().random_range(0.0..EARLIER) }
    }

    /// Whether there is one that will do: in the folder, or among the operator's own, which are the operator's to renew.
    fn is_served(&self, certificates: &Certificates, now: SystemTime) -> bool {
        let is_operators = |name: &String| {
            let found = certificates.find(Some(name));
            found.is_some_and(|it| {
                it.names.serve(name) && !it.validity.is_over() && Some(it.validity) != self.there
            })
        };
        self.there.is_some_and(|there| !there.wants_renewal(now, self.earlier))
            || self.names.iter().all(is_operators)
    }
}

impl Book {
    /// The server's own hosts, and those that `folder` has certificates for.
    pub fn open(folder: &Path, own: &[Hostname], has_wildcards: bool, terms: &Terms) -> io::Result<Self> {
        let mut pages = BTreeMap::new();
        for host in own {
            let host = host.as_str().to_owned();
            let label = if has_wildcards { "*" } else { "wormhole" };
            let names = vec![host.clone(), format!("{label}.{host}")];
            pages.insert(host, Page::new(names, true));
        }
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "pem") {
                continue;
            }
            let Some(host) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
            let page =
                pages.entry(host.to_owned()).or_insert_with(|| Page::new(vec![host.to_owned()], false));
            let pem = fs::read(&path)?;
            let certificate = Certificate::from_pem(&pem, &pem, terms);
            let certificate =
                certificate.ok().filter(|it| page.names.iter().all(|name| it.names.serve(name)));
            page.there = certificate.map(|it| it.validity);
        }
        Ok(Self { folder: folder.to_owned(), pages })
    }

    /// What should be begun now, marked as wanted. A name that nobody holds gets no new certificate, and is forgotten.
    pub fn due(
        &mut self,
        progress: &Progress,
        certificates: &Certificates,
        is_held: impl Fn(&str) -> bool,
        most: usize,
    ) -> Vec<Errand> {
        for host in progress.asked() {
            self.pages.entry(host.clone()).or_insert_with(|| Page::new(vec![host], false));
        }
        let (now, clock) = (Instant::now(), SystemTime::now());
        let mut errands = Vec::new();
        self.pages.retain(|host, page| {
            let stage = progress.stage(host);
            let waits = |stage: Stage| stage.until().is_some_and(|until| until > now);
            if matches!(stage, Some(Stage::Wanting | Stage::Ordering)) || stage.is_some_and(waits) {
                return true;
            }
            if page.is_served(certificates, clock) {
                if stage.is_some() {
                    progress.succeed(host);
                }
                return page.is_own || page.there.is_some();
            }
            if !page.is_own && stage != Some(Stage::Asked) && !is_held(host) {
                return page
                    .there
                    .is_some_and(|there| there.until + KEPT > clock || !forget(&self.folder, host));
            }
            if errands.len() < most {
                progress.enter(host, Stage::Wanting);
                errands.push(Errand {
                    host: host.clone(),
                    names: page.names.clone(),
                    is_own: page.is_own,
                    replaces: page.there.map(|there| there.until),
                });
            }
            true
        });
        progress.forget(|host| self.pages.contains_key(host));
        errands
    }

    pub fn got(&mut self, host: &str, validity: Validity) {
        if let Some(page) = self.pages.get_mut(host) {
            page.there = Some(validity);
        }
    }
}

/// Whether a certificate's file is gone now.
fn forget(folder: &Path, host: &str) -> bool {
    let path = folder.join(format!("{host}.pem"));
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::debug!(file = %path.display(), %error, "a certificate that is over stays");
            false
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::TlsMin,
        sign::{MasterKeys, Purpose},
        tls::self_signed::Authority,
    };

    struct Desk {
        folder: tempfile::TempDir,
        terms: Terms,
        progress: Progress,
        others: Certificates,
    }

    fn desk() -> Desk {
        let terms = Terms::new(TlsMin::Tls12, MasterKeys::new([1; 32], None));
        let (progress, others) = (Progress::default(), Certificates::default());
        Desk { folder: tempfile::tempdir().unwrap(), terms, progress, others }
    }

    impl Desk {
        fn book(&self) -> Book {
            let own = [Hostname::parse("example.com").unwrap()];
            Book::open(self.folder.path(), &own, false, &self.terms).unwrap()
        }

        fn due(&self, book: &mut Book, held: &[&str]) -> Vec<String> {
            let due = book.due(&self.progress, &self.others, |host| held.contains(&host), 10);
            due.into_iter().map(|errand| errand.host).collect()
        }
    }

    /// Valid for 90 days, of which so many are over.
    fn aged(days: u64) -> Validity {
        let day = Duration::from_secs(86_400);
        let from = SystemTime::now() - day * days as u32;
        Validity { from, until: from + day * 90 }
    }

    #[test]
    fn own_hosts_are_wanted_and_others_when_asked_for() {
        let desk = desk();
        let mut book = desk.book();
        assert_eq!(desk.due(&mut book, &[]), ["example.com"]);
        desk.progress.ask("web.example.com").unwrap();
        assert_eq!(desk.due(&mut book, &[]), ["web.example.com"]);
        // Both are under way.
        assert!(desk.due(&mut book, &["web.example.com"]).is_empty());
    }

    #[test]
    fn what_was_got_is_not_due_before_its_last_third() {
        let desk = desk();
        let mut book = desk.book();
        desk.progress.ask("web.example.com").unwrap();
        for host in desk.due(&mut book, &[]) {
            book.got(&host, aged(0));
            desk.progress.succeed(&host);
        }
        assert!(desk.due(&mut book, &["web.example.com"]).is_empty());
        for (days, due) in [(50, false), (61, true), (95, true)] {
            book.got("web.example.com", aged(days));
            assert!(desk.due(&mut book, &[]).is_empty(), "nobody holds it");
            assert_eq!(!desk.due(&mut book, &["web.example.com"]).is_empty(), due, "{days}");
            desk.progress.succeed("web.example.com");
        }
        book.got("web.example.com", aged(130));
        assert!(desk.due(&mut book, &[]).is_empty());
        assert!(!book.pages.contains_key("web.example.com"), "long over, and nobody's");
    }

    #[test]
    fn a_failure_waits_and_a_name_without_a_certificate_is_forgotten() {
        let desk = desk();
        let mut book = desk.book();
        desk.progress.ask("web.example.com").unwrap();
        desk.due(&mut book, &[]);
        desk.progress.fail("web.example.com", |_| Duration::from_secs(60));
        assert!(desk.due(&mut book, &["web.example.com"]).is_empty());
        desk.progress.fail("web.example.com", |_| Duration::ZERO);
        assert!(desk.due(&mut book, &[]).is_empty());
        assert!(!book.pages.contains_key("web.example.com"));
        assert_eq!(desk.progress.stage("web.example.com"), None);
    }

    #[test]
    fn the_operators_own_certificates_are_left_alone() {
        let mut desk = desk();
        let key = MasterKeys::new([1; 32], None).derive_signing_key(Purpose::SelfSigned);
        let authority = Authority::open(&key, desk.terms.clone(), &desk.folder.path().join("ca")).unwrap();
        let all = ["example.com", "wormhole.example.com", "web.example.com"];
        let all = all.map(|host| authority.certificate(host).unwrap());
        desk.others = Certificates::new(all, "example.com");
        let mut book = desk.book();
        desk.progress.ask("web.example.com").unwrap();
        assert!(desk.due(&mut book, &["web.example.com"]).is_empty());
        assert_eq!(desk.progress.stage("web.example.com"), None, "whoever waits finds it");
    }
}
