//! The contents of files, now and in the past.

use std::collections::BTreeMap;

use super::{FileKey, Tick};

/// The pages of all files.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// Every page that was used, with its writes in order. A page without a write is zero.
    pages: BTreeMap<(FileKey, u64), Vec<Version>>,
}

#[derive(Clone, Copy, Debug)]
struct Version {
    since: Tick,
    value: u64,
    certainty: Certainty,
}

/// The certainty that a write went to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Certainty {
    Certain,
    /// The write may have gone to another page that was mapped at the same place.
    Possible,
}

impl Files {
    pub(super) fn write(
        &mut self,
        file: FileKey,
        page: u64,
        (value, since): (u64, Tick),
        certainty: Certainty,
    ) {
        self.pages.entry((file, page)).or_default().push(Version { since, value, certainty });
    }

    /// Records that a read has found this value: the page certainly holds it now.
    pub(super) fn observe(&mut self, file: FileKey, page: u64, value: u64, now: Tick) {
        let is_known = self.now(file, page) == [value];
        let versions = self.pages.entry((file, page)).or_default();
        if !is_known {
            versions.push(Version { since: now, value, certainty: Certainty::Certain });
        }
    }

    /// Marks a page as used.
    pub(super) fn mark_used(&mut self, file: FileKey, page: u64) {
        self.pages.entry((file, page)).or_default();
    }

    /// Returns the values that a page may hold.
    pub(super) fn now(&self, file: FileKey, page: u64) -> Vec<u64> {
        self.since(file, page, Tick::MAX)
    }

    /// Returns the values that a page may have held at this time or later.
    pub(super) fn since(&self, file: FileKey, page: u64, since: Tick) -> Vec<u64> {
        let versions = self.pages.get(&(file, page)).map_or(&[][..], |versions| versions);
        let is_before =
            |version: &Version| version.certainty == Certainty::Certain && version.since <= since;
        let values = |versions: &[Version]| versions.iter().map(|version| version.value).collect();
        match versions.iter().rposition(is_before) {
            Some(first) => values(&versions[first..]),
            None => [vec![0], values(versions)].concat(),
        }
    }

    /// Returns the pages that were used.
    pub(super) fn used(&self) -> impl Iterator<Item = (FileKey, u64)> {
        self.pages.keys().copied()
    }
}
