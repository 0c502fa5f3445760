//! A CPU, as others see it and as it sees itself.

#![expect(
    unsafe_code,
    reason = "what belongs to one CPU alone is shared memory to the compiler, and the loaded space \
              is a pointer"
)]

use core::cell::Cell;
use core::fmt;
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;

use crate::bell::Bell;
use crate::hazard::Hazard;
use crate::machine::Machine;
use crate::memory::{Word, order};
use crate::method::NotifyPolicy;
use crate::presence::{Presence, PresenceWord};
use crate::rules::Rule;
use crate::space::Space;
use crate::stats::{CpuCounters, CpuStats};
use crate::tag::slots::{TagSlot, TagSlots};

/// The engine's state of one CPU.
///
/// The kernel places it wherever [`Machine::state`] finds it, in memory near that CPU if it likes.
///
/// # Size
///
/// 640 bytes with six tags, whatever the number of CPUs. The first three lines are what other CPUs
/// read and write: what it could use or walk, which changes when the CPU switches and is looked at
/// by flushes; who has rung; and what was answered. Apart, so that where many flush at once, looks
/// and waiters read lines that rings do not take away. Nobody else touches the other lines.
#[repr(C, align(64))]
pub struct CpuState<M: Machine> {
    pub(crate) presence: M::Word,
    /// Whose page tables the CPU can walk. See [`Hazard`].
    pub(crate) hazard: M::Word,
    /// Up to which generation of the space that it holds it has caught up, or an earlier one: as it
    /// was when the CPU last went lazy or loaded a space.
    pub(crate) seen: M::Word,
    /// The [global](crate::Tagging::Global) tag that the CPU has loaded, or is about to load; 0 if
    /// it has chosen none since the last rollover.
    pub(crate) active_tag: M::Word,
    /// The global tag that the CPU had at the last rollover. Accessed under the allocator's lock.
    pub(crate) reserved_tag: M::Word,
    /// In lines of its own.
    pub(crate) bell: Bell<M>,
    pub(crate) local: Local<M>,
}

/// What only the CPU itself touches.
#[repr(align(64))]
pub(crate) struct Local<M: Machine> {
    /// The space that is loaded; null for the kernel's own page table.
    pub(crate) loaded: Cell<*const Space<M>>,
    /// Where this CPU remembers the loaded space: its tag, and up to which generation the TLB is
    /// clean. One of `tags`, or `spare`. Meaningless while no space is loaded.
    pub(crate) slot: Cell<*const TagSlot>,
    pub(crate) online: Cell<bool>,
    /// Kernel translations are clean up to this generation.
    pub(crate) kernel_generation: Cell<u64>,
    /// How many [renamed](crate::Tagging::Renamed) tags were taken.
    pub(crate) renamed_tags: Cell<u64>,
    pub(crate) policy: NotifyPolicy,
    pub(crate) counters: CpuCounters,
    /// For a space that has no tag of its own.
    pub(crate) spare: TagSlot,
    pub(crate) tags: M::TagSlots,
}

// SAFETY: `local` is the only part that is not `Sync`. It is reached through `PinnedCpu` alone, whose
// creator promises to be on this CPU, pinned, and not inside another holder's critical section: so
// its cells are only ever accessed by one thread of execution at a time.
unsafe impl<M: Machine> Sync for CpuState<M> {}
// SAFETY: a `CpuState` that is being moved is borrowed by nobody, and its pointer to a space is only
// followed through `PinnedCpu`.
unsafe impl<M: Machine> Send for CpuState<M> {}

impl<M: Machine> CpuState<M> {
    /// A CPU that is offline.
    #[must_use]
    pub fn new() -> Self {
        Self {
            presence: M::Word::new(Presence::Out.to_word()),
            hazard: M::Word::new(Hazard::NOTHING.0),
            seen: M::Word::new(0),
            active_tag: M::Word::new(0),
            reserved_tag: M::Word::new(0),
            bell: Bell::new(),
            local: Local {
                loaded: Cell::new(ptr::null()),
                slot: Cell::new(ptr::null()),
                online: Cell::new(false),
                kernel_generation: Cell::new(0),
                renamed_tags: Cell::new(0),
                policy: NotifyPolicy::new(),
                counters: CpuCounters::default(),
                spare: TagSlot::VACANT,
                tags: M::TagSlots::VACANT,
            },
        }
    }

    /// What the CPU could be using. See [`Rule::PresenceAcquire`].
    #[inline]
    pub fn presence(&self, machine: &M) -> Presence {
        Presence::from_word(self.presence_word(machine).0)
    }

    /// The same, as it is in memory.
    #[inline]
    pub(crate) fn presence_word(&self, machine: &M) -> PresenceWord {
        PresenceWord(self.presence.load(order(machine, Rule::PresenceAcquire)))
    }

    /// Whose page tables the CPU can walk. See [`Rule::HazardAcquire`].
    #[inline]
    pub(crate) fn hazard(&self, machine: &M) -> Hazard {
        Hazard(self.hazard.load(order(machine, Rule::HazardAcquire)))
    }

    /// Up to which generation the CPU has caught up with the space that it holds, at least. To be
    /// asked after that. See [`Rule::SeenAcquire`].
    #[inline]
    pub(crate) fn seen(&self, machine: &M) -> u64 {
        self.seen.load(order(machine, Rule::SeenAcquire))
    }

    /// Changes what the CPU holds, if that has not changed meanwhile: for others than itself.
    #[inline]
    pub(crate) fn change_hazard(&self, machine: &M, from: Hazard, to: Hazard) -> bool {
        let acquire = order(machine, Rule::HazardAcquire);
        self.hazard.compare_exchange(from.0, to.0, acquire, acquire).is_ok()
    }

    /// The CPU itself lets go of what it holds, unless that is marked by now.
    pub(crate) fn drop_unmarked_hazard(&self, machine: &M, hazard: Hazard) -> bool {
        let release = order(machine, Rule::HazardRelease);
        // Relaxed: where it fails, the word is marked, and the mark is paid for by PayRelease.
        self.hazard.compare_exchange(hazard.0, Hazard::NOTHING.0, release, Relaxed).is_ok()
    }

    /// Hints that [`presence`](Self::presence) will be asked for soon.
    #[inline]
    pub(crate) fn prefetch(&self, machine: &M) {
        machine.prefetch(&self.presence);
    }

    /// What the CPU has done so far.
    pub fn stats(&self) -> CpuStats {
        let stats = self.local.counters.read();
        let switches_without_flush = stats.switches.saturating_sub(stats.switches_flushed);
        CpuStats { switches_without_flush, ..stats }
    }
}

impl<M: Machine> Default for CpuState<M> {
    fn default() -> Self {
        Self::new()
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

    /// Looks, rings and waiters have a line each, and touch no other.
    #[test]
    fn what_others_touch_is_three_lines() {
        assert_eq!(offset_of!(Small, presence), 0);
        assert_eq!(offset_of!(Small, bell), 64);
        assert_eq!(size_of::<Bell<Soft<Host>>>(), 128);
        assert_eq!(offset_of!(Small, local), 192);
    }
}
