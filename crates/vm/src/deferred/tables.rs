//! Page tables that are out of use, and that a CPU may still walk: where they are until none can.
//!
//! There are two kinds. Those of a space that lives are in the space's quarantine, by the flush
//! that they were unhooked with. Those of a dead space are here, all together, by its root.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use lock_api::Mutex;
use shootdown::{Horizon, Quarantine, Root};

use crate::coherence::Coherence;
use crate::format::Format;
use crate::platform::{Frame, Platform};
use crate::space::{AddressSpace, Vm};

/// More than so many are not held back, of one space that lives: 2 MiB, for as many as one
/// operation gathers at most. Beyond that, CPUs that are lazy on it are interrupted.
pub(crate) const QUARANTINED_MAX: usize = 512;

/// More than so many are not held back, of all spaces together, unless the kernel says
/// [otherwise](crate::Vm::with_held_tables_max): 4 MiB. Beyond that, lazy CPUs are interrupted.
pub const HELD_TABLES_MAX: u64 = 1024;

/// The tables of dead spaces, and how many are held back in all.
pub(crate) struct HeldTables<P: Platform> {
    dead: Mutex<P::SpinLock, BTreeMap<u64, Dead>>,
    count: AtomicU64,
    peak: AtomicU64,
    interrupted: AtomicU64,
}

/// The tables of one dead space, and how many of them are counted.
struct Dead {
    tables: Vec<Frame>,
    counted: usize,
}

/// How many page tables were held back because a CPU could still walk them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldStats {
    /// Now.
    pub now: u64,
    /// At most, at any time.
    pub peak: u64,
    /// How often there were too many, and lazy CPUs were interrupted for it.
    pub overflows: u64,
}

impl<P: Platform> HeldTables<P> {
    pub(crate) fn new() -> Self {
        Self {
            dead: Mutex::new(BTreeMap::new()),
            count: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            interrupted: AtomicU64::new(0),
        }
    }

    /// So many more are held back.
    pub(crate) fn add(&self, count: usize) {
        let held = self.count.fetch_add(count as u64, Relaxed) + count as u64;
        self.peak.fetch_max(held, Relaxed);
    }

    /// So many less.
    pub(crate) fn remove(&self, count: usize) {
        self.count.fetch_sub(count as u64, Relaxed);
    }

    pub(crate) fn count_overflow(&self) {
        self.interrupted.fetch_add(1, Relaxed);
    }

    pub(crate) fn stats(&self) -> HeldStats {
        HeldStats {
            now: self.count.load(Relaxed),
            peak: self.peak.load(Relaxed),
            overflows: self.interrupted.load(Relaxed),
        }
    }

    /// Keeps the tables of a space that is about to be retired. `counted` of them are counted
    /// already, for they were held back while it lived.
    pub(crate) fn keep_dead(&self, root: Root, tables: Vec<Frame>, counted: usize) {
        self.dead.lock().insert(root.0, Dead { tables, counted });
    }

    /// Counts all tables of a space that was retired. If they are free by now, nobody held them.
    pub(crate) fn count_dead(&self, root: Root) {
        if let Some(dead) = self.dead.lock().get_mut(&root.0) {
            self.add(dead.tables.len() - dead.counted);
            dead.counted = dead.tables.len();
        }
    }

    /// Takes out the tables of a dead space that nobody can walk any more.
    pub(crate) fn take_dead(&self, root: Root) -> Vec<Frame> {
        let Some(dead) = self.dead.lock().remove(&root.0) else { return Vec::new() };
        self.remove(dead.counted);
        dead.tables
    }
}

impl<P: Platform, C: Coherence, F: Format> Vm<P, C, F> {
    /// Frees the page tables of dead spaces that this CPU was the last to hold; and what was put
    /// aside until CPUs had come to its flush.
    ///
    /// To be called where memory can be freed, some time after a switch of address spaces, or
    /// whatever else [lets go](Coherence::leave) of one: best when the CPU goes idle, for that it
    /// was the last is no fault of the thread that runs next; but without delay if there are
    /// [many](Self::holds_many). Costs next to nothing if there are none.
    pub fn bury(&self) {
        self.free_parked();
        while let Some(root) = self.coherence.take_dead() {
            self.free_dead(root);
        }
    }

    /// Whether half of the page tables that may be held back are.
    pub fn holds_many(&self) -> bool {
        self.held.stats().now > self.held_tables_max / 2
    }

    /// How many page tables are held back because a CPU could still walk them, or because they
    /// have not been [buried](Self::bury) yet.
    pub fn held_tables(&self) -> HeldStats {
        self.held.stats()
    }

    fn holds_too_many(&self) -> bool {
        self.held.stats().now > self.held_tables_max
    }

    pub(crate) fn free_dead(&self, root: Root) {
        for table in self.held.take_dead(root) {
            self.platform.free_table(table);
        }
    }

    /// Has lazy CPUs let go of dead spaces, if too many tables are held back.
    pub(crate) fn bound_held(&self) {
        if self.holds_too_many() {
            self.held.count_overflow();
            self.coherence.reap();
            self.bury();
        }
    }
}

impl<P: Platform, C: Coherence, F: Format> AddressSpace<P, C, F> {
    /// Frees tables that were unhooked, now or as soon as nobody can walk them any more; and those
    /// that were held back until now.
    pub(crate) fn free_tables(&self, tables: Vec<Frame>, horizon: Horizon) {
        // First, for it makes room.
        if self.has_quarantined.load(Relaxed) {
            self.free_cleared(horizon);
        }
        if tables.is_empty() || horizon.is_clear() {
            self.free_all(tables);
        } else {
            self.hold_tables(tables, horizon);
        }
    }

    fn hold_tables(&self, tables: Vec<Frame>, horizon: Horizon) {
        let count = tables.len();
        self.vm.held.add(count);
        if let Err(tables) = self.put_in_quarantine(tables, horizon) {
            self.expel();
            self.vm.held.remove(count);
            return self.free_all(tables);
        }
        // Dead spaces first: they are more to be had for an interrupt.
        self.vm.bound_held();
        if self.vm.holds_too_many() {
            self.expel();
        }
    }

    /// Gives tables back for which there is no room.
    fn put_in_quarantine(&self, tables: Vec<Frame>, horizon: Horizon) -> Result<(), Vec<Frame>> {
        let mut quarantine = self.quarantine.lock();
        // Under the lock, as where it is taken back: else that could come later, and find nothing.
        self.has_quarantined.store(true, Relaxed);
        quarantine.hold(horizon, tables.len(), tables)
    }

    /// Has lazy CPUs forget the way to tables in quarantine, and frees those.
    fn expel(&self) {
        self.vm.held.count_overflow();
        let horizon = self.vm.coherence.expel(&self.mappings.coherent);
        self.free_cleared(horizon);
    }

    fn free_cleared(&self, horizon: Horizon) {
        loop {
            let mut quarantine = self.quarantine.lock();
            let Some((count, tables)) = quarantine.take_cleared(horizon) else {
                self.has_quarantined.store(quarantine.table_count() != 0, Relaxed);
                return;
            };
            drop(quarantine);
            self.vm.held.remove(count);
            self.free_all(tables);
        }
    }

    /// All tables that are held back for this space.
    pub(crate) fn take_quarantined(&self) -> Vec<Frame> {
        let mut quarantine = self.quarantine.lock();
        let mut all = Vec::new();
        while let Some((_, tables)) = quarantine.take_any() {
            all.extend(tables);
        }
        all
    }

    fn free_all(&self, tables: Vec<Frame>) {
        for table in tables {
            self.vm.platform.free_table(table);
        }
    }
}

/// The tables of one space that lives.
pub(crate) type Quarantined<P> = Mutex<<P as Platform>::SpinLock, Quarantine<Vec<Frame>>>;

impl<P: Platform> fmt::Debug for HeldTables<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stats().fmt(f)
    }
}
