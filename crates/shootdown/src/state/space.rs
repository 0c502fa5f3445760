//! The engine's part of an address space.

#![expect(unsafe_code, reason = "a dead space is a pointer, because it may be freed at any time")]

use core::fmt;
use core::marker::PhantomPinned;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::base::ids::{Root, SpaceId, Tag};
use crate::base::memory::{Word, order};
use crate::base::rules::Rule;
use crate::parts::cpumask::CpuMask;
use crate::parts::flush_log::FlushLog;
use crate::parts::stats::{Counter, SpaceCounters, SpaceStats};
use crate::state::machine::Machine;

/// The references that a living space has on behalf of its users: more than the number of CPUs, so
/// that the count cannot reach zero before the space is retired.
pub(crate) const ALIVE: u64 = 1 << 32;

/// The `engine` of a [vacant](Space::vacant) space. No engine has this id.
const NO_ENGINE: u32 = u32::MAX;

/// An address space: its root, its generation and flush log, and the CPUs that may be using it.
///
/// [`Shootdown::space`](crate::Shootdown::space) makes it. Put it into the kernel's own structure
/// of the address space.
///
/// While a CPU has the space loaded, lazily included, the space must neither move nor be dropped,
/// and no `&mut` to it or to a structure that contains it may exist: other CPUs read and write the
/// space through shared references at any time. See
/// [`PinnedCpu::switch`](crate::PinnedCpu::switch).
///
/// # Size
///
/// 448 bytes up to 128 CPUs, and 1472 bytes for 4096 CPUs. The cache lines of 64 bytes are:
///
/// - four with the log, which flushes write, and CPUs that have missed a flush read;
/// - one with generation, id, root and counters, which flushes write, and CPUs that switch in read;
/// - one with words that broadcasts, trims and the space's end write;
/// - tag and [sets of CPUs](crate::CpuBits), which flushes read, and which a CPU writes when it
///   first uses the space. If broadcasts wrote a word of these lines, each flush would wait for
///   them several times.
#[repr(C, align(64))]
pub struct Space<M: Machine> {
    pub(crate) log: FlushLog<M>,
    id: SpaceId,
    /// Atomic, because other CPUs switch to the space while the kernel replaces it.
    root: AtomicU64,
    /// The id of the engine that made the space.
    pub(crate) engine: u32,
    pub(crate) counters: SpaceCounters,
    /// Number of wasted probes when the cpumask was last trimmed.
    pub(crate) wasted_at_trim: Counter,
    /// References to the space: [`ALIVE`] on behalf of its users, and one for each CPU that must
    /// drop the space before it can be freed. Not written before the space dies, unless lazy CPUs
    /// are [counted](crate::Lifetime::Counted).
    pub(crate) refs: M::Word,
    /// Every flush up to this generation is complete on all CPUs, or will be once a broadcast that
    /// its issuer is still waiting for has finished.
    pub(crate) clean_everywhere: M::Word,
    /// Number of batches that have unmapped pages of this space and not yet flushed them. See
    /// `reclaim.rs`.
    pub(crate) batched: M::Word,
    _read_by_flushes: [Line; 0],
    /// The space's [global](crate::Tagging::Global) tag (see `tag/global.rs`), or its
    /// [assigned](crate::Tagging::Assigned) one.
    pub(crate) tag: M::Word,
    pub(crate) cpumask: CpuMask<M, M::CpuBits>,
    /// The space must not move, because CPUs store its address.
    _pinned: PhantomPinned,
}

/// Begins a cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line;

impl<M: Machine<Word = AtomicU64>> Space<M> {
    /// A vacant space, which is the initial value of a static, or of an element of a table of
    /// address spaces. No engine has made it: assign the result of
    /// [`Shootdown::space`](crate::Shootdown::space) to it before its first use.
    #[must_use]
    pub const fn vacant() -> Self {
        Self {
            log: FlushLog::new(),
            id: SpaceId(0),
            root: AtomicU64::new(0),
            engine: NO_ENGINE,
            counters: SpaceCounters::new(),
            wasted_at_trim: Counter::new(),
            refs: AtomicU64::new(ALIVE),
            clean_everywhere: AtomicU64::new(0),
            batched: AtomicU64::new(0),
            _read_by_flushes: [],
            tag: AtomicU64::new(0),
            cpumask: CpuMask::new(),
            _pinned: PhantomPinned,
        }
    }

    /// Makes a space in `place`, from a constant, without a copy on the stack.
    pub(crate) fn init(
        place: &mut MaybeUninit<Self>,
        engine: u32,
        id: SpaceId,
        root: Root,
    ) -> &mut Self {
        let space = place.write(const { Self::vacant() });
        (space.engine, space.id, space.root) = (engine, id, AtomicU64::new(root.0));
        space
    }
}

impl<M: Machine> Space<M> {
    pub(crate) fn new(engine: u32, id: SpaceId, root: Root) -> Self {
        Self {
            log: FlushLog::default(),
            id,
            root: AtomicU64::new(root.0),
            engine,
            counters: SpaceCounters::new(),
            wasted_at_trim: Counter::new(),
            refs: M::Word::new(ALIVE),
            clean_everywhere: M::Word::new(0),
            batched: M::Word::new(0),
            _read_by_flushes: [],
            tag: M::Word::new(0),
            cpumask: CpuMask::default(),
            _pinned: PhantomPinned,
        }
    }

    /// The id, which no other space of the engine ever has.
    #[must_use]
    #[inline]
    pub const fn id(&self) -> SpaceId {
        self.id
    }

    /// The root of the page tables.
    #[must_use]
    #[inline]
    pub fn root(&self) -> Root {
        // Relaxed: a CPU may load either value while the kernel replaces one.
        Root(self.root.load(Relaxed))
    }

    /// Replaces the value by which CPUs load the space: the same page table, with other bits beside
    /// its address (x86-64: address masking, in bits 61 and 62 of CR3).
    ///
    /// A CPU that has the space loaded keeps the old value until it loads the space again. Execute
    /// a full barrier after this call, and load the new value on
    /// [each such CPU](crate::PinnedCpu::for_each_user). A CPU that switches to the space at the
    /// same time may load either value; it must compare them after its switch.
    pub fn set_root(&self, root: Root) {
        // Relaxed: the caller's barrier follows.
        self.root.store(root.0, Relaxed);
    }

    /// Assigns the tag under which CPUs load the space: 1 to [`tag_count`](Machine::tag_count).
    /// Call this before the first switch to the space, with
    /// [`Tagging::Assigned`](crate::Tagging::Assigned) only.
    ///
    /// As long as no CPU has the space loaded, which `&mut` implies, the kernel may assign another
    /// tag. No flush is needed.
    pub fn assign_tag(&mut self, tag: Tag) {
        // Relaxed: a CPU that switches to the space has it from this one.
        self.tag.store(tag.0.into(), Relaxed);
    }

    /// The tag that the kernel has assigned.
    #[inline]
    pub(crate) fn assigned_tag(&self) -> Tag {
        // Relaxed: as above.
        Tag(self.tag.load(Relaxed) as u16)
    }

    /// Returns `true` if the space is not retired.
    pub(crate) fn is_alive(&self) -> bool {
        // Relaxed: a check of the caller's promise alone.
        has_users(self.refs.load(Relaxed))
    }

    /// The counters of this space's flushes so far.
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
            .field("root", &self.root())
            .finish_non_exhaustive()
    }
}

/// Returns `true` if these references include those of the space's users. CPUs that were marked may
/// have dropped theirs before.
#[inline]
pub(crate) const fn has_users(refs: u64) -> bool {
    refs > ALIVE / 2
}

/// Takes a reference for a CPU that goes lazy on the space, with
/// [`Lifetime::Counted`](crate::Lifetime::Counted).
///
/// Relaxed: the users' references keep the space alive, and are dropped after this call.
#[inline]
pub(crate) fn take_lazy_ref<M: Machine>(space: &Space<M>) {
    space.refs.fetch_add(1, Relaxed);
}

/// Drops the reference of a CPU that returns to the space from lazy, with
/// [`Lifetime::Counted`](crate::Lifetime::Counted).
#[inline]
pub(crate) fn drop_lazy_ref<M: Machine>(machine: &M, space: &Space<M>) {
    let was_last = drop_ref(machine, NonNull::from(space));
    debug_assert!(!was_last, "no CPU returns from lazy to a dead space that is counted");
}

/// Drops one reference to a space. Returns `true` if it was the last one: then only the caller may
/// access the space.
///
/// See [`Rule::DropRefRelease`].
#[inline]
pub(crate) fn drop_ref<M: Machine>(machine: &M, space: NonNull<Space<M>>) -> bool {
    // SAFETY: the space exists as long as it has a reference, and the caller has one. The Rust
    // reference made here is not used after the operation that drops it, and it points to a word
    // that may change at any time, as in `Arc`.
    let refs = unsafe { &(*space.as_ptr()).refs };
    // Adds −1.
    let was_last = refs.fetch_add(u64::MAX, order(machine, Rule::DropRefRelease)) == 1;
    if was_last {
        // Acquires the accesses of the CPUs that dropped the other references before.
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
    fn words_read_by_switch_share_a_line() {
        let generation = offset_of!(Small, log) + offset_of!(FlushLog<Soft<Host>>, generation);
        assert_eq!(generation, 256);
        for offset in [generation, offset_of!(Small, id), offset_of!(Small, root)] {
            assert_eq!(offset / 64, 4);
        }
        let counters = offset_of!(Small, counters);
        // The flush counters are in the same line. The next fields are written by a trim.
        assert!(counters + size_of::<SpaceCounters>() <= 320);
        assert!(offset_of!(Small, cpumask) >= 320);
    }
}
