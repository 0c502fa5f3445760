//! The pages of a space that were discarded in place: zeroed where they are, and still mapped. See
//! [`ops::discard`](crate::ops).
//!
//! A list is a hint. A page that is listed may have been written again, unmapped, moved or
//! shared; the call that frees listed pages looks at each of them. So no operation has to remove
//! the pages that it changes from the list.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::array;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicUsize};

use lock_api::Mutex;

use crate::coherence::Discards;
use crate::system::{SpinMutex, System};

/// Maximum number of listed pages of a space: 2 MiB, as much memory as one large page.
pub(crate) const DISCARDED_MAX: usize = 512;

/// The age at which a listed page is freed, in nanoseconds: 20 ms. An allocator that uses a page
/// again usually does so earlier, and a page that is not used again is not late by much.
pub(crate) const AGE_MAX_NS: u64 = 20_000_000;

/// Number of lists that are used together. More would cost each space memory.
const LISTS: usize = 16;

/// The listed pages of one space.
pub(crate) struct DiscardedPages<S: System> {
    /// The list that is used alone, and the others, which are used together.
    lists: [List<S>; 1 + LISTS],
    /// `true` if the space has opted out. Relaxed: the opt-out concerns later calls.
    is_off: AtomicBool,
    /// `true` if the space is in the registry. Relaxed: only the first discard registers it.
    is_registered: AtomicBool,
}

struct List<S: System> {
    /// The time of the last discard, by the address of the page.
    pages: SpinMutex<S, BTreeMap<u64, u64>>,
    /// Number of pages. Relaxed: other lists leave room for them, and need not be exact.
    count: AtomicUsize,
}

/// One list of a space, and the number of its pages at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listed {
    index: usize,
    max: usize,
}

/// The listed pages to free.
#[derive(Clone, Debug)]
pub(crate) enum Choice {
    All,
    /// Those on the list that is used alone.
    Alone,
    /// Half of the pages of a list in a range, those that were discarded first.
    OldestHalf(Listed, Range<u64>),
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

/// Pages that were removed from the lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Their addresses, in order. A page may have been on two lists.
    pub(crate) pages: Vec<u64>,
    /// Time since their discard, in nanoseconds, added up.
    pub(crate) late_page_ns: u64,
}

impl<S: System> DiscardedPages<S> {
    pub(crate) fn new(discards: Discards) -> Self {
        Self {
            lists: array::from_fn(|_| List {
                pages: Mutex::new(BTreeMap::new()),
                count: AtomicUsize::new(0),
            }),
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

    /// Returns `true` if there are no pages on the list that is used alone.
    pub(crate) fn is_only_list_empty(&self) -> bool {
        self.lists[0].count() == 0
    }

    /// The list that is used alone.
    pub(crate) fn only_list(&self) -> Listed {
        let others: usize = self.lists[1..].iter().map(List::count).sum();
        Listed { index: 0, max: DISCARDED_MAX.saturating_sub(others) }
    }

    /// The list for the pages of a table of the last level. Those of other tables are probably on
    /// other lists, so that CPUs do not wait for each other.
    pub(crate) fn list_of(&self, table_number: u64) -> Listed {
        let before = self.lists[0].count();
        let max = DISCARDED_MAX.saturating_sub(before) / LISTS;
        Listed { index: 1 + (table_number % LISTS as u64) as usize, max }
    }

    /// Adds pages to a list. `None` if there is no room for all of them: nothing is changed then.
    pub(crate) fn add(
        &self,
        to: Listed,
        pages: impl Iterator<Item = u64> + Clone,
        now_ns: u64,
    ) -> Option<Added> {
        let list = &self.lists[to.index];
        let mut listed = list.pages.lock();
        let new = pages.clone().filter(|page| !listed.contains_key(page)).count();
        if listed.len() + new > to.max {
            return None;
        }
        let since = pages.filter_map(|page| listed.insert(page, now_ns));
        let late_page_ns = since.map(|since_ns| now_ns.saturating_sub(since_ns)).sum();
        list.count.store(listed.len(), Relaxed);
        Some(Added { new, late_page_ns })
    }

    /// Removes pages from the lists.
    pub(crate) fn take(&self, choice: &Choice, now_ns: u64) -> Taken {
        let mut taken = Taken::default();
        match choice {
            Choice::OldestHalf(listed, range) => {
                self.lists[listed.index].take(range, now_ns, &mut taken, oldest_half);
            }
            Choice::All => take_until(&self.lists, u64::MAX, now_ns, &mut taken),
            Choice::Alone => take_until(&self.lists[..1], u64::MAX, now_ns, &mut taken),
            &Choice::Until(until_ns) => take_until(&self.lists, until_ns, now_ns, &mut taken),
        }
        taken.pages.sort_unstable();
        taken.pages.dedup();
        taken
    }

    /// The time of the first of the discards of the listed pages.
    pub(crate) fn oldest_ns(&self) -> Option<u64> {
        let lists = self.lists.iter().filter(|list| list.count() != 0);
        lists.filter_map(|list| list.pages.lock().values().min().copied()).min()
    }
}

impl<S: System> List<S> {
    fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Removes the pages in a range that were discarded at a time or before. `until_ns` returns the
    /// time, given the times of the pages.
    fn take(
        &self,
        range: &Range<u64>,
        now_ns: u64,
        taken: &mut Taken,
        until_ns: impl FnOnce(Vec<u64>) -> u64,
    ) {
        let mut listed = self.pages.lock();
        let until_ns =
            until_ns(listed.range(range.clone()).map(|(_, &since_ns)| since_ns).collect());
        listed.retain(|&page, &mut since_ns| {
            let is_taken = range.contains(&page) && since_ns <= until_ns;
            if is_taken {
                taken.pages.push(page);
                taken.late_page_ns += now_ns.saturating_sub(since_ns);
            }
            !is_taken
        });
        self.count.store(listed.len(), Relaxed);
    }
}

fn take_until<S: System>(lists: &[List<S>], until_ns: u64, now_ns: u64, taken: &mut Taken) {
    for list in lists.iter().filter(|list| list.count() != 0) {
        list.take(&(0..u64::MAX), now_ns, taken, |_| until_ns);
    }
}

/// Returns the time that the older half of the times does not exceed.
fn oldest_half(mut times: Vec<u64>) -> u64 {
    let middle = times.len() / 2;
    if times.is_empty() { 0 } else { *times.select_nth_unstable(middle).1 }
}
