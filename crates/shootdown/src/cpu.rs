//! A CPU, as others see it and as it sees itself.

#![expect(
    unsafe_code,
    reason = "what belongs to one CPU alone is shared memory to the compiler, and the loaded space \
              is a pointer"
)]

use core::cell::Cell;
use core::fmt;
use core::marker::PhantomData;
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;

use crate::bell::Bell;
use crate::engine::Shootdown;
use crate::hazard::Held;
use crate::machine::{CpuId, Machine, Word};
use crate::method::Teller;
use crate::presence::{Presence, PresenceWord};
use crate::rules::{Rule, order, store_then_fence};
use crate::space::Space;
use crate::stats::{CpuCounters, CpuStats};
use crate::tag::Tagging;
use crate::tag::slots::{TagSlot, TagSlots, vacate};

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
pub struct Cpu<M: Machine> {
    presence: M::Word,
    /// Whose page tables the CPU can walk. See [`Held`].
    held: M::Word,
    /// Up to which generation of the space that it holds it has caught up, or an earlier one: as it
    /// was when the CPU last went lazy or loaded a space.
    seen: M::Word,
    /// Which [global](Tagging::Global) tag it has loaded, or is about to load; 0 if it has chosen
    /// none since the last rollover.
    pub(crate) active_tag: M::Word,
    /// Which one it had at the last rollover. Only touched under the lock of the tags.
    pub(crate) reserved_tag: M::Word,
    /// In lines of its own.
    pub(crate) bell: Bell<M>,
    pub(crate) local: Local<M>,
}

/// What only the CPU itself touches.
#[repr(align(64))]
pub(crate) struct Local<M: Machine> {
    /// The space that is loaded; null for the kernel's own page table.
    loaded: Cell<*const Space<M>>,
    /// Where this CPU remembers the loaded space: its tag, and up to which generation the TLB is
    /// clean. One of `tags`, or `spare`. Meaningless while no space is loaded.
    slot: Cell<*const TagSlot>,
    pub(crate) online: Cell<bool>,
    /// Kernel translations are clean up to this generation.
    pub(crate) kernel_generation: Cell<u64>,
    /// How many [renamed](Tagging::Renamed) tags were taken.
    pub(crate) renamed_tags: Cell<u64>,
    pub(crate) teller: Teller,
    pub(crate) counters: CpuCounters,
    /// For a space that has no tag of its own.
    pub(crate) spare: TagSlot,
    tags: M::TagSlots,
}

// SAFETY: `local` is the only part that is not `Sync`. It is reached through `Here` alone, whose
// creator promises to be on this CPU, pinned, and not inside another holder's critical section: so
// its cells are only ever accessed by one thread of execution at a time.
unsafe impl<M: Machine> Sync for Cpu<M> {}
// SAFETY: a `Cpu` that is being moved is borrowed by nobody, and its pointer to a space is only
// followed through `Here`.
unsafe impl<M: Machine> Send for Cpu<M> {}

impl<M: Machine> Cpu<M> {
    /// A CPU that is offline.
    #[must_use]
    pub fn new() -> Self {
        Self {
            presence: M::Word::new(Presence::Out.to_word()),
            held: M::Word::new(Held::NOTHING.0),
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
                teller: Teller::new(),
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

    /// Whose page tables the CPU can walk. See [`Rule::HeldAcquire`].
    #[inline]
    pub(crate) fn held(&self, machine: &M) -> Held {
        Held(self.held.load(order(machine, Rule::HeldAcquire)))
    }

    /// Up to which generation the CPU has caught up with the space that it holds, at least. To be
    /// asked after that. See [`Rule::SeenAcquire`].
    #[inline]
    pub(crate) fn seen(&self, machine: &M) -> u64 {
        self.seen.load(order(machine, Rule::SeenAcquire))
    }

    /// Changes what the CPU holds, if that has not changed meanwhile: for others than itself.
    #[inline]
    pub(crate) fn change_held(&self, machine: &M, from: Held, to: Held) -> bool {
        let acquire = order(machine, Rule::HeldAcquire);
        self.held.compare_exchange(from.0, to.0, acquire, acquire).is_ok()
    }

    /// The CPU itself lets go of what it holds, unless that is marked by now.
    pub(crate) fn let_go_if_unmarked(&self, machine: &M, held: Held) -> bool {
        let release = order(machine, Rule::HeldRelease);
        // Relaxed: where it fails, the word is marked, and the mark is paid for by PayRelease.
        self.held.compare_exchange(held.0, Held::NOTHING.0, release, Relaxed).is_ok()
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

impl<M: Machine> Default for Cpu<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Machine> fmt::Debug for Cpu<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cpu").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// The CPU that we are on: the proof that the caller is pinned to it, with the flush interrupt
/// masked. Made by [`Shootdown::here`].
///
/// Everything that a CPU does to its own translations is a method of this token. It cannot be
/// sent to another thread.
pub struct Here<'e, M: Machine> {
    pub(crate) engine: &'e Shootdown<M>,
    pub(crate) cpu: &'e Cpu<M>,
    pub(crate) id: CpuId,
    pub(crate) not_send: PhantomData<*mut ()>,
}

impl<'e, M: Machine> Here<'e, M> {
    /// The number of this CPU.
    #[must_use]
    pub const fn id(&self) -> CpuId {
        self.id
    }

    /// Brings this CPU online: from now on it is interrupted for flushes.
    ///
    /// Call this before the CPU's first switch, when the flush interrupt's vector is set up and the
    /// kernel's own page table is loaded. The TLB is emptied, for nobody has notified this CPU of
    /// anything so far. Does nothing if the CPU is online.
    pub fn online(&self) {
        if self.local().online.replace(true) {
            return;
        }
        let machine = self.machine();
        self.cpu.bell.connect();
        self.engine.online().insert(self.id);
        self.local().kernel_generation.set(self.engine.kernel().generation(machine));
        // Pairs with FlushFence of a kernel flush: it finds us online, or we invalidate after its
        // page-table write, and walk page tables as new as that. Nothing below depends on the
        // generation just loaded, so no dependency orders the invalidation after that load.
        if !machine.breaks(Rule::OnlineSync) {
            machine.synchronize();
        }
        if !machine.breaks(Rule::FlushOnOnline) {
            machine.invalidate_all();
        }
        vacate(self.tags());
    }

    /// Takes this CPU offline: it leaves its space, and no CPU waits for it or interrupts it until
    /// it comes back [`online`](Self::online).
    ///
    /// The flush interrupt must stay masked from here on. Flushes of the kernel's translations do
    /// not reach this CPU any more, so from this call on it may use only kernel mappings that are
    /// never flushed: its text, its stack.
    pub fn offline(&self) {
        if !self.local().online.get() {
            return;
        }
        // Also of a space that died under it: whoever lets go of it last reclaims it.
        self.leave();
        if !self.machine().breaks(Rule::CompleteForOthers) {
            self.complete_broadcasts();
        }
        self.give_numbers_back();
        self.local().online.set(false);
        // Pairs with ScanAcquire of a kernel flush, which does not wait for us from here on.
        self.engine.online().remove(self.id, order(self.machine(), Rule::LeaveOnlineRelease));
        self.cpu.bell.disconnect(self.machine());
    }

    #[inline]
    pub(crate) fn machine(&self) -> &'e M {
        &self.engine.machine
    }

    #[inline]
    pub(crate) fn local(&self) -> &'e Local<M> {
        &self.cpu.local
    }

    #[inline]
    pub(crate) fn counters(&self) -> &'e CpuCounters {
        &self.cpu.local.counters
    }

    /// Where this CPU remembers spaces: as many as it has tags, where each has its own.
    #[inline]
    pub(crate) fn tags(&self) -> &'e [TagSlot] {
        let (slots, tag_count) = (self.cpu.local.tags.slots(), self.machine().tag_count());
        match self.machine().tagging() {
            Tagging::PerCpu => &slots[..tag_count.min(slots.len())],
            // What is under the kernel's tag is whoever's was loaded last.
            Tagging::Global | Tagging::Renamed if tag_count == 0 => &[],
            Tagging::Global | Tagging::Renamed => slots,
        }
    }

    /// Whether this CPU has `space` loaded.
    #[inline]
    pub(crate) fn has_loaded(&self, space: &Space<M>) -> bool {
        ptr::eq(self.local().loaded.get(), space)
    }

    /// The space that this CPU has loaded, or `None` for the kernel's own page table.
    #[inline]
    pub(crate) fn loaded<'s>(&self) -> Option<&'s Space<M>> {
        // SAFETY: the pointer is null or was made from a reference by `switch`, whose caller
        // promises that the space stays in place for as long as it is loaded. The reference that
        // we make is used up before the caller could load anything else.
        unsafe { self.local().loaded.get().as_ref() }
    }

    /// Where this CPU remembers the space that it has loaded. Ask only if there is one.
    #[inline]
    pub(crate) fn loaded_slot(&self) -> &'e TagSlot {
        debug_assert!(!self.local().slot.get().is_null(), "no space is loaded");
        // SAFETY: a space is loaded, so `set_loaded` has stored this pointer: it was made from a
        // slot of this CPU's state, which `Machine::state` always finds at one place.
        unsafe { &*self.local().slot.get() }
    }

    /// Notes what is loaded from now on.
    #[inline]
    pub(crate) fn set_loaded(&self, space: &Space<M>, slot: &'e TagSlot) {
        self.local().loaded.set(space);
        self.local().slot.set(slot);
    }

    /// Notes that the kernel's own page table is about to be loaded. Returns whether a space was,
    /// and where it is remembered.
    pub(crate) fn unload(&self) -> Option<&'e TagSlot> {
        let was_loaded = !self.local().loaded.replace(ptr::null()).is_null();
        was_loaded.then(|| self.loaded_slot())
    }

    /// What this CPU has told others that it could be using.
    #[inline]
    pub(crate) fn presence(&self) -> Presence {
        Presence::from_word(self.presence_word().0)
    }

    /// The same, as it is in memory.
    #[inline]
    pub(crate) fn presence_word(&self) -> PresenceWord {
        // Relaxed: only this CPU writes it.
        PresenceWord(self.cpu.presence.load(Relaxed))
    }

    /// Says what this CPU could be using from now on. See [`Rule::LeaveRelease`].
    #[inline]
    pub(crate) fn set_presence(&self, presence: PresenceWord) {
        let release = order(self.machine(), Rule::LeaveRelease);
        self.cpu.presence.store(presence.0, release);
    }

    /// Says what this CPU can walk from now on, and returns what it could until now. The new root
    /// must be loaded. See [`Rule::HeldRelease`].
    #[inline]
    pub(crate) fn hold(&self, now: Held) -> Held {
        Held(self.cpu.held.swap(now.0, order(self.machine(), Rule::HeldRelease)))
    }

    /// What this CPU can walk.
    #[inline]
    pub(crate) fn held(&self) -> Held {
        // Relaxed: others only mark what this CPU has stored; it lets go by a read-modify-write.
        Held(self.cpu.held.load(Relaxed))
    }

    /// What this CPU has let go of, and could not reclaim. See [`Rule::BequestRelease`].
    pub(crate) fn bequeath(&self, held: Held) {
        let space = Held(held.pointer::<M>().addr() as u64);
        self.cpu.held.store(space.bequeathed().0, order(self.machine(), Rule::BequestRelease));
    }

    /// Says up to which generation this CPU has caught up. See [`Rule::SeenRelease`].
    #[inline]
    pub(crate) fn set_seen(&self, generation: u64) {
        self.cpu.seen.store(generation, order(self.machine(), Rule::SeenRelease));
    }

    /// The same, and then the full barrier that `rule` asks for.
    #[inline]
    pub(crate) fn set_presence_then_fence(&self, presence: PresenceWord, rule: Rule) {
        store_then_fence(self.machine(), &self.cpu.presence, presence.0, Rule::LeaveRelease, rule);
    }
}

impl<M: Machine> fmt::Debug for Here<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Here").field("id", &self.id).field("presence", &self.presence()).finish()
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use super::*;
    use crate::soft::{Host, Soft};
    use core::mem::{offset_of, size_of};

    type Small = Cpu<Soft<Host>>;

    /// Looks, rings and waiters have a line each, and touch no other.
    #[test]
    fn what_others_touch_is_three_lines() {
        assert_eq!(offset_of!(Small, presence), 0);
        assert_eq!(offset_of!(Small, bell), 64);
        assert_eq!(size_of::<Bell<Soft<Host>>>(), 128);
        assert_eq!(offset_of!(Small, local), 192);
    }
}
