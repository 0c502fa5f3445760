//! What files hold, and have held.

use std::collections::BTreeMap;

use super::{FileKey, Moment};

/// The pages of all files.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// Every page that was used, with what was written to it, in order. Before that it is zero.
    pages: BTreeMap<(FileKey, u64), Vec<Version>>,
}

#[derive(Clone, Copy, Debug)]
struct Version {
    since: Moment,
    value: u64,
    landed: Landed,
}

/// Whether a write has come here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Landed {
    Certainly,
    /// Or in something else that is mapped at the same place.
    Perhaps,
}

impl Files {
    pub(super) fn write(
        &mut self,
        file: FileKey,
        page: u64,
        (value, since): (u64, Moment),
        landed: Landed,
    ) {
        self.pages.entry((file, page)).or_default().push(Version { since, value, landed });
    }

    /// A page is known to hold this now, and to be used.
    pub(super) fn settle(&mut self, file: FileKey, page: u64, value: u64, now: Moment) {
        let is_known = self.now(file, page) == [value];
        let versions = self.pages.entry((file, page)).or_default();
        if !is_known {
            versions.push(Version { since: now, value, landed: Landed::Certainly });
        }
    }

    /// A page is used.
    pub(super) fn note(&mut self, file: FileKey, page: u64) {
        self.pages.entry((file, page)).or_default();
    }

    /// What a page may hold.
    pub(super) fn now(&self, file: FileKey, page: u64) -> Vec<u64> {
        self.since(file, page, Moment::MAX)
    }

    /// What it may have held at this moment or later.
    pub(super) fn since(&self, file: FileKey, page: u64, since: Moment) -> Vec<u64> {
        let versions = self.pages.get(&(file, page)).map_or(&[][..], |versions| versions);
        let is_before =
            |version: &Version| version.landed == Landed::Certainly && version.since <= since;
        let values = |versions: &[Version]| versions.iter().map(|version| version.value).collect();
        match versions.iter().rposition(is_before) {
            Some(first) => values(&versions[first..]),
            None => [vec![0], values(versions)].concat(),
        }
    }

    /// The pages that were used.
    pub(super) fn used(&self) -> impl Iterator<Item = (FileKey, u64)> {
        self.pages.keys().copied()
    }
}
