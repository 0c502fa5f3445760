//! The pages of a space that were discarded in place: zeroed where they are, and still mapped. See
//! [`ops::discard`](crate::ops).
//!
//! The list is a hint. A page that is listed may have been written again, unmapped, moved or
//! shared; the call that frees listed pages looks at each of them. So no operation has to remove
//! the pages that it changes from the list.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use lock_api::Mutex;

use crate::coherence::Discards;
use crate::system::{SpinMutex, System};

/// Maximum number of listed pages of a space: 2 MiB, as much memory as one large page.
pub(crate) const DISCARDED_MAX: usize = 512;

/// The age at which a listed page is freed, in nanoseconds: 20 ms. An allocator that uses a page
/// again usually does so earlier, and a page that is not used again is not late by much.
pub(crate) const AGE_MAX_NS: u64 = 20_000_000;

/// The listed pages of one space.
pub(crate) struct DiscardedPages<S: System> {
    /// The time of the last discard, by the address of the page.
    pages: SpinMutex<S, BTreeMap<u64, u64>>,
    /// `true` if the space has opted out. Relaxed: the opt-out concerns later calls.
    is_off: AtomicBool,
    /// `true` if the space is in the registry. Relaxed: only the first discard registers it.
    is_registered: AtomicBool,
}

/// The listed pages to free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    All,
    /// Half of the pages, those that were discarded first.
    OldestHalf,
    /// Those that were discarded at this time or before.
    Until(u64),
}

/// Pages that were added to the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Added {
    /// Number of pages that were not on the list before.
    pub(crate) new: usize,
    /// Time since the previous discard of the other pages, in nanoseconds, added up.
    pub(crate) late_page_ns: u64,
}

/// Pages that were removed from the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Their addresses, in order.
    pub(crate) pages: Vec<u64>,
    /// Time since their discard, in nanoseconds, added up.
    pub(crate) late_page_ns: u64,
}

impl<S: System> DiscardedPages<S> {
    pub(crate) fn new(discards: Discards) -> Self {
        Self {
            pages: Mutex::new(BTreeMap::new()),
            is_off: AtomicBool::new(discards == Discards::Immediate),
            is_registered: AtomicBool::new(false),
        }
    }

    pub(crate) fn set(&self, discards: Discards) {
        self.is_off.store(discards == Discards::Immediate, Relaxed);
    }

    pub(crate) fn discards(&self) -> Discards {
        if self.is_off.load(Relaxed) { Discards::Immediate } else { Discards::InPlace }
    }

    /// Returns `true` for the first call.
    pub(crate) fn register(&self) -> bool {
        !self.is_registered.load(Relaxed) && !self.is_registered.swap(true, Relaxed)
    }

    /// Lists pages. `None` if there is no room for all of them: nothing is changed then.
    pub(crate) fn add(
        &self,
        pages: impl Iterator<Item = u64> + Clone,
        now_ns: u64,
    ) -> Option<Added> {
        let mut listed = self.pages.lock();
        let new = pages.clone().filter(|page| !listed.contains_key(page)).count();
        if listed.len() + new > DISCARDED_MAX {
            return None;
        }
        let since = pages.filter_map(|page| listed.insert(page, now_ns));
        let late_page_ns = since.map(|since_ns| now_ns.saturating_sub(since_ns)).sum();
        Some(Added { new, late_page_ns })
    }

    /// Removes pages from the list.
    pub(crate) fn take(&self, choice: Choice, now_ns: u64) -> Taken {
        let mut listed = self.pages.lock();
        let until_ns = match choice {
            Choice::All => u64::MAX,
            Choice::Until(until_ns) => until_ns,
            Choice::OldestHalf => {
                let mut times: Vec<u64> = listed.values().copied().collect();
                let middle = times.len() / 2;
                if times.is_empty() { 0 } else { *times.select_nth_unstable(middle).1 }
            }
        };
        let mut taken = Taken::default();
        listed.retain(|&page, &mut since_ns| {
            let is_taken = since_ns <= until_ns;
            if is_taken {
                taken.pages.push(page);
                taken.late_page_ns += now_ns.saturating_sub(since_ns);
            }
            !is_taken
        });
        taken
    }

    /// The time of the first of the discards of the listed pages.
    pub(crate) fn oldest_ns(&self) -> Option<u64> {
        self.pages.lock().values().min().copied()
    }
}
