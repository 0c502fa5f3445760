//! An address space, as the engine sees it.

use core::fmt;

use crate::journal::Journal;
use crate::machine::{Machine, Root};
use crate::presence::SpaceId;
use crate::roster::Roster;
use crate::stats::{Counter, SpaceCounters, SpaceStats};

/// One address space: its root, how often it was flushed, and who may be using it.
///
/// Made by [`Shootdown::space`](crate::Shootdown::space); lives in the kernel's own structure of
/// the address space. It must neither move nor be dropped while a CPU has it loaded, lazily
/// included: see [`Here::switch`](crate::Here::switch).
///
/// # Size
///
/// 448 bytes up to 64 CPUs, 512 up to 192 and 1536 for 4096: one line that flushes write and
/// returning CPUs read, one of counters, four lines of log, and two [sets of CPUs](crate::roster).
#[repr(C, align(64))]
pub struct Space<M: Machine> {
    /// First, so that a CPU that returns finds generation and log side by side.
    pub(crate) journal: Journal<M>,
    id: SpaceId,
    root: Root,
    pub(crate) counters: SpaceCounters,
    /// Looks in vain since the roster last moved.
    pub(crate) vain_looks: Counter,
    pub(crate) roster: Roster<M>,
}

impl<M: Machine> Space<M> {
    pub(crate) fn new(id: SpaceId, root: Root) -> Self {
        Self {
            journal: Journal::new(),
            id,
            root,
            counters: SpaceCounters::default(),
            vain_looks: Counter::default(),
            roster: Roster::new(),
        }
    }

    /// The id, which no other space ever has.
    #[must_use]
    #[inline]
    pub const fn id(&self) -> SpaceId {
        self.id
    }

    /// The root of the page tables.
    #[must_use]
    #[inline]
    pub const fn root(&self) -> Root {
        self.root
    }

    /// What flushes of this space did so far.
    pub fn stats(&self, machine: &M) -> SpaceStats {
        let stats = self.counters.read();
        let flushes = self.journal.generation(machine);
        SpaceStats { flushes_ranged: flushes.saturating_sub(stats.flushes_full), ..stats }
    }
}

impl<M: Machine> fmt::Debug for Space<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Space")
            .field("id", &self.id.number())
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}
