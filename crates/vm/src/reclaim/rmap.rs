//! Which pages are mapped where, and which of them were used of late: what reclaim needs to know of
//! a page. (Linux: `struct page`, with `i_mmap` and `anon_vma` for where it is mapped; the LRU.)
//!
//! # What a record says
//!
//! A page has a record from when it is first mapped, or read in ahead, until nobody has it any
//! more: whose it is, and each place where it is mapped. A place is noted *before* the entry there
//! is written, and struck out *after* the entry was cleared, by whoever cleared it. So each entry
//! that holds the page has its place noted, and a place whose entry holds something else is on its
//! way in or out, and its entry somebody else's. Who has cleared an entry also has its count of the
//! page.
//!
//! Page tables are freed only when every entry below has been cleared and struck out. So whoever
//! holds a record's lock, and finds a place, finds the table there, too.
//!
//! Page by page, rather than by area: a place is found at once, in any space that shares the page,
//! with no lock of that space, and moving or splitting an area moves nothing. It costs a few words
//! for each entry; a kernel that maps gigabytes several times would hold areas instead, as Linux
//! has done since 2.6.
//!
//! # The order of locks
//!
//! The lock of a space's areas; then that of a record, which is held for some hundred instructions;
//! then that of a file's pages. That of a list comes alone. No record is locked while memory is
//! asked for, for that may reclaim.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, AtomicUsize};

use lock_api::Mutex;

use crate::file::File;
use crate::mappings::Mappings;
use crate::platform::Frame;
use crate::system::{SpinMutex, System};

/// Records are locked so many apart, by frame: as many as there are CPUs on most machines.
const SHARDS: u64 = 64;

/// All records, and the lists of pages by age.
pub(crate) struct Rmap<S: System> {
    shards: Vec<Shard<S>>,
    /// For each node.
    lists: Vec<SpinMutex<S, Lists>>,
    /// How many pages somebody is about to reclaim: they are on no list, or soon not there.
    away: AtomicUsize,
    /// How many have become free so.
    freed: AtomicU64,
}

type Shard<S> = SpinMutex<S, BTreeMap<Frame, Page<S>>>;

/// What is known of a page.
pub(crate) struct Page<S: System> {
    pub(crate) owner: Owner<S>,
    pub(crate) mappings: Vec<Mapping<S>>,
    pub(crate) state: State,
}

/// Where a page's contents come from, and go to.
pub(crate) enum Owner<S: System> {
    /// Nowhere.
    Anonymous,
    /// This page of a file; which goes without its records, if nobody [closes](crate::Vm::close)
    /// it.
    File(Weak<File<S::Platform>>, u64),
}

/// Where a page is mapped.
pub(crate) struct Mapping<S: System> {
    pub(crate) space: Arc<Mappings<S>>,
    pub(crate) address: u64,
}

bitflags::bitflags! {
    /// What has become of a page.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct State: u8 {
        /// An entry that was taken away said that it had been written, and it has not been written
        /// out since.
        const DIRTY = 1;
        /// Nobody needs what is in it, unless it has been written since (`MADV_FREE`).
        const DISCARDABLE = 2;
        /// It had been used when reclaim last looked.
        const REFERENCED = 4;
        /// It is on a list.
        const LISTED = 8;
        /// What is in it is stored somewhere else, or can be.
        const STORED = 16;
    }
}

/// The pages of a node that reclaim may come to, oldest first. What is on a list may be something
/// else by now, or nothing: its record says.
#[derive(Default)]
struct Lists {
    /// Used once, as far as is known.
    inactive: VecDeque<Frame>,
    /// Used again after that.
    active: VecDeque<Frame>,
}

impl<S: System> Rmap<S> {
    pub(crate) fn new(node_count: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(BTreeMap::new())).collect(),
            lists: (0..node_count).map(|_| Mutex::new(Lists::default())).collect(),
            away: AtomicUsize::new(0),
            freed: AtomicU64::new(0),
        }
    }

    pub(crate) fn node_count(&self) -> usize {
        self.lists.len()
    }

    /// Calls `f` with a page's record, if it has one.
    pub(crate) fn with<R>(&self, page: Frame, f: impl FnOnce(&mut Page<S>) -> R) -> Option<R> {
        self.shard(page).lock().get_mut(&page).map(f)
    }

    /// Notes that a page is about to be mapped. The page of a file is listed, on `node`.
    pub(crate) fn add_mapping(
        &self,
        page: Frame,
        file: Option<(&Arc<File<S::Platform>>, u64)>,
        space: &Arc<Mappings<S>>,
        address: u64,
        node: usize,
    ) {
        let place = Mapping { space: Arc::clone(space), address };
        if self.add(page, file, Some(place)) {
            self.list([(page, node)]);
        }
    }

    /// Notes a file's page that was read in, and that nobody has mapped yet: for the caller, who
    /// counts it. Returns whether it is to be [listed](Self::list).
    pub(crate) fn add_unmapped(
        &self,
        page: Frame,
        file: &Arc<File<S::Platform>>,
        number: u64,
    ) -> bool {
        self.add(page, Some((file, number)), None)
    }

    fn add(
        &self,
        page: Frame,
        file: Option<(&Arc<File<S::Platform>>, u64)>,
        place: Option<Mapping<S>>,
    ) -> bool {
        let mut records = self.shard(page).lock();
        let record = records.entry(page).or_insert_with(Page::new);
        if record.mappings.is_empty() && record.is_orphan() {
            // The frame was a file's that was dropped, and is another page's now.
            *record = Page { state: record.state & State::LISTED, ..Page::new() };
        }
        if let Some((file, number)) = file
            && !record.owner.is(file)
        {
            record.owner = Owner::File(Arc::downgrade(file), number);
            record.state &= State::LISTED;
            record.state.set(State::STORED, file.is_stored());
        }
        record.mappings.extend(place);
        file.is_some_and(|(file, _)| file.is_stored()) && record.list()
    }

    /// Puts pages, each with its node, on the lists, as the youngest of those that were used once.
    pub(crate) fn list(&self, pages: impl IntoIterator<Item = (Frame, usize)>) {
        let mut pages = pages.into_iter().peekable();
        while let Some((page, node)) = pages.next() {
            let mut lists = self.lists[node].lock();
            lists.inactive.push_back(page);
            while let Some((page, _)) = pages.next_if(|&(_, other)| other == node) {
                lists.inactive.push_back(page);
            }
        }
    }

    /// Notes that a page is about to be mapped at the same address in a copy of the space, and
    /// counts that by `share`, if it is mapped there in the space itself. If not, reclaim has just
    /// taken it.
    pub(crate) fn add_inherited(
        &self,
        page: Frame,
        [parent, child]: [&Arc<Mappings<S>>; 2],
        address: u64,
        share: impl FnOnce(),
    ) -> bool {
        let mut records = self.shard(page).lock();
        let Some(record) = records.get_mut(&page) else { return false };
        if !record.mappings.iter().any(|place| place.is(parent, address)) {
            return false;
        }
        share();
        record.mappings.push(Mapping { space: Arc::clone(child), address });
        true
    }

    /// Whether a page is mapped at an address of a space, and `is_so` says so of it: nobody takes
    /// it from there meanwhile.
    pub(crate) fn is_mapped_at(
        &self,
        page: Frame,
        space: &Arc<Mappings<S>>,
        address: u64,
        is_so: impl FnOnce() -> bool,
    ) -> bool {
        let is_there = |record: &mut Page<S>| {
            record.mappings.iter().any(|place| place.is(space, address)) && is_so()
        };
        self.with(page, is_there) == Some(true)
    }

    /// Strikes out a place whose entry was cleared, or not written after all. Returns whether it
    /// was noted.
    pub(crate) fn remove_mapping(
        &self,
        page: Frame,
        space: &Arc<Mappings<S>>,
        address: u64,
    ) -> bool {
        let mut records = self.shard(page).lock();
        let Some(record) = records.get_mut(&page) else { return false };
        let place = record.mappings.iter().position(|place| place.is(space, address));
        if let Some(index) = place {
            record.mappings.swap_remove(index);
        }
        if record.mappings.is_empty() && matches!(record.owner, Owner::Anonymous) {
            records.remove(&page);
        }
        place.is_some()
    }

    /// Somebody has written to the page, through an entry that is gone, and that no CPU remembers.
    pub(crate) fn mark_dirty(&self, page: Frame) {
        self.with(page, |record| record.state.insert(State::DIRTY));
    }

    /// Nobody needs what is in the page, until it is written again: if it is still where it was
    /// when its marks were taken away.
    pub(crate) fn mark_discardable(
        &self,
        page: Frame,
        space: &Arc<Mappings<S>>,
        address: u64,
        node: usize,
    ) {
        let is_new_on_list = self.with(page, |record| {
            let is_there = record.mappings.iter().any(|place| place.is(space, address));
            if is_there {
                record.state.insert(State::DISCARDABLE);
            }
            is_there && record.list()
        });
        if is_new_on_list == Some(true) {
            self.list([(page, node)]);
        }
    }

    /// What is in the page is in another frame from now on.
    pub(crate) fn move_dirty(&self, old: Frame, new: Frame) {
        let state = self.with(old, |record| record.state).unwrap_or(State::empty());
        self.with(new, |record| record.state |= state & State::DIRTY);
    }

    /// It is needed again.
    pub(crate) fn mark_not_discardable(&self, page: Frame) {
        self.with(page, |record| record.state.remove(State::DISCARDABLE));
    }

    /// The frame is nobody's any more.
    pub(crate) fn forget(&self, page: Frame) {
        self.shard(page).lock().remove(&page);
    }

    /// Forgets a page, if nobody has mapped it, and `take` says that nobody is about to.
    pub(crate) fn forget_if(&self, page: Frame, take: impl FnOnce(&Page<S>) -> bool) -> bool {
        let mut records = self.shard(page).lock();
        let is_taken =
            records.get(&page).is_some_and(|record| record.mappings.is_empty() && take(record));
        if is_taken {
            records.remove(&page);
        }
        is_taken
    }

    /// Takes up to `count` of the oldest pages off a node's list of those that were used once.
    /// While they are fewer than those used again, the oldest of these come to them. Until they
    /// [come back](Self::come_back), they are [away](Self::are_away).
    pub(crate) fn take_oldest(&self, node: usize, count: usize) -> Vec<Frame> {
        let mut lists = self.lists[node].lock();
        let Lists { inactive, active } = &mut *lists;
        for _ in 0..count {
            if inactive.len() > active.len() {
                break;
            }
            let Some(page) = active.pop_front() else { break };
            inactive.push_back(page);
        }
        let taken = inactive.len().min(count);
        // Under the lock: who finds them gone finds them counted.
        self.add_isolated(taken);
        inactive.drain(..taken).collect()
    }

    /// Somebody is about to reclaim so many pages.
    pub(crate) fn add_isolated(&self, count: usize) {
        self.away.fetch_add(count, Relaxed);
    }

    /// One of them is free.
    pub(crate) fn count_freed(&self) {
        self.freed.fetch_add(1, Relaxed);
    }

    /// So many pages are free, or on their lists.
    pub(crate) fn remove_isolated(&self, count: usize) {
        // Pairs with the load in `are_away`: who finds none away finds them free, or listed.
        self.away.fetch_sub(count, Release);
    }

    /// Whether somebody is about to reclaim pages.
    pub(crate) fn has_isolated(&self) -> bool {
        self.away.load(Acquire) != 0
    }

    /// How many pages were reclaimed, by whomever.
    pub(crate) fn freed(&self) -> u64 {
        self.freed.load(Relaxed)
    }

    /// Puts pages back that reclaim has looked at: as the youngest of those that were used once, or
    /// again.
    pub(crate) fn put_back(&self, node: usize, pages: impl IntoIterator<Item = (Frame, Age)>) {
        let mut lists = self.lists[node].lock();
        for (page, age) in pages {
            match age {
                Age::Inactive => lists.inactive.push_back(page),
                Age::Active => lists.active.push_back(page),
            }
        }
    }

    /// How many pages of a node reclaim could come to.
    pub(crate) fn listed(&self, node: usize) -> usize {
        let lists = self.lists[node].lock();
        lists.inactive.len() + lists.active.len()
    }

    fn shard(&self, page: Frame) -> &Shard<S> {
        &self.shards[(page.0 % SHARDS) as usize]
    }
}

/// How much a page was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Age {
    Inactive,
    Active,
}

impl<S: System> Page<S> {
    const fn new() -> Self {
        Self { owner: Owner::Anonymous, mappings: Vec::new(), state: State::empty() }
    }

    /// Whether its file is gone, with all that was in it.
    pub(crate) fn is_orphan(&self) -> bool {
        matches!(&self.owner, Owner::File(file, _) if file.strong_count() == 0)
    }

    /// It is about to be written out. Returns whether it needs to be.
    pub(crate) fn take_dirty(&mut self) -> bool {
        let is_dirty = self.state.contains(State::DIRTY);
        self.state.remove(State::DIRTY);
        is_dirty
    }

    /// Says that it is on a list. Returns whether it was not.
    fn list(&mut self) -> bool {
        let is_new = !self.state.contains(State::LISTED);
        self.state.insert(State::LISTED);
        is_new
    }
}

impl<S: System> Owner<S> {
    fn is(&self, file: &Arc<File<S::Platform>>) -> bool {
        matches!(self, Self::File(owner, _) if core::ptr::eq(owner.as_ptr(), Arc::as_ptr(file)))
    }
}

impl<S: System> Mapping<S> {
    fn is(&self, space: &Arc<Mappings<S>>, address: u64) -> bool {
        self.address == address && Arc::ptr_eq(&self.space, space)
    }
}
