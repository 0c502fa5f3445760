//! The reverse map: the spaces and addresses at which each page is mapped, and the order in which
//! pages were used. (Linux: `struct page`, with `i_mmap` and `anon_vma` for the mappings; the LRU
//! lists.)
//!
//! # Records
//!
//! A page has a record from its first mapping, or from its read-ahead, until the frame is freed.
//! The record names the page's owner and each of its mappings. A mapping is added *before* its
//! entry is written. It is removed *after* its entry was cleared, by the call that cleared the
//! entry. So each entry that maps the page has its mapping recorded. If the entry of a recorded
//! mapping contains something else, another call is adding or removing the mapping, and owns the
//! entry. The call that clears an entry also takes over its count of the page.
//!
//! A page table is freed only when every entry below it has been cleared, and its mapping removed.
//! So a caller that holds a record's lock, and finds a mapping, also finds the mapping's table.
//!
//! Mappings are recorded per page, not per area. A mapping is found directly, in any space that
//! shares the page, without a lock of that space, and moving or splitting an area changes no
//! record. This costs a few words for each entry. A kernel that maps gigabytes several times would
//! record areas instead, as Linux has done since 2.6.
//!
//! # Lock order
//!
//! 1. The lock of a space's areas.
//! 2. The lock of a record, which is held for a few hundred instructions.
//! 3. The lock of a file's pages.
//!
//! The lock of a list is never held together with another lock. Do not allocate memory while you
//! hold the lock of a record, because an allocation may reclaim.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64 as Counter;
use core::sync::atomic::Ordering::Relaxed;

use lock_api::Mutex;

use crate::file::File;
use crate::mappings::Mappings;
use crate::platform::Frame;
use crate::reclaim::reuse::Waiting;
use crate::rules::{Rule, order};
use crate::sync::AtomicU64;
use crate::system::{SpinMutex, System};

/// Number of locks for the records, which are distributed by frame: as many as there are CPUs on
/// most machines.
const SHARDS: u64 = 64;

/// All records, and the lists of pages by age.
pub(crate) struct Rmap<S: System> {
    shards: Vec<Shard<S>>,
    /// One per node.
    lists: Vec<SpinMutex<S, Lists>>,
    /// Number of pages that some thread is about to reclaim: they are on no list, or will be
    /// removed from it soon. (Linux: `NR_ISOLATED_FILE`.)
    isolated: AtomicU64,
    /// Number of pages that reclaim has freed.
    freed: Counter,
    waiting: SpinMutex<S, Waiting<S>>,
}

type Shard<S> = SpinMutex<S, BTreeMap<Frame, Page<S>>>;

/// The record of a page.
pub(crate) struct Page<S: System> {
    pub(crate) owner: Owner<S>,
    pub(crate) mappings: Vec<Mapping<S>>,
    pub(crate) state: State,
}

/// The source of a page's contents.
pub(crate) enum Owner<S: System> {
    /// No file.
    Anonymous,
    /// A file, and the number of the page there. A file that is dropped without
    /// [`close`](crate::Vm::close) leaves its records behind.
    File(Weak<File<S::Platform>>, u64),
}

/// An address at which a page is mapped.
pub(crate) struct Mapping<S: System> {
    pub(crate) space: Arc<Mappings<S>>,
    pub(crate) address: u64,
}

bitflags::bitflags! {
    /// The state of a page.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct State: u8 {
        /// A cleared entry was marked as dirty, and the page has not been written out since.
        const DIRTY = 1;
        /// The contents are not needed, unless the page was written since (`MADV_FREE`).
        const DISCARDABLE = 2;
        /// The page had been used when reclaim last examined it.
        const REFERENCED = 4;
        /// The page is on a list.
        const LISTED = 8;
        /// The contents are stored in a file, or can be written there.
        const STORED = 16;
        /// Reclaim is writing the page out, and may have no count of it.
        const WRITING = 32;
    }
}

/// The pages of a node that reclaim may examine, oldest first. A listed frame may have another use
/// by now, or none; its record is authoritative.
#[derive(Default)]
struct Lists {
    /// Used once, as far as is known.
    inactive: VecDeque<Frame>,
    /// Used again after the first use was found.
    active: VecDeque<Frame>,
}

impl<S: System> Rmap<S> {
    pub(crate) fn new(node_count: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(BTreeMap::new())).collect(),
            lists: (0..node_count).map(|_| Mutex::new(Lists::default())).collect(),
            isolated: AtomicU64::new(0),
            freed: Counter::new(0),
            waiting: Mutex::default(),
        }
    }

    /// The pages that were unmapped, and are not flushed.
    pub(super) fn waiting(&self) -> &SpinMutex<S, Waiting<S>> {
        &self.waiting
    }

    pub(crate) fn node_count(&self) -> usize {
        self.lists.len()
    }

    /// Calls `f` with a page's record, if it has one.
    pub(crate) fn with<R>(&self, page: Frame, f: impl FnOnce(&mut Page<S>) -> R) -> Option<R> {
        self.shard(page).lock().get_mut(&page).map(f)
    }

    /// Records that a page is about to be mapped. Lists the page of a stored file on `node`.
    pub(crate) fn add_mapping(
        &self,
        page: Frame,
        file: Option<(&Arc<File<S::Platform>>, u64)>,
        space: &Arc<Mappings<S>>,
        address: u64,
        node: usize,
    ) {
        let mapping = Mapping { space: Arc::clone(space), address };
        if self.add(page, file, Some(mapping)) {
            self.list([(page, node)]);
        }
    }

    /// Creates or updates the record of a page. `mapping` is `None` for a page that was read in and
    /// is not mapped yet. Returns `true` if the caller must [list](Self::list) the page.
    pub(crate) fn add(
        &self,
        page: Frame,
        file: Option<(&Arc<File<S::Platform>>, u64)>,
        mapping: Option<Mapping<S>>,
    ) -> bool {
        let mut records = self.shard(page).lock();
        let record = records.entry(page).or_insert_with(Page::new);
        if record.mappings.is_empty() && record.is_orphan() {
            // The frame belonged to a file that was dropped, and is another page's now.
            *record = Page { state: record.state & State::LISTED, ..Page::new() };
        }
        if let Some((file, number)) = file
            && !record.owner.is(file)
        {
            record.owner = Owner::File(Arc::downgrade(file), number);
            record.state &= State::LISTED;
            record.state.set(State::STORED, file.is_stored());
        }
        record.mappings.extend(mapping);
        file.is_some_and(|(file, _)| file.is_stored()) && record.list()
    }

    /// Adds pages, each with its node, to the lists, as the youngest of the pages that were used
    /// once.
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

    /// Records that a page is about to be mapped at the same address in a copy of the space, and
    /// calls `share` to count the new user. Does neither, and returns `false`, if the page is not
    /// mapped there in the space itself: reclaim has just unmapped it.
    pub(crate) fn add_inherited(
        &self,
        page: Frame,
        [parent, child]: [&Arc<Mappings<S>>; 2],
        address: u64,
        share: impl FnOnce(),
    ) -> bool {
        let inherit = |record: &mut Page<S>| {
            let is_mapped = record.has_mapping(parent, address);
            if is_mapped {
                share();
                record.mappings.push(Mapping { space: Arc::clone(child), address });
            }
            is_mapped
        };
        self.with(page, inherit) == Some(true)
    }

    /// Returns `true` if a page is mapped at an address of a space, and `condition` returns `true`.
    /// Reclaim cannot unmap the page while `condition` runs.
    pub(crate) fn is_mapped_at(
        &self,
        page: Frame,
        space: &Arc<Mappings<S>>,
        address: u64,
        condition: impl FnOnce() -> bool,
    ) -> bool {
        self.with(page, |record| record.has_mapping(space, address) && condition()) == Some(true)
    }

    /// Removes a mapping whose entry was cleared, or was not written after all. Returns `true` if
    /// the mapping was recorded.
    pub(crate) fn remove_mapping(
        &self,
        page: Frame,
        space: &Arc<Mappings<S>>,
        address: u64,
    ) -> bool {
        let mut records = self.shard(page).lock();
        let Some(record) = records.get_mut(&page) else { return false };
        let mapping = record.mappings.iter().position(|mapping| mapping.is(space, address));
        if let Some(index) = mapping {
            record.mappings.swap_remove(index);
        }
        if record.mappings.is_empty() && matches!(record.owner, Owner::Anonymous) {
            records.remove(&page);
        }
        mapping.is_some()
    }

    /// Records a write to the page through an entry that was cleared, and that no CPU caches any
    /// more.
    pub(crate) fn mark_dirty(&self, page: Frame) {
        self.with(page, |record| record.state.insert(State::DIRTY));
    }

    /// Records that the contents of the page are not needed until the page is written again. Does
    /// nothing if the page is no longer mapped where its marks were cleared.
    pub(crate) fn mark_discardable(
        &self,
        page: Frame,
        space: &Arc<Mappings<S>>,
        address: u64,
        node: usize,
    ) {
        let is_new_on_list = self.with(page, |record| {
            let is_mapped = record.has_mapping(space, address);
            if is_mapped {
                record.state.insert(State::DISCARDABLE);
            }
            is_mapped && record.list()
        });
        if is_new_on_list == Some(true) {
            self.list([(page, node)]);
        }
    }

    /// Transfers the dirty state of a page to the frame that replaces it.
    pub(crate) fn move_dirty(&self, old: Frame, new: Frame) {
        let state = self.with(old, |record| record.state).unwrap_or(State::empty());
        self.with(new, |record| record.state |= state & State::DIRTY);
    }

    /// Records that the contents of the page are needed.
    pub(crate) fn mark_not_discardable(&self, page: Frame) {
        self.with(page, |record| record.state.remove(State::DISCARDABLE));
    }

    /// Removes the record of a frame that no one uses any more.
    pub(crate) fn forget(&self, page: Frame) {
        self.shard(page).lock().remove(&page);
    }

    /// Removes the record of a page that is not mapped, and is not being written out any more, if
    /// `condition` returns `true`. Returns `true` if the record was removed.
    pub(crate) fn forget_if(&self, page: Frame, condition: impl FnOnce(&Page<S>) -> bool) -> bool {
        let mut records = self.shard(page).lock();
        let is_removed = records.get_mut(&page).is_some_and(|record| {
            record.state.remove(State::WRITING);
            record.mappings.is_empty() && condition(record)
        });
        if is_removed {
            records.remove(&page);
        }
        is_removed
    }

    /// Removes and returns up to `count` of the oldest pages from a node's list of pages that were
    /// used once. If this list is not longer than the other one, first moves the oldest pages of
    /// the other list to it. The returned pages are [isolated](Self::has_isolated) until the caller
    /// [puts them back](Self::remove_isolated).
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
        // Count under the lock: a thread that finds the pages removed also finds them counted.
        self.add_isolated(taken);
        inactive.drain(..taken).collect()
    }

    /// Counts pages that the caller is about to reclaim.
    pub(crate) fn add_isolated(&self, count: usize) {
        // Relaxed: the lock of the list orders it.
        self.isolated.fetch_add(count as u64, Relaxed);
    }

    /// Counts a page that was freed.
    pub(crate) fn count_freed(&self) {
        // Relaxed: only a count.
        self.freed.fetch_add(1, Relaxed);
    }

    /// Ends the isolation of pages, which are now free or on their lists.
    pub(crate) fn remove_isolated(&self, count: usize) {
        self.isolated.fetch_sub(count as u64, order(Rule::IsolatedRelease));
    }

    /// Returns `true` if some thread is about to reclaim pages.
    pub(crate) fn has_isolated(&self) -> bool {
        self.isolated.load(order(Rule::IsolatedAcquire)) != 0
    }

    /// Number of pages that all threads together have reclaimed.
    pub(crate) fn freed(&self) -> u64 {
        // Relaxed: only a count.
        self.freed.load(Relaxed)
    }

    /// Adds pages that reclaim has examined to the lists, as the youngest of their age.
    pub(crate) fn put_back(&self, node: usize, pages: impl IntoIterator<Item = (Frame, Age)>) {
        let mut lists = self.lists[node].lock();
        for (page, age) in pages {
            match age {
                Age::Inactive => lists.inactive.push_back(page),
                Age::Active => lists.active.push_back(page),
            }
        }
    }

    /// Number of pages of a node that reclaim could examine.
    pub(crate) fn listed(&self, node: usize) -> usize {
        let lists = self.lists[node].lock();
        lists.inactive.len() + lists.active.len()
    }

    fn shard(&self, page: Frame) -> &Shard<S> {
        &self.shards[(page.0 % SHARDS) as usize]
    }
}

/// The age of a page: used once, or again after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Age {
    Inactive,
    Active,
}

impl<S: System> Page<S> {
    const fn new() -> Self {
        Self { owner: Owner::Anonymous, mappings: Vec::new(), state: State::empty() }
    }

    /// Returns `true` if the page's file was dropped, with all its pages.
    pub(crate) fn is_orphan(&self) -> bool {
        matches!(&self.owner, Owner::File(file, _) if file.strong_count() == 0)
    }

    /// Clears the dirty state before the page is written out. Returns `true` if the page was dirty.
    pub(crate) fn take_dirty(&mut self) -> bool {
        let is_dirty = self.state.contains(State::DIRTY);
        self.state.remove(State::DIRTY);
        is_dirty
    }

    /// Does the same, and marks the page until [`forget_if`](Rmap::forget_if): until then, nothing
    /// else may free it.
    pub(crate) fn begin_writing(&mut self) -> bool {
        let is_dirty = self.take_dirty();
        self.state.set(State::WRITING, is_dirty);
        is_dirty
    }

    fn has_mapping(&self, space: &Arc<Mappings<S>>, address: u64) -> bool {
        self.mappings.iter().any(|mapping| mapping.is(space, address))
    }

    /// Marks the page as listed. Returns `true` if it was not on a list.
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
