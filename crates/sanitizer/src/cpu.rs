//! One CPU: its shadow TLB behind a lock, and in front of it a cache that its own accesses read
//! without a lock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;

use crate::arch::Context;
use crate::invalidation::{Invalidation, Pages};
use crate::report::{Act, Change, Deed, Later, Mode, Moment, Report, Totals};
use crate::shadow::{Entry, Tlb};
use crate::speculation::Removed;
use crate::translation::{Access, Kind, Slot, Tag};

/// Slots of the cache: 2 MiB of pages.
const FAST: usize = 512;
/// A page that no address is on.
const NO_PAGE: u64 = u64::MAX;
/// Invalidations that are remembered for reports.
const RECENT: usize = 16;

/// A kind of access, as the cache records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A load.
    Load = 1,
    /// A store.
    Store = 2,
    /// An instruction fetch.
    Fetch = 4,
}

impl Use {
    /// The access that an entry must allow.
    pub(crate) const fn needs(self) -> Access {
        match self {
            Self::Load => Access::READ,
            Self::Store => Access::WRITE,
            Self::Fetch => Access::EXECUTE,
        }
    }
}

/// An entry of another CPU that a store of this CPU has changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changed {
    pub(crate) cpu: usize,
    pub(crate) tag: Tag,
    pub(crate) slot: Slot,
    pub(crate) frame: u64,
    pub(crate) change: Change,
}

/// The state of a CPU that its lock protects.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) tlb: Tlb,
    /// Entries that the page tables do not have any more, and that the CPU has not used.
    pub(crate) unused: Tlb,
    /// By tag, the root under which the CPU may hold unused entries, and when it left the root.
    walked: HashMap<u32, (u64, Option<u64>)>,
    pub(crate) context: Context,
    /// What an instruction that loads a root has invalidated, until the root is known.
    pub(crate) loading: Option<Invalidation>,
    /// The last invalidations: when, by which CPU.
    recent: VecDeque<(Moment, usize, Invalidation)>,
    /// Entries that this CPU's stores have changed since the last settling.
    pub(crate) changed: Vec<Changed>,
    /// The counts of this CPU alone.
    pub(crate) counts: Totals,
}

/// A CPU. Other CPUs take its lock where an event of theirs concerns its entries.
#[derive(Debug)]
pub(crate) struct Cpu {
    /// Pages that the CPU may access without an event: the page's number, and the uses. The CPU
    /// itself writes a slot, under the lock; any CPU clears slots, under the lock. The CPU reads
    /// without the lock: if it observes a clear late, it behaves as if the access had come before.
    fast: Box<[AtomicU64; FAST]>,
    /// The frame of each slot that allows stores. Written as `fast` is.
    stored: Box<[AtomicU64; FAST]>,
    /// The page of the last store into a [gone](crate::frames::Frames::is_gone) frame, and that
    /// frame: kernels clear pages word by word. Written and read as `fast` is.
    gone: (AtomicU64, AtomicU64),
    /// `true` if an entry is marked and not reported.
    pub(crate) attention: AtomicBool,
    /// `true` if the CPU has run user code with translation on.
    pub(crate) ran_user_code: AtomicBool,
    state: Mutex<State>,
}

impl Default for Cpu {
    fn default() -> Self {
        Self {
            fast: Box::new([const { AtomicU64::new(0) }; FAST]),
            stored: Box::new([const { AtomicU64::new(0) }; FAST]),
            gone: (AtomicU64::new(NO_PAGE), AtomicU64::new(0)),
            attention: AtomicBool::new(false),
            ran_user_code: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }
}

impl Cpu {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fast_slot(&self, page: u64) -> &AtomicU64 {
        &self.fast[page as usize % FAST]
    }

    /// Returns `true` if this use of the address is known to be no event.
    #[inline]
    pub(crate) fn is_fast(&self, address: u64, wanted: Use) -> bool {
        let page = address >> 12;
        let found = self.fast_slot(page).load(Ordering::Relaxed);
        found >> 3 == page & (u64::MAX >> 3) && found & wanted as u64 != 0
    }

    /// Records that a use of the address, which is in this frame, is no event. The caller has the
    /// lock.
    pub(crate) fn set_fast(&self, address: u64, allowed: Use, frame: u64) {
        let page = address >> 12;
        if allowed == Use::Store {
            self.stored[page as usize % FAST].store(frame, Ordering::Relaxed);
        }
        let slot = self.fast_slot(page);
        let found = slot.load(Ordering::Relaxed);
        let others = if found >> 3 == page { found & 7 } else { 0 };
        slot.store(page << 3 | others | allowed as u64, Ordering::Relaxed);
    }

    /// Makes the next use of every address an event. The caller has the lock.
    pub(crate) fn clear_fast(&self) {
        for slot in self.fast.iter() {
            slot.store(0, Ordering::Relaxed);
        }
        self.gone.0.store(NO_PAGE, Ordering::Relaxed);
    }

    /// Makes the next store into each of these frames an event. The caller has the lock.
    pub(crate) fn observe_stores(&self, frames: &[u64]) {
        for (slot, stored) in self.fast.iter().zip(self.stored.iter()) {
            if frames.contains(&stored.load(Ordering::Relaxed)) {
                slot.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Records a store of the kernel into a gone frame. The caller has the lock.
    pub(crate) fn set_gone(&self, address: u64, physical: u64) {
        self.gone.1.store(physical >> 12 << 12, Ordering::Relaxed);
        self.gone.0.store(address >> 12, Ordering::Relaxed);
    }

    /// Returns the physical address if the page had the last store into a gone frame. Only the
    /// CPU's own thread writes both words, so it reads those of one store.
    pub(crate) fn gone_at(&self, address: u64) -> Option<u64> {
        let is_same = self.gone.0.load(Ordering::Relaxed) == address >> 12;
        is_same.then(|| self.gone.1.load(Ordering::Relaxed) + address % 4096)
    }

    /// Executes an invalidation. The caller has the lock.
    pub(crate) fn invalidate(
        &self,
        state: &mut State,
        at: Moment,
        by: usize,
        invalidation: &Invalidation,
    ) {
        // Before the invalidation, which may drop the last large page.
        let has_large_pages = state.tlb.has_large_pages();
        let before = state.pending();
        state.tlb.invalidate(invalidation);
        state.unused.invalidate(invalidation);
        state.counts.dropped_in_time += (before - state.pending()) as u64;
        if invalidation.pages == Pages::All {
            let dropped = |tag: &u32| invalidation.tags.include(Tag::Space(*tag));
            state.walked.retain(|tag, (_, left)| left.is_none() || !dropped(tag));
        }
        state.counts.invalidations += 1;
        if state.recent.len() == RECENT {
            state.recent.pop_front();
        }
        state.recent.push_back((at, by, *invalidation));
        self.gone.0.store(NO_PAGE, Ordering::Relaxed);
        match invalidation.pages {
            // Pages are mostly small ones, and a larger one covers all slots.
            Pages::Range(first, last) if first == last && !has_large_pages => {
                self.fast_slot(first >> 12).store(0, Ordering::Relaxed);
            }
            _ => self.clear_fast(),
        }
    }
}

impl State {
    /// Empties the TLB.
    pub(crate) fn reset(&mut self) {
        (self.tlb, self.unused) = (Tlb::default(), Tlb::default());
        self.walked.clear();
    }

    /// Number of pending entries.
    pub(crate) fn pending(&self) -> usize {
        self.tlb.pending() + self.unused.pending()
    }

    /// The CPU leaves its tables for others.
    pub(crate) fn select(&mut self, context: Context, now: u64) {
        let root = context.halves[0].root;
        let is_same = (self.context.tag, self.context.halves[0].root) == (context.tag, root);
        if let Some((_, left)) = self.walked.get_mut(&self.context.tag)
            && !is_same
        {
            left.get_or_insert(now);
        }
        // What was added since the invalidation is of the old root: the CPU has not left it before.
        if let Some(invalidation) = self.loading.take()
            && !is_same
        {
            self.unused.invalidate(&invalidation);
        }
        if context.is_on {
            self.walked.insert(context.tag, (root, None));
        }
        self.context = context;
    }

    /// Keeps the entry if the CPU may hold it without a use. Returns its tag.
    pub(crate) fn speculate(&mut self, removed: &Removed, change: Change) -> Option<Tag> {
        let may_hold = |&(root, left): &(u64, Option<u64>)| {
            root == removed.root && left.is_none_or(|left| left > removed.since)
        };
        let (&tag, _) = self.walked.iter().find(|(_, walked)| may_hold(walked))?;
        let is_kept = !self.tlb.has(tag, removed) && self.unused.add_unused(tag, removed, change);
        is_kept.then_some(Tag::Space(tag))
    }

    /// The report of an entry with an act.
    pub(crate) fn report(
        &self,
        (cpu, at, in_user_mode, is_used): (usize, Moment, bool, bool),
        (tag, slot, entry, act): (Tag, &Slot, &Entry, Act),
    ) -> Report {
        let since = entry.change.map_or(entry.filled.time, |change| change.at.time);
        let later = self.recent.iter().filter(|(at, ..)| at.time > since);
        let later = later.filter_map(|&(at, by, invalidation)| {
            Some(Later { at, by, left: invalidation.drops(tag, slot).err()? })
        });
        Report {
            mode: mode(slot, act, entry.is_unused),
            cpu,
            in_user_mode,
            is_used,
            at,
            page: slot.start,
            bytes: slot.bytes(),
            tag: match tag {
                Tag::Global => None,
                Tag::Space(tag) => Some(tag),
            },
            frame: entry.frame,
            is_writable: entry.access.has(Access::WRITE),
            filled: entry.filled,
            change: entry.change,
            act,
            change_callers: Vec::new(),
            act_callers: Vec::new(),
            later: later.collect(),
            mark: 0,
        }
    }
}

/// The mode that reports an entry with an act.
pub(crate) fn mode(slot: &Slot, act: Act, is_unused: bool) -> Mode {
    match (slot.kind, act.deed) {
        _ if is_unused => Mode::Speculation,
        (Kind::Table, _) => Mode::Tables,
        (_, Deed::Settled(_)) => Mode::Permission,
        _ => Mode::Reuse,
    }
}
