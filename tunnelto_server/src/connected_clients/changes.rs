//! What changed when, for instances that ask what is new. Names that are gone are remembered for a while, so that
//! they can be told; whoever asks from before that is told everything.

use std::collections::{BTreeMap, VecDeque};

use rustc_hash::FxHashMap;
use tunnelto_lib::name::Label;

/// Names that are gone and still told.
const MOST_GONE: usize = 10_000;

pub struct Changes {
    /// From 1, so that whoever has heard anything never asks from 0.
    last: u64,
    /// Each name once, by its last change.
    by_number: BTreeMap<u64, Label>,
    numbers: FxHashMap<Label, u64>,
    gone: VecDeque<(u64, Label)>,
    /// Up to here changes have been forgotten.
    forgotten: u64,
}

/// A part of what is new.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct News {
    /// These are from the beginning: what is not among them does not exist.
    pub from_start: bool,
    pub names: Vec<Label>,
    /// Ask from here on next time.
    pub next: u64,
    pub has_more: bool,
}

impl Default for Changes {
    fn default() -> Self {
        Self {
            last: 1,
            by_number: BTreeMap::new(),
            numbers: FxHashMap::default(),
            gone: VecDeque::new(),
            forgotten: 0,
        }
    }
}

impl Changes {
    pub fn changed(&mut self, name: &Label) {
        self.last += 1;
        if let Some(before) = self.numbers.insert(name.clone(), self.last) {
            self.by_number.remove(&before);
        }
        self.by_number.insert(self.last, name.clone());
    }

    pub fn removed(&mut self, name: &Label) {
        self.changed(name);
        self.gone.push_back((self.last, name.clone()));
        while self.gone.len() > MOST_GONE
            && let Some((number, name)) = self.gone.pop_front()
        {
            // It may have come back since.
            if self.numbers.get(&name) == Some(&number) {
                self.numbers.remove(&name);
                self.by_number.remove(&number);
                self.forgotten = number;
            }
        }
    }

    /// At most `most` names that have changed after `since`, in that order. `goes_on` says that the parts before were
    /// told from the start, so that nothing can have been missed.
    pub fn news(&self, since: u64, goes_on: bool, most: usize) -> News {
        let from_start = since == 0 || since > self.last || (since < self.forgotten && !goes_on);
        let after = if from_start { 0 } else { since };
        let mut rest = self.by_number.range(after + 1..);
        let (mut names, mut next) = (Vec::new(), after);
        for (number, name) in rest.by_ref().take(most) {
            names.push(name.clone());
            next = *number;
        }
        let has_more = rest.next().is_some();
        let next = if has_more { next } else { self.last };
        News { from_start, names, next, has_more }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(number: usize) -> Label {
        Label::parse(&format!("n{number}")).unwrap()
    }

    fn names(news: &News) -> Vec<&str> {
        news.names.iter().map(Label::as_str).collect()
    }

    #[test]
    fn each_name_is_told_once_with_its_last_change() {
        let mut changes = Changes::default();
        for number in [1, 2, 1] {
            changes.changed(&label(number));
        }
        let news = changes.news(0, false, 10);
        assert_eq!((names(&news), news.next, news.from_start), (vec!["n2", "n1"], 4, true));
        assert!(changes.news(4, false, 10).names.is_empty());
        changes.removed(&label(2));
        let news = changes.news(4, false, 10);
        assert_eq!((names(&news), news.from_start), (vec!["n2"], false));
    }

    #[test]
    fn news_come_in_parts() {
        let mut changes = Changes::default();
        (0..5).for_each(|number| changes.changed(&label(number)));
        let (mut since, mut all, mut parts) = (0, 0, 0);
        loop {
            let news = changes.news(since, since > 0, 2);
            (since, all, parts) = (news.next, all + news.names.len(), parts + 1);
            if !news.has_more {
                break;
            }
        }
        assert_eq!((since, all, parts), (6, 5, 3));
    }

    #[test]
    fn whoever_was_away_for_too_long_is_told_everything() {
        let mut changes = Changes::default();
        changes.changed(&label(0));
        for number in 1..MOST_GONE + 10 {
            changes.changed(&label(number));
            changes.removed(&label(number));
        }
        let news = changes.news(2, false, usize::MAX);
        assert!(news.from_start && news.names.len() <= MOST_GONE + 1);
        assert!(news.names.contains(&label(0)));
        assert!(!changes.news(2, true, 1).from_start);
        assert!(changes.by_number.len() == changes.numbers.len());
        assert!(changes.news(u64::MAX, false, 1).from_start, "numbers of a former life");
    }
}
