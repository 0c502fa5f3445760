//! Page tables that are out of use, and that a CPU may still walk.
//!
//! The tables of a live space are in that space's own quarantine, grouped by the flush that they
//! were unhooked with. The tables of a dead space are here, grouped by root.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use lock_api::Mutex;
use shootdown::{Quarantine, Root};

use crate::platform::Frame;
use crate::system::{SpinMutex, System};

/// Maximum number of quarantined tables of one live space: 2 MiB, as many as one operation gathers
/// at most. Beyond that, CPUs that are lazy on the space are interrupted.
pub(crate) const SPACE_QUARANTINE_MAX: usize = 512;

/// Maximum number of quarantined tables of all spaces together, unless the kernel [chooses
/// another](crate::Vm::with_quarantined_tables_max): 4 MiB. Beyond that, lazy CPUs are interrupted.
pub const QUARANTINED_TABLES_MAX: u64 = 1024;

/// Number of parts of the dead spaces, each with a lock of its own. An exit locks one three times.
/// With one part, a process start on 96 CPUs of the simulated `xeon-2s` takes three times as long,
/// under every design. More CPUs than parts share locks, which costs a short wait.
const PARTS: usize = 64;

/// The dead spaces of some roots, in cache lines of their own.
#[repr(align(64))]
struct Part<S: System>(SpinMutex<S, BTreeMap<u64, Dead>>);

/// The tables of dead spaces, and the number of all quarantined tables.
pub(crate) struct QuarantinedTables<S: System> {
    /// By a hash of the root.
    dead: Box<[Part<S>]>,
    count: AtomicU64,
    peak: AtomicU64,
    overflows: AtomicU64,
}

/// Tables of a dead space, to which several roots lead.
pub(crate) type SharedTables = Arc<Vec<Frame>>;

/// The tables of one dead space, or of a replica of its upper tables.
struct Dead {
    tables: Vec<Frame>,
    /// Tables to which other roots lead also.
    shared: Option<SharedTables>,
    counted: usize,
}

/// Numbers of page tables that were quarantined because a CPU could still walk them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuarantineStats {
    /// Number of tables that are quarantined now.
    pub now: u64,
    /// Greatest number of tables that were quarantined at any time.
    pub peak: u64,
    /// Number of times that lazy CPUs were interrupted because too many tables were quarantined.
    pub overflows: u64,
}

impl<S: System> QuarantinedTables<S> {
    pub(crate) fn new() -> Self {
        Self {
            dead: (0..PARTS).map(|_| Part(Mutex::new(BTreeMap::new()))).collect(),
            count: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            overflows: AtomicU64::new(0),
        }
    }

    /// The dead spaces that a root is one of.
    fn part(&self, root: Root) -> &SpinMutex<S, BTreeMap<u64, Dead>> {
        // Fibonacci hashing: the upper bits depend on all bits of the root.
        let hash = root.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.dead[(hash >> 32) as usize % PARTS].0
    }

    /// Counts tables that are quarantined from now on.
    pub(crate) fn add(&self, more: usize) {
        let count = self.count.fetch_add(more as u64, Relaxed) + more as u64;
        self.peak.fetch_max(count, Relaxed);
    }

    /// Counts tables that are no longer quarantined.
    pub(crate) fn remove(&self, count: usize) {
        self.count.fetch_sub(count as u64, Relaxed);
    }

    pub(crate) fn count_overflow(&self) {
        self.overflows.fetch_add(1, Relaxed);
    }

    pub(crate) fn stats(&self) -> QuarantineStats {
        QuarantineStats {
            now: self.count.load(Relaxed),
            peak: self.peak.load(Relaxed),
            overflows: self.overflows.load(Relaxed),
        }
    }

    /// Counts tables of a space that is about to be retired, and to which several roots lead. Keep
    /// them with [each of the roots](Self::keep_dead).
    pub(crate) fn share_dead(&self, tables: Vec<Frame>) -> SharedTables {
        self.add(tables.len());
        Arc::new(tables)
    }

    /// Keeps the tables of a space that is about to be retired. `counted` of them were quarantined
    /// while the space was alive, and are counted already.
    pub(crate) fn keep_dead(
        &self,
        root: Root,
        tables: Vec<Frame>,
        counted: usize,
        shared: Option<SharedTables>,
    ) {
        self.part(root).lock().insert(root.0, Dead { tables, shared, counted });
    }

    /// Counts all tables of a space that was retired. If they are freed by now, no CPU could walk
    /// them, and they are not counted.
    pub(crate) fn count_dead(&self, root: Root) {
        if let Some(dead) = self.part(root).lock().get_mut(&root.0) {
            self.add(dead.tables.len() - dead.counted);
            dead.counted = dead.tables.len();
        }
    }

    /// Removes and returns the tables of a dead space that no CPU can walk any more.
    pub(crate) fn take_dead(&self, root: Root) -> Vec<Frame> {
        let Some(dead) = self.part(root).lock().remove(&root.0) else { return Vec::new() };
        self.remove(dead.counted);
        let mut tables = dead.tables;
        // The last of the roots frees them.
        if let Some(shared) = dead.shared.and_then(Arc::into_inner) {
            self.remove(shared.len());
            tables.extend(shared);
        }
        tables
    }
}

/// The quarantined tables of one live space.
pub(crate) type SpaceQuarantine<S> = SpinMutex<S, Quarantine<Vec<Frame>>>;
