//! An address space, as the engine sees it.

#![expect(unsafe_code, reason = "a dead space is a pointer: it may be freed at any moment")]

use core::fmt;
use core::marker::PhantomPinned;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;

use crate::cpumask::CpuMask;
use crate::flush_log::FlushLog;
use crate::ids::{Root, SpaceId};
use crate::machine::Machine;
use crate::memory::{Word, order};
use crate::rules::Rule;
use crate::stats::{Counter, SpaceCounters, SpaceStats};

/// The reference that the users of a space hold together while it is alive: more than the number of
/// CPUs.
pub(crate) const ALIVE: u64 = 1 << 32;

/// One address space: its root, how often it was flushed, and who may be using it.
///
/// Made by [`Shootdown::space`](crate::Shootdown::space); lives in the kernel's own structure of
/// the address space. It must neither move nor be dropped while a CPU has it loaded, lazily
/// included, and nothing may hold a `&mut` to it then, nor to what contains it: other CPUs read and
/// write it by shared references all the time. See [`PinnedCpu::switch`](crate::PinnedCpu::switch).
///
/// # Size
///
/// 448 bytes up to 192 CPUs, and 1408 for 4096. In lines of 64 bytes: four of log,
/// which flushes write and CPUs that have missed something read; one with generation, id, root and
/// counters, which flushes write and CPUs that switch in read; then two [sets of CPUs][`CpuBits`],
/// written when a CPU comes for the first time.
///
/// [`CpuBits`]: crate::CpuBits
#[repr(C, align(64))]
pub struct Space<M: Machine> {
    pub(crate) log: FlushLog<M>,
    id: SpaceId,
    root: Root,
    /// The number of the engine that made it.
    pub(crate) engine: u32,
    pub(crate) counters: SpaceCounters,
    /// How many looks at CPUs had been in vain when the cpumask last moved.
    pub(crate) looks_at_move: Counter,
    /// Who has a say in when the space is freed: [`ALIVE`](crate::retire) for those who use it,
    /// and one for each CPU that has yet to let go of it. Not written before it dies, unless lazy
    /// CPUs are [counted](crate::Lifetime::Counted).
    pub(crate) refs: M::Word,
    /// Its [global](crate::Tagging::Global) tag. See `tag/global.rs`.
    pub(crate) tag: M::Word,
    /// What flushes up to this generation covered, nobody has, or a broadcast that its issuer waits
    /// for takes it away.
    pub(crate) clean_everywhere: M::Word,
    pub(crate) cpumask: CpuMask<M, M::CpuBits>,
    /// How many batches hold back something that they took. See `reclaim.rs`.
    pub(crate) batched: M::Word,
    /// CPUs keep its address.
    _pinned: PhantomPinned,
}

impl<M: Machine> Space<M> {
    pub(crate) fn new(engine: u32, id: SpaceId, root: Root) -> Self {
        Self {
            log: FlushLog::new(),
            id,
            root,
            engine,
            counters: SpaceCounters::default(),
            looks_at_move: Counter::default(),
            refs: M::Word::new(ALIVE),
            tag: M::Word::new(0),
            clean_everywhere: M::Word::new(0),
            cpumask: CpuMask::new(),
            batched: M::Word::new(0),
            _pinned: PhantomPinned,
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
        let flushes = self.log.generation(machine);
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

/// With [`Lifetime::Counted`](crate::Lifetime::Counted): a CPU goes lazy on the space, and takes a
/// reference.
///
/// Relaxed: the users of the space still hold theirs, so that no reference can be the last before
/// they drop it, which comes after this.
#[inline]
pub(crate) fn take_lazy_ref<M: Machine>(space: &Space<M>) {
    space.refs.fetch_add(1, Relaxed);
}

/// With [`Lifetime::Counted`](crate::Lifetime::Counted): the CPU comes back, and drops its
/// reference.
#[inline]
pub(crate) fn drop_lazy_ref<M: Machine>(machine: &M, space: &Space<M>) {
    let was_last = drop_ref(machine, NonNull::from(space));
    debug_assert!(!was_last, "no CPU comes back to a dead space that is counted");
}

/// Drops one reference to a space. Returns whether it was the last one: then the space is the
/// caller's.
///
/// See [`Rule::DropRefRelease`].
#[inline]
pub(crate) fn drop_ref<M: Machine>(machine: &M, space: NonNull<Space<M>>) -> bool {
    // SAFETY: the space is there as long as there is a reference to it, and this one is ours. The
    // Rust reference that the call is made by does not outlive the operation, and points to a word
    // that may change at any time, as in `Arc`.
    let refs = unsafe { &(*space.as_ptr()).refs };
    // Minus one.
    let was_last = refs.fetch_add(u64::MAX, order(machine, Rule::DropRefRelease)) == 1;
    if was_last {
        // Acquires all others, which were dropped before.
        refs.load(order(machine, Rule::DropRefAcquire));
    }
    was_last
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use super::*;
    use crate::soft::{Host, Soft};
    use core::mem::{offset_of, size_of};

    type Small = Space<Soft<Host>>;

    #[test]
    fn what_a_switch_reads_shares_a_line() {
        let generation = offset_of!(Small, log) + offset_of!(FlushLog<Soft<Host>>, generation);
        assert_eq!(generation, 256);
        for offset in [generation, offset_of!(Small, id), offset_of!(Small, root)] {
            assert_eq!(offset / 64, 4);
        }
        let counters = offset_of!(Small, counters);
        // What flushes count is there, too; what follows is written when the cpumask moves.
        assert!(counters + size_of::<SpaceCounters>() <= 320);
        assert!(offset_of!(Small, cpumask) >= 320);
    }
}
