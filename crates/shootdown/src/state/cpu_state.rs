//! The state of one CPU: the words that it shares with other CPUs, and the part of its own.

#![expect(
    unsafe_code,
    reason = "the part of one CPU alone is shared memory to the compiler, and the loaded space is \
              a pointer"
)]

use core::cell::Cell;
use core::fmt;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::base::ids::SpaceId;
use crate::base::memory::{Word, order};
use crate::base::rules::Rule;
use crate::parts::bell::Bell;
use crate::parts::hazard::Hazard;
use crate::parts::method::NotifyPolicy;
use crate::parts::presence::{Presence, PresenceWord};
use crate::parts::stats::{CpuCounters, CpuStats};
use crate::parts::trace_event::FlushCause;
use crate::state::machine::Machine;
use crate::state::space::Space;
use crate::state::tag::slots::{LastTaken, TagSlot, TagSlots};
use crate::state::tag::stock::Stock;

/// The engine's state of one CPU.
///
/// The kernel places it where [`Machine::state`] finds it, preferably in memory near that CPU.
///
/// # Size
///
/// 640 bytes with six tags, for any number of CPUs. Other CPUs read and write only the first three
/// cache lines:
///
/// - presence and hazard pointer, which this CPU writes when it switches, and flushes read;
/// - the bell's word, which ringing CPUs write;
/// - the last answer, which waiters read, and whether the CPU is in user mode.
///
/// They are separate, so that with many flushes at the same time, flushes and waiters read lines
/// that rings do not invalidate.
#[repr(C, align(64))]
pub struct CpuState<M: Machine> {
    pub(crate) presence: M::Word,
    /// The space whose page tables the CPU can walk. See [`Hazard`].
    pub(crate) hazard: M::Word,
    /// The generation of the space in `hazard` that the CPU has caught up with, or an earlier one:
    /// written when the CPU goes lazy, and when it loads a space; with [flush at
    /// reuse](Machine::FLUSHES_AT_REUSE), also when it catches up.
    pub(crate) seen: M::Word,
    /// The [global](crate::Tagging::Global) tag that the CPU has loaded or is about to load, with
    /// its epoch; or, sealed with a later epoch, the tag that the CPU reserves in that epoch.
    pub(crate) active_tag: M::Word,
    /// The global tag that the CPU reserved when it first chose one in an epoch, with that epoch.
    /// Only the CPU itself writes it. See `tag/reserved.rs`.
    pub(crate) reserved_tag: M::Word,
    /// The global tag that the CPU has loaded or is about to load, with the epoch in which it has
    /// chosen it. Only the CPU itself writes it.
    pub(crate) chosen_tag: M::Word,
    /// The epoch in which the CPU is taking a global tag that it has not chosen yet; 0 if none. See
    /// `await_takers` in `tag/taking.rs`.
    pub(crate) taking: M::Word,
    /// Number of walks by software that the CPU is within. Read where the CPU is away.
    pub(crate) walks: M::Word,
    /// The doorbell, in two cache lines of its own.
    pub(crate) bell: Bell<M>,
    pub(crate) local: Local<M>,
}

/// The part of a CPU's state that only the CPU itself accesses, but for `last_space`.
#[repr(align(64))]
pub(crate) struct Local<M: Machine> {
    /// The space that is loaded; null for the kernel's own page table.
    pub(crate) loaded: Cell<*const Space<M>>,
    /// The slot of the loaded space: its tag, and the generation up to which the TLB is clean. One
    /// of `tags`, or `spare`. Meaningless while no space is loaded.
    pub(crate) slot: Cell<*const TagSlot>,
    pub(crate) online: Cell<bool>,
    /// The activity of the CPU, if the machine is checked. See
    /// [`Operation`](crate::state::pinned_cpu::Operation).
    pub(crate) activity: Cell<Activity>,
    /// The cause of the next flush, if the machine [traces](Machine::TRACES).
    pub(crate) cause: Cell<FlushCause>,
    /// The kernel's generation up to which this CPU's TLB is clean.
    pub(crate) kernel_generation: Cell<u64>,
    /// If tags are global, the epoch for which this CPU has emptied its TLB. If spaces are
    /// [renamed](crate::Tagging::Renamed), the number of tags that this CPU has used.
    pub(crate) tag_clock: Cell<u64>,
    pub(crate) last_taken: LastTaken,
    /// The global tags that this CPU has taken for its next spaces.
    pub(crate) stock: Stock,
    /// The last [id](crate::state::space_ids::next_id) that a thread on this CPU has given to a
    /// space. A thread that has been moved since may write it from another CPU.
    pub(crate) last_space: M::Word,
    pub(crate) policy: NotifyPolicy,
    /// `true` if the next flush is probably broadcast to every CPU: the last one that might have
    /// been was, or there was none since the CPU came online. Always `false` without a broadcaster.
    pub(crate) expects_broadcast: Cell<bool>,
    pub(crate) counters: CpuCounters,
    /// The slot of a loaded space that has no tag of its own.
    pub(crate) spare: TagSlot,
    pub(crate) tags: M::TagSlots,
}

/// The activity of a CPU, as far as it concerns the begin of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    Idle,
    Operation,
    /// It is in [`Machine::wait_hint`], masked, where it may only answer, or disconnect a CPU.
    Hint,
    /// It is in user mode.
    User,
}

// SAFETY: the cells in `local` are the only part that is not `Sync`. Only methods of `PinnedCpu`
// access them, and the caller of `pin` promises to be pinned to this CPU, with every handler masked
// that could call such a method. So only one thread of execution accesses the cells at a time.
unsafe impl<M: Machine> Sync for CpuState<M> {}
// SAFETY: a `CpuState` that is being moved is not borrowed, and only `PinnedCpu` follows its
// pointer to a space.
unsafe impl<M: Machine> Send for CpuState<M> {}

impl<M: Machine> Local<M> {
    /// The part of a CPU that is offline, and has given no id: `last_space` is 0.
    const fn new(last_space: M::Word) -> Self {
        Self {
            loaded: Cell::new(ptr::null()),
            slot: Cell::new(ptr::null()),
            online: Cell::new(false),
            activity: Cell::new(Activity::Idle),
            cause: Cell::new(FlushCause::Unnamed),
            kernel_generation: Cell::new(0),
            tag_clock: Cell::new(0),
            last_taken: LastTaken::new(),
            stock: Stock::new(),
            last_space,
            policy: NotifyPolicy::new(),
            expects_broadcast: Cell::new(false),
            counters: CpuCounters::new(),
            spare: TagSlot::VACANT,
            tags: M::TagSlots::VACANT,
        }
    }
}

impl<M: Machine<Word = AtomicU64>> CpuState<M> {
    /// The state of a CPU that is offline.
    ///
    /// For a static: `static CPUS: [CpuState<M>; 64] = [const { CpuState::new() }; 64];`. If the
    /// words are of another type, as in a model checker, use [`default`](Self::default).
    #[must_use]
    pub const fn new() -> Self {
        Self {
            presence: AtomicU64::new(Presence::Out.to_word()),
            hazard: AtomicU64::new(Hazard::NOTHING.0),
            seen: AtomicU64::new(0),
            active_tag: AtomicU64::new(0),
            reserved_tag: AtomicU64::new(0),
            chosen_tag: AtomicU64::new(0),
            taking: AtomicU64::new(0),
            walks: AtomicU64::new(0),
            bell: Bell::new(),
            local: Local::new(AtomicU64::new(0)),
        }
    }

    /// Makes the state of a CPU that is offline in `place`, from a constant: a state of 2 KiB does
    /// not fit on the stacks on which some kernels boot.
    pub fn init(place: &mut MaybeUninit<Self>) -> &mut Self {
        place.write(const { Self::new() })
    }
}

impl<M: Machine> CpuState<M> {
    /// The space that the CPU could be using, and how. See [`Rule::PresenceAcquire`].
    #[inline]
    pub fn presence(&self, machine: &M) -> Presence {
        Presence::from_word(self.presence_word(machine).0)
    }

    /// The CPU's presence, as the word in memory. See [`Rule::PresenceAcquire`].
    #[inline]
    pub(crate) fn presence_word(&self, machine: &M) -> PresenceWord {
        PresenceWord(self.presence.load(order(machine, Rule::PresenceAcquire)))
    }

    /// The space whose page tables the CPU can walk. See [`Rule::HazardAcquire`].
    #[inline]
    pub(crate) fn hazard(&self, machine: &M) -> Hazard {
        Hazard(self.hazard.load(order(machine, Rule::HazardAcquire)))
    }

    /// The generation that the CPU has caught up with, of the space that its hazard pointer names,
    /// or on which it is active. Call this after [`hazard`](Self::hazard), or
    /// [`presence_word`](Self::presence_word). See [`Rule::SeenAcquire`].
    #[inline]
    pub(crate) fn seen(&self, machine: &M) -> u64 {
        self.seen.load(order(machine, Rule::SeenAcquire))
    }

    /// Changes the hazard pointer of another CPU by compare-and-swap. Returns `true` if it was
    /// `from`, and is now `to`.
    #[inline]
    pub(crate) fn change_hazard(&self, machine: &M, from: Hazard, to: Hazard) -> bool {
        let acquire = order(machine, Rule::HazardAcquire);
        self.hazard.compare_exchange(from.0, to.0, acquire, acquire).is_ok()
    }

    /// Clears the CPU's own hazard pointer, unless another CPU has marked it. Returns `true` if it
    /// was still `hazard`.
    pub(crate) fn drop_unmarked_hazard(&self, machine: &M, hazard: Hazard) -> bool {
        let release = order(machine, Rule::HazardRelease);
        // Relaxed: on failure the word is marked, and the caller drops a reference, with
        // DropRefRelease.
        self.hazard.compare_exchange(hazard.0, Hazard::NOTHING.0, release, Relaxed).is_ok()
    }

    /// See [`Shootdown::nmi_may_touch_user`](crate::Shootdown::nmi_may_touch_user). The CPU's own
    /// NMI calls this.
    pub(crate) fn nmi_may_touch_user(&self, machine: &M, space: SpaceId) -> bool {
        if self.presence(machine) != Presence::Active(space) {
            return false;
        }
        // A CPU that answers early has published its answer and not invalidated yet, perhaps, for
        // as long as its bell is attended.
        !machine.answers_early() || self.bell.is_quiet() || machine.breaks(Rule::DenyNmi)
    }

    /// Hints that the caller will soon read [`presence`](Self::presence).
    #[inline]
    pub(crate) fn prefetch(&self, machine: &M) {
        machine.prefetch(&self.presence);
    }

    /// The CPU's counters so far.
    pub fn stats(&self) -> CpuStats {
        let stats = self.local.counters.read();
        let switches_without_flush = stats.switches.saturating_sub(stats.switches_flushed);
        CpuStats { switches_without_flush, ..stats }
    }
}

impl<M: Machine> Default for CpuState<M> {
    /// The state of a CPU that is offline.
    fn default() -> Self {
        Self {
            presence: M::Word::new(Presence::Out.to_word()),
            hazard: M::Word::new(Hazard::NOTHING.0),
            seen: M::Word::new(0),
            active_tag: M::Word::new(0),
            reserved_tag: M::Word::new(0),
            chosen_tag: M::Word::new(0),
            taking: M::Word::new(0),
            walks: M::Word::new(0),
            bell: Bell::default(),
            local: Local::new(M::Word::new(0)),
        }
    }
}

impl<M: Machine> fmt::Debug for CpuState<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuState").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use super::*;
    use crate::soft::{Host, Soft};
    use core::mem::{offset_of, size_of};

    type Small = CpuState<Soft<Host>>;

    /// Flushes, ringing CPUs and waiters access one line each.
    #[test]
    fn shared_words_occupy_three_cache_lines() {
        assert_eq!(offset_of!(Small, presence), 0);
        assert_eq!(offset_of!(Small, bell), 64);
        assert_eq!(size_of::<Bell<Soft<Host>>>(), 128);
        assert_eq!(offset_of!(Small, local), 192);
    }
}
