//! The CPU that runs the caller: the entry to everything that a CPU does to its own translations.

#![expect(
    unsafe_code,
    reason = "the loaded space and its slot are pointers, and only the kernel knows where it runs"
)]

use core::fmt;
use core::marker::PhantomData;
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;

use crate::cpu_state::{CpuState, Local};
use crate::engine::Shootdown;
use crate::hazard::Hazard;
use crate::ids::CpuId;
use crate::machine::{Machine, Tagging};
use crate::memory::{Word, order, store_then_fence};
use crate::presence::{Presence, PresenceWord};
use crate::rules::Rule;
use crate::space::Space;
use crate::stats::CpuCounters;
use crate::tag::slots::{TagSlot, TagSlots, vacate};

/// The CPU that we are on: the proof that the caller is pinned to it, with the flush interrupt
/// masked. Made by [`Shootdown::pin`].
///
/// Everything that a CPU does to its own translations is a method of this token. It cannot be
/// sent to another thread.
pub struct PinnedCpu<'e, M: Machine> {
    pub(crate) engine: &'e Shootdown<M>,
    pub(crate) cpu: &'e CpuState<M>,
    pub(crate) id: CpuId,
    pub(crate) not_send: PhantomData<*mut ()>,
}

impl<'e, M: Machine> PinnedCpu<'e, M> {
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
        self.leave_space();
        if !self.machine().breaks(Rule::CompleteForOthers) {
            self.complete_broadcasts();
        }
        self.release_asids();
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
    /// must be loaded. See [`Rule::HazardRelease`].
    #[inline]
    pub(crate) fn set_hazard(&self, now: Hazard) -> Hazard {
        Hazard(self.cpu.hazard.swap(now.0, order(self.machine(), Rule::HazardRelease)))
    }

    /// What this CPU can walk.
    #[inline]
    pub(crate) fn hazard(&self) -> Hazard {
        // Relaxed: others only mark what this CPU has stored; it lets go by a read-modify-write.
        Hazard(self.cpu.hazard.load(Relaxed))
    }

    /// What this CPU has let go of, and could not reclaim. See [`Rule::OrphanRelease`].
    pub(crate) fn orphan(&self, hazard: Hazard) {
        let space = hazard.unmarked();
        self.cpu.hazard.store(space.orphaned().0, order(self.machine(), Rule::OrphanRelease));
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

impl<M: Machine> fmt::Debug for PinnedCpu<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedCpu")
            .field("id", &self.id)
            .field("presence", &self.presence())
            .finish()
    }
}

impl<M: Machine> Shootdown<M> {
    /// The CPU that runs this call, as a token by which it can switch, flush and answer.
    ///
    /// # Safety
    ///
    /// Whenever a method of the token runs, the caller must be on this CPU, stay there, and have
    /// masked the flush interrupt and every other whose handler may make a token, or wait for or
    /// drop a [`Pending`](crate::Pending). It must not be in a handler that cannot be masked (an
    /// NMI, a machine check) and so may have interrupted another token's method.
    ///
    /// The methods themselves call [`Machine::ring`], [`Machine::wait_hint`] and [`Machine::reclaim`]
    /// where a second token may be made, to [answer](PinnedCpu::handle_flush_ipi): a lock that these take may be
    /// waited for in a loop that answers, and `relax` may let the flush interrupt in.
    #[inline]
    #[expect(unsafe_code, reason = "only the kernel knows where it runs")]
    pub unsafe fn pin(&self) -> PinnedCpu<'_, M> {
        let id = self.machine.cpu();
        debug_assert!(self.machine.interrupts_masked(), "the flush interrupt must be masked");
        PinnedCpu { engine: self, cpu: self.machine.state(id), id, not_send: PhantomData }
    }
}
