//! The possible contents of one place: the page that its mapping shows, and the private page.

use std::collections::BTreeSet;

use super::files::Files;
use super::{FileKey, Shown, Tick};

/// The words that a private page may hold, if the place shows one.
#[derive(Clone, Debug, Default)]
pub(super) struct Page {
    pub(super) contents: Vec<Content>,
    /// The end of an offer; the page may be zero since then. `None` without an offer.
    pub(super) offered: Option<Tick>,
    /// The earliest time of a copy of a file's page, if the private page is fresh.
    pub(super) copied: Option<Tick>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Content {
    pub(super) word: Word,
    pub(super) since: Tick,
    pub(super) removed: Option<Tick>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// The initial word, which the mapping shows.
    Fresh,
    Written(u64),
}

/// The possible contents of one place.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) sources: Vec<Source>,
    pub(super) words: Vec<Word>,
    pub(super) offered: Option<Tick>,
    pub(super) copied: Option<Tick>,
}

/// The page that a mapping shows at one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Nothing,
    Zero,
    Private(FileKey, u64),
    Shared(FileKey, u64),
}

impl Page {
    /// Creates a page that holds the word that its mapping shows.
    pub(super) fn fresh(since: Tick) -> Self {
        Self { contents: vec![Content::new(Word::Fresh, since)], offered: None, copied: None }
    }

    /// Returns `true` if the page has no information beyond its mapping.
    pub(super) fn is_plain(&self) -> bool {
        let mut words = self.contents.iter().map(|content| content.word);
        words.all(|word| word == Word::Fresh) && self.offered.is_none() && self.copied.is_none()
    }

    /// Removes the words from before a change began.
    pub(super) fn forget_before(&mut self, began: Tick, now: Tick, copied_since: Option<Tick>) {
        for content in &mut self.contents {
            if content.since < began {
                content.removed.get_or_insert(now);
            }
        }
        let is_needed = |removed| copied_since.is_some_and(|at| at < removed);
        self.contents.retain(|content| content.removed.is_none_or(is_needed));
        self.offered = self.offered.filter(|&at| at >= began);
    }

    /// Adds the possible contents of another page.
    pub(super) fn add(&mut self, other: Self) {
        self.contents.extend(other.contents);
        self.offered = self.offered.max(other.offered);
        self.copied = self.copied.into_iter().chain(other.copied).min();
    }
}

impl Content {
    pub(super) const fn new(word: Word, since: Tick) -> Self {
        Self { word, since, removed: None }
    }
}

impl State {
    /// Returns the pages that a successful access may have used.
    pub(super) fn places(&self) -> Vec<Source> {
        self.sources.iter().copied().filter(|source| *source != Source::Nothing).collect()
    }

    pub(super) fn values(&self, files: &Files, now: Tick) -> Vec<u64> {
        let mut values = BTreeSet::new();
        let is_fresh = self.words.contains(&Word::Fresh);
        for source in &self.sources {
            match *source {
                Source::Nothing => continue,
                Source::Shared(file, page) => {
                    values.extend(files.now(file, page));
                    continue;
                }
                Source::Private(file, page) if is_fresh => {
                    values.extend(files.since(file, page, self.copied.unwrap_or(now)));
                }
                Source::Zero if is_fresh || self.offered.is_some() => {
                    values.insert(0);
                }
                Source::Private(..) | Source::Zero => {}
            }
            values.extend(self.words.iter().filter_map(|word| match word {
                Word::Fresh => None,
                Word::Written(value) => Some(*value),
            }));
        }
        values.into_iter().collect()
    }

    pub(super) fn may_be_nothing(&self) -> bool {
        self.sources.contains(&Source::Nothing)
    }

    pub(super) fn add(&mut self, other: Self) {
        other.sources.into_iter().for_each(|source| self.add_source(source));
        other.words.into_iter().for_each(|word| self.add_word(word));
        self.offered = self.offered.max(other.offered);
        self.copied = self.copied.into_iter().chain(other.copied).min();
    }

    pub(super) fn add_page(&mut self, page: &Page, since: Tick) {
        let contents = page.contents.iter();
        for content in
            contents.filter(|content| content.removed.is_none_or(|removed| removed > since))
        {
            self.add_word(content.word);
        }
        (self.offered, self.copied) = (page.offered, page.copied);
    }

    pub(super) fn add_source(&mut self, source: Source) {
        if !self.sources.contains(&source) {
            self.sources.push(source);
        }
    }

    pub(super) fn add_word(&mut self, word: Word) {
        if !self.words.contains(&word) {
            self.words.push(word);
        }
    }
}

impl Source {
    /// Returns the page that a mapping shows at `page` of the process.
    pub(super) const fn of(shown: Shown, page: u64) -> Self {
        match shown {
            Shown::Nothing => Self::Nothing,
            Shown::Anonymous => Self::Zero,
            Shown::Private { file, offset } => Self::Private(file, page.wrapping_add(offset)),
            Shown::Shared { file, offset } => Self::Shared(file, page.wrapping_add(offset)),
        }
    }
}
