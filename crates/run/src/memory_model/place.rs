//! What may be at one place: what its mapping shows, and what a page of its own holds.

use std::collections::BTreeSet;

use super::files::Files;
use super::{FileKey, Moment, Shown};

/// What a page of its own may hold, if the place shows one.
#[derive(Clone, Debug, Default)]
pub(super) struct Page {
    pub(super) contents: Vec<Content>,
    /// It may be zero, since this offer ended.
    pub(super) offered: Option<Moment>,
    /// It may have been copied at this moment or later, where it is fresh.
    pub(super) copied: Option<Moment>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Content {
    pub(super) word: Word,
    pub(super) since: Moment,
    pub(super) gone: Option<Moment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// What the mapping shows at first.
    Fresh,
    Written(u64),
}

/// All that may be at one place.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) sources: Vec<Source>,
    pub(super) words: Vec<Word>,
    pub(super) offered: Option<Moment>,
    pub(super) copied: Option<Moment>,
}

/// What a mapping shows at one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Nothing,
    Zero,
    Private(FileKey, u64),
    Shared(FileKey, u64),
}

impl Page {
    /// As its mapping shows it.
    pub(super) fn fresh(since: Moment) -> Self {
        Self { contents: vec![Content::new(Word::Fresh, since)], offered: None, copied: None }
    }

    /// Whether no more is known of it than of any other.
    pub(super) fn is_plain(&self) -> bool {
        let mut words = self.contents.iter().map(|content| content.word);
        words.all(|word| word == Word::Fresh) && self.offered.is_none() && self.copied.is_none()
    }

    /// What was there before `begun` is gone.
    pub(super) fn forget_before(
        &mut self,
        begun: Moment,
        now: Moment,
        copied_since: Option<Moment>,
    ) {
        for content in &mut self.contents {
            if content.since < begun {
                content.gone.get_or_insert(now);
            }
        }
        let is_needed = |gone| copied_since.is_some_and(|at| at < gone);
        self.contents.retain(|content| content.gone.is_none_or(is_needed));
        self.offered = self.offered.filter(|&at| at >= begun);
    }

    /// What may be there, too.
    pub(super) fn add(&mut self, other: Self) {
        self.contents.extend(other.contents);
        self.offered = self.offered.max(other.offered);
        self.copied = self.copied.into_iter().chain(other.copied).min();
    }
}

impl Content {
    pub(super) const fn new(word: Word, since: Moment) -> Self {
        Self { word, since, gone: None }
    }
}

impl State {
    /// What an access that was not refused may have found.
    pub(super) fn places(&self) -> Vec<Source> {
        self.sources.iter().copied().filter(|source| *source != Source::Nothing).collect()
    }

    pub(super) fn values(&self, files: &Files, now: Moment) -> Vec<u64> {
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

    pub(super) fn add_page(&mut self, page: &Page, since: Moment) {
        let contents = page.contents.iter();
        for content in contents.filter(|content| content.gone.is_none_or(|gone| gone > since)) {
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
    /// The page that a mapping shows at `page` of the process.
    pub(super) const fn of(shown: Shown, page: u64) -> Self {
        match shown {
            Shown::Nothing => Self::Nothing,
            Shown::Anonymous => Self::Zero,
            Shown::Private { file, offset } => Self::Private(file, page.wrapping_add(offset)),
            Shown::Shared { file, offset } => Self::Shared(file, page.wrapping_add(offset)),
        }
    }
}
