//! The contents of files, now and in the past.

use std::collections::BTreeMap;

use super::{FileKey, Tick};

/// The pages of all files.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// Every page that was used, with its writes in order. A page without a write is zero.
    pages: BTreeMap<(FileKey, u64), Vec<Version>>,
    /// The truncations in progress: the file, and the first page that is removed.
    truncations: Vec<(FileKey, u64)>,
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
        let is_certain = !self.is_truncated(file, page);
        let certainty = if is_certain { certainty } else { Certainty::Possible };
        self.pages.entry((file, page)).or_default().push(Version { since, value, certainty });
    }

    /// Records that a read has found this value: the page certainly holds it now.
    pub(super) fn observe(&mut self, file: FileKey, page: u64, value: u64, now: Tick) {
        // Another CPU may find another word until the truncation ends.
        let is_known = self.now(file, page) == [value] || self.is_truncated(file, page);
        let versions = self.pages.entry((file, page)).or_default();
        if !is_known {
            versions.push(Version { since: now, value, certainty: Certainty::Certain });
        }
    }

    /// Records that the pages of a file from `first` on may be zero from now on.
    pub(super) fn begin_truncation(&mut self, file: FileKey, first: u64, since: Tick) {
        self.truncations.push((file, first));
        let zero = Version { since, value: 0, certainty: Certainty::Possible };
        let pages = self.pages.range_mut((file, first)..=(file, u64::MAX));
        pages.for_each(|(_, versions)| versions.push(zero));
    }

    /// Records that these pages are zero, or hold words that were written since `began`.
    pub(super) fn end_truncation(&mut self, file: FileKey, first: u64, began: Tick, now: Tick) {
        if let Some(index) = self.truncations.iter().position(|it| *it == (file, first)) {
            self.truncations.swap_remove(index);
        }
        let zero = Version { since: now, value: 0, certainty: Certainty::Certain };
        for (_, versions) in self.pages.range_mut((file, first)..=(file, u64::MAX)) {
            let written = versions.iter().filter(|it| it.since > began).copied();
            let written =
                written.map(|it| Version { since: now, certainty: Certainty::Possible, ..it });
            let written: Vec<_> = written.collect();
            versions.push(zero);
            versions.extend(written);
        }
    }

    fn is_truncated(&self, file: FileKey, page: u64) -> bool {
        self.truncations.iter().any(|&(of, first)| of == file && first <= page)
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
