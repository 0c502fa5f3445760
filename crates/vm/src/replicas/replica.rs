//! The upper tables of one CPU, and their links to shared tables.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;

use lock_api::Mutex;
use shootdown::Root;

use crate::coherence::Flush;
use crate::format::{EMPTY, Format};
use crate::platform::{EntryAt, Frame, OutOfMemory, Platform};
use crate::rules::{Rule, order};
use crate::sync::AtomicU64;
use crate::system::{Coherent, SpinMutex, System};
use crate::worth::Tally;

/// Number of flushes by other CPUs from which on the links of a CPU may be cut.
const FLUSHES_FREE: u64 = 16;
/// Number of flushes that cost a CPU as much as a fault for a link.
const FLUSHES_PER_LINK: u64 = 4;

/// The upper tables of one CPU.
pub(crate) struct Replica<S: System> {
    pub(crate) cpu: usize,
    root: Frame,
    pub(crate) coherent: Coherent<S>,
    /// The tables between the root and the shared tables.
    uppers: SpinMutex<S, Vec<Frame>>,
    /// The first addresses of the tables that are linked, and of some that are not any more. The
    /// lock guards the links.
    links: SpinMutex<S, BTreeSet<u64>>,
    /// Number of flushes by other CPUs since the links were last cut.
    flushed: AtomicU64,
    /// [`USED`], [`CUTTING`] or [`ABANDONED`].
    state: AtomicU64,
    pub(super) tally: Tally,
}

/// The CPU may have the replica loaded.
const USED: u64 = 0;
/// As `USED`, and a call is cutting the links: the replica cannot be abandoned until it has.
const CUTTING: u64 = 1;
/// The CPU has left the replica, and will not load it again: then nothing that it has cached by the
/// replica's links can be used. No call changes the sharers of its tables on its behalf any more.
const ABANDONED: u64 = 2;

impl<S: System> Replica<S> {
    pub(crate) fn new(cpu: usize, root: Frame, coherent: Coherent<S>) -> Self {
        Self {
            cpu,
            root,
            coherent,
            uppers: Mutex::new(Vec::new()),
            links: Mutex::new(BTreeSet::new()),
            flushed: AtomicU64::new(0),
            state: AtomicU64::new(USED),
            tally: Tally::new(),
        }
    }

    /// Records that the CPU will not load the replica again, unless a cut is in progress. Returns
    /// `true` if this is recorded for the first time.
    pub(super) fn abandon(&self) -> bool {
        let abandoned = order(Rule::AbandonRelease);
        // Relaxed: nothing is done if this fails.
        self.state.compare_exchange(USED, ABANDONED, abandoned, Relaxed).is_ok()
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.state.load(order(Rule::AbandonAcquire)) == ABANDONED
    }

    /// Counts a flush by another CPU.
    pub(crate) fn count_flush(&self) {
        // Relaxed: only a count.
        self.flushed.fetch_add(1, Relaxed);
    }

    pub(crate) const fn root(&self) -> Root {
        Root(self.root.address())
    }

    /// Links a table of the last level at `address`. Returns `true` if it was not linked before.
    pub(crate) fn link(
        &self,
        platform: &S::Platform,
        address: u64,
        table: Frame,
        new_table: impl Fn() -> Result<Frame, OutOfMemory>,
    ) -> Result<bool, OutOfMemory> {
        let link = S::Format::table(table);
        let at = self.make_entry(platform, address, new_table)?;
        if platform.load(at) == link {
            return Ok(false);
        }
        let mut links = self.links.lock();
        links.insert(address & !(S::Format::span(1) - 1));
        platform.add_sharer(table, self.cpu);
        platform.swap(at, link);
        Ok(true)
    }

    /// Returns the entry for the table of `address`, in upper tables that are made if there are
    /// none.
    fn make_entry(
        &self,
        platform: &S::Platform,
        address: u64,
        new_table: impl Fn() -> Result<Frame, OutOfMemory>,
    ) -> Result<EntryAt, OutOfMemory> {
        let mut table = self.root;
        for level in (2..S::Format::LEVELS).rev() {
            let at = EntryAt { table, index: S::Format::index(address, level) };
            table = match S::Format::as_table(platform.load(at)) {
                Some(next) => next,
                None => self.add_upper(platform, at, new_table()?),
            };
        }
        Ok(EntryAt { table, index: S::Format::index(address, 1) })
    }

    /// Links an upper table, or frees it because another thread has linked one. Returns the linked
    /// table.
    fn add_upper(&self, platform: &S::Platform, at: EntryAt, new: Frame) -> Frame {
        match platform.compare_exchange(at, EMPTY, S::Format::table(new)) {
            Ok(_) => {
                self.uppers.lock().push(new);
                new
            }
            Err(found) => {
                platform.free_table(new);
                S::Format::as_table(found).expect("upper tables of a replica stay")
            }
        }
    }

    /// Removes the link to the table of `address`.
    pub(crate) fn unlink(&self, platform: &S::Platform, address: u64) {
        let _links = self.links.lock();
        self.clear(platform, address);
    }

    /// Clears the entry for the table of `address`, and returns the table, if one was linked. The
    /// links must be locked.
    fn clear(&self, platform: &S::Platform, address: u64) -> Option<Frame> {
        let mut table = self.root;
        for level in (2..S::Format::LEVELS).rev() {
            let at = EntryAt { table, index: S::Format::index(address, level) };
            table = S::Format::as_table(platform.load(at))?;
        }
        let at = EntryAt { table, index: S::Format::index(address, 1) };
        S::Format::as_table(platform.swap(at, EMPTY))
    }

    /// Returns `true` if flushes by other CPUs have cost more than it costs to make the links
    /// again. Threads that have used the tables on this CPU have probably moved to other CPUs.
    pub(crate) fn is_flushed_often(&self) -> bool {
        // Relaxed: only a hint.
        let flushed = self.flushed.load(Relaxed);
        flushed >= FLUSHES_FREE && flushed >= FLUSHES_PER_LINK * self.links.lock().len() as u64
    }

    /// Removes all links, and then this CPU from the sharers of their tables. Does nothing if the
    /// CPU has abandoned the replica: it has loaded the canonical tree since then.
    ///
    /// The CPU drops what it has cached by the links before it is no sharer any more. An operation
    /// that unhooks one of the tables waits for the lock before it frees the table, because the
    /// replica is not abandoned before the cut is complete. Otherwise the table could become one of
    /// another space, which this CPU links, and the cut would remove the CPU from its sharers.
    pub(crate) fn cut(&self, coherence: &S::Coherence, platform: &S::Platform) {
        let mut links = self.links.lock();
        // Relaxed: the lock orders cuts.
        let abandoned = order(Rule::AbandonAcquire);
        if self.state.compare_exchange(USED, CUTTING, Relaxed, abandoned).is_err() {
            return;
        }
        let linked = core::mem::take(&mut *links).into_iter();
        let tables: Vec<Frame> =
            linked.filter_map(|address| self.clear(platform, address)).collect();
        coherence.drop_replica(&self.coherent);
        for table in tables {
            platform.remove_sharer(table, self.cpu);
        }
        // Relaxed: only a count.
        self.flushed.store(0, Relaxed);
        self.state.store(USED, order(Rule::CutRelease));
    }

    /// Removes and returns the replica's own tables. Call this when the space ends.
    pub(crate) fn take_tables(&self) -> Vec<Frame> {
        let mut tables = core::mem::take(&mut *self.uppers.lock());
        tables.push(self.root);
        tables
    }
}
