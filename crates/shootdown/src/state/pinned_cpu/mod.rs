//! The pin guard: the CPU that runs the caller, and the operations on its own translations.

#![expect(
    unsafe_code,
    reason = "the loaded space and its slot are pointers, and only the kernel can pin a thread"
)]

use core::cell::Cell;
use core::fmt;
use core::marker::PhantomData;
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;

use crate::base::ids::CpuId;
use crate::base::memory::{Word, order, store_then_fence};
use crate::base::rules::Rule;
use crate::parts::hazard::Hazard;
use crate::parts::presence::{Presence, PresenceWord};
use crate::parts::stats::CpuCounters;
use crate::state::cpu_state::{Activity, CpuState, Local};
use crate::state::engine::Shootdown;
use crate::state::machine::{Machine, Tagging, is_checked};
use crate::state::space::Space;
use crate::state::tag::slots::{TagSlot, TagSlots, vacate};

/// A pin guard: the proof that the caller is pinned to this CPU, with the flush interrupt masked.
///
/// [`Shootdown::pin`] makes it. Its methods are the operations of a CPU on its own translations:
/// coming online, switching, flushing, answering. The guard cannot be sent to another thread.
/// Dropping it has no effect: the kernel unpins the thread and unmasks the interrupt.
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

    /// Brings this CPU online: from now on, flushes interrupt it.
    ///
    /// Call this before the CPU's first switch, after the flush interrupt's vector is set up and
    /// the kernel's own page table is loaded. It empties the TLB, because no flush has notified
    /// this CPU so far. Does nothing if the CPU is online.
    ///
    /// # Panics
    ///
    /// If the number of this CPU is not below [`Machine::cpu_limit`].
    pub fn online(&self) {
        let _operation = self.begin();
        if self.local().online.replace(true) {
            return;
        }
        let (machine, limit) = (self.machine(), self.machine().cpu_limit());
        assert!(
            self.id.index() < limit,
            "CPU {} comes online, and the limit is {limit}",
            self.id.0
        );
        self.cpu.bell.connect();
        self.engine.online().insert(self.id);
        self.join_asids();
        self.local().expects_broadcast.set(machine.broadcaster().is_some());
        self.local().kernel_generation.set(self.engine.kernel().generation(machine));
        // Pairs with FlushFence of a kernel flush. Either the flush finds this CPU online; or this
        // CPU invalidates after the flush's page-table write, and walks page tables at least as
        // new. The invalidation does not depend on the generation just loaded, so no dependency
        // orders it after that load.
        if !machine.breaks(Rule::OnlineSync) {
            machine.synchronize();
        }
        if !machine.breaks(Rule::FlushOnOnline) {
            machine.invalidate_all();
        }
        vacate(self.tags());
        self.local().last_taken.reset(self.tags().len());
    }

    /// Takes this CPU offline: it leaves its space, and no other CPU waits for it or interrupts it
    /// until it comes back [`online`](Self::online).
    ///
    /// Keep the flush interrupt masked until then. Flushes of the kernel's translations do not
    /// reach an offline CPU, so it may use only kernel mappings that are never flushed, such as its
    /// text and its stack. Does nothing if the CPU is offline.
    pub fn offline(&self) {
        let _operation = self.begin();
        if !self.local().online.get() {
            return;
        }
        // The space may be dead: if this CPU is the last one that drops the space, it reclaims it.
        self.leave();
        if !self.machine().breaks(Rule::CompleteForOthers) {
            self.complete_broadcasts();
        }
        self.release_asids(self.cpu);
        self.withdraw();
    }

    /// Withdraws this CPU, which uses no translation any more, from the CPUs that flushes reach.
    pub(crate) fn withdraw(&self) {
        self.local().online.set(false);
        // Pairs with ScanAcquire of a kernel flush, which does not wait for this CPU from here on.
        // Without: this CPU's last accesses hit a kernel page that the flush's caller has freed.
        self.engine.online().remove(self.id, order(self.machine(), Rule::LeaveOnlineRelease));
        self.cpu.bell.disconnect(self.machine(), || self.machine().wake_waiters(self.id));
    }

    /// Begins an operation, which ends when the returned guard is dropped.
    ///
    /// # Panics
    ///
    /// If the machine is [checked](is_checked), and this CPU is in an operation already.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn begin(&self) -> Operation<'e> {
        let operation = self.begin_nested();
        if is_checked::<M>() && operation.before != Activity::Idle {
            refuse_operation(self.id, operation.before);
        }
        operation
    }

    /// Panics if the machine is [checked](is_checked), and this CPU is in user mode.
    #[inline(always)]
    pub(crate) fn refuse_in_user(&self) {
        if M::ISOLATES && is_checked::<M>() && self.local().activity.get() == Activity::User {
            refuse_operation(self.id, Activity::User);
        }
    }

    /// Begins an operation that may be within [`Machine::wait_hint`].
    #[inline(always)]
    pub(crate) fn begin_nested(&self) -> Operation<'e> {
        self.enter(Activity::Operation)
    }

    /// Begins a call of [`Machine::wait_hint`] by a waiter on this CPU.
    pub(crate) fn begin_hint(&self) -> Operation<'e> {
        self.enter(Activity::Hint)
    }

    #[inline(always)]
    fn enter(&self, activity: Activity) -> Operation<'e> {
        if !is_checked::<M>() {
            return Operation { cpu: None, before: Activity::Idle };
        }
        let cell = &self.local().activity;
        Operation { cpu: Some(cell), before: cell.replace(activity) }
    }

    /// The guard of the CPU `id`, whose state is `cpu`.
    ///
    /// A call that is not inlined needs its guard in memory. A function that gets these parts
    /// instead, and makes the guard, leaves that of its caller in registers.
    #[inline]
    pub(crate) const fn of(engine: &'e Shootdown<M>, cpu: &'e CpuState<M>, id: CpuId) -> Self {
        Self { engine, cpu, id, not_send: PhantomData }
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

    /// The slots in which this CPU remembers spaces. If tags are per CPU, there is one slot per
    /// tag.
    #[inline]
    pub(crate) fn tags(&self) -> &'e [TagSlot] {
        let (slots, tag_count) = (self.cpu.local.tags.slots(), self.machine().tag_count());
        match self.machine().tagging() {
            Tagging::PerCpu => &slots[..tag_count.min(slots.len())],
            // Without tags, the TLB holds translations of the space that was loaded last only.
            _ if tag_count == 0 => &[],
            Tagging::Global | Tagging::Renamed | Tagging::Assigned => slots,
        }
    }

    /// Returns `true` if this CPU has `space` loaded.
    #[inline]
    pub(crate) fn has_loaded(&self, space: &Space<M>) -> bool {
        ptr::eq(self.local().loaded.get(), space)
    }

    /// The space that this CPU has loaded, or `None` for the kernel's own page table.
    #[inline]
    pub(crate) fn loaded<'s>(&self) -> Option<&'s Space<M>> {
        // SAFETY: the pointer is null, or `switch` made it from a reference. The caller of `switch`
        // promises that the space stays in place for as long as it is loaded. No user of the
        // reference made here keeps it until another root is loaded.
        unsafe { self.local().loaded.get().as_ref() }
    }

    /// The slot in which this CPU remembers the loaded space. A space must be loaded.
    #[inline]
    pub(crate) fn loaded_slot(&self) -> &'e TagSlot {
        debug_assert!(!self.local().slot.get().is_null(), "no space is loaded");
        // SAFETY: a space is loaded, so `set_loaded` has stored this pointer. It was made from a
        // slot of this CPU's state, and `Machine::state` always returns the same state for a CPU.
        unsafe { &*self.local().slot.get() }
    }

    /// Records the space that is now loaded, and its slot.
    #[inline]
    pub(crate) fn set_loaded(&self, space: &Space<M>, slot: &'e TagSlot) {
        self.local().loaded.set(space);
        self.local().slot.set(slot);
    }

    /// Records that the kernel's own page table is about to be loaded. Returns the slot of the
    /// space that was loaded, or `None` if no space was.
    pub(crate) fn unload(&self) -> Option<&'e TagSlot> {
        let was_loaded = !self.local().loaded.replace(ptr::null()).is_null();
        was_loaded.then(|| self.loaded_slot())
    }

    /// The presence that this CPU has published.
    #[inline]
    pub(crate) fn presence(&self) -> Presence {
        Presence::from_word(self.presence_word().0)
    }

    /// The presence that this CPU has published, as the word in memory.
    #[inline]
    pub(crate) fn presence_word(&self) -> PresenceWord {
        // Relaxed: only this CPU writes the word.
        PresenceWord(self.cpu.presence.load(Relaxed))
    }

    /// Publishes `presence` for this CPU. See [`Rule::LeaveRelease`].
    #[inline]
    pub(crate) fn set_presence(&self, presence: PresenceWord) {
        let release = order(self.machine(), Rule::LeaveRelease);
        self.cpu.presence.store(presence.0, release);
    }

    /// Publishes the hazard pointer `now` for this CPU, and returns the previous one. The new root
    /// must be loaded already. See [`Rule::HazardRelease`].
    #[inline]
    pub(crate) fn set_hazard(&self, now: Hazard) -> Hazard {
        Hazard(self.cpu.hazard.swap(now.0, order(self.machine(), Rule::HazardRelease)))
    }

    /// The hazard pointer of this CPU.
    #[inline]
    pub(crate) fn hazard(&self) -> Hazard {
        // Relaxed: other CPUs only mark the pointer that this CPU has stored, and this CPU drops it
        // by a read-modify-write, which cannot miss the mark.
        Hazard(self.cpu.hazard.load(Relaxed))
    }

    /// Orphans a hazard pointer: this CPU dropped the last reference to its space, and could not
    /// reclaim the space. See [`Rule::OrphanRelease`].
    pub(crate) fn orphan(&self, hazard: Hazard) {
        let space = hazard.unmarked();
        self.cpu.hazard.store(space.orphaned().0, order(self.machine(), Rule::OrphanRelease));
    }

    /// Publishes the generation that this CPU has caught up with. See [`Rule::SeenRelease`].
    #[inline]
    pub(crate) fn set_seen(&self, generation: u64) {
        self.cpu.seen.store(generation, order(self.machine(), Rule::SeenRelease));
    }

    /// Publishes `presence` for this CPU, and then executes the full barrier that `rule` demands.
    #[inline]
    pub(crate) fn set_presence_then_fence(&self, presence: PresenceWord, rule: Rule) {
        store_then_fence(self.machine(), &self.cpu.presence, presence.0, Rule::LeaveRelease, rule);
    }
}

/// Panics. Has no reference to the guard, which would then be written to memory in each operation.
#[cold]
#[inline(never)]
#[track_caller]
fn refuse_operation(CpuId(cpu): CpuId, before: Activity) -> ! {
    assert_ne!(before, Activity::User, "CPU {cpu} is in user mode: call `enter_kernel` first");
    panic!(
        "CPU {cpu} is in an operation of the engine already: an interrupt that uses the engine was \
         not masked, or a method of `Machine` called the engine"
    );
}

/// The time in which a CPU is in one of the engine's operations.
///
/// An operation that begins within another one finds the state of its CPU half changed. The caller
/// of [`Shootdown::pin`] promises that this does not happen. Only the flush interrupt's handler may
/// be called within an operation, where the engine calls the machine.
#[must_use = "the operation ends when this is dropped"]
pub(crate) struct Operation<'c> {
    /// `None` if the machine is not [checked](is_checked).
    cpu: Option<&'c Cell<Activity>>,
    /// What the CPU did before, and does afterwards.
    before: Activity,
}

impl Drop for Operation<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(activity) = self.cpu {
            activity.set(self.before);
        }
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
    /// Returns the pin guard of the CPU that runs this call, with which the CPU can switch, flush
    /// and answer.
    ///
    /// # Safety
    ///
    /// While a method of the guard runs, all of this must hold:
    ///
    /// - the caller runs on the CPU on which it called `pin`, and cannot be moved to another one;
    /// - the flush interrupt is masked, and so is every other interrupt whose handler may call
    ///   `pin`, or wait for or drop a [`Pending`](crate::Pending);
    /// - the caller is not in a handler that cannot be masked (NMI, machine check), because such a
    ///   handler may have interrupted a method of another guard.
    ///
    /// There is one exception: the methods call [`Machine::ring`], [`Machine::wait_hint`] and
    /// [`Machine::reclaim`] where this CPU's state is consistent. During these calls, a second
    /// guard may be made to [answer](PinnedCpu::handle_flush_ipi). So a lock that they take may be
    /// waited for in a loop that answers, and `wait_hint` may unmask the flush interrupt for a
    /// moment.
    ///
    /// In builds with assertions, and on machines with [`Machine::CHECKS`], an operation that
    /// begins within another one of its CPU panics.
    #[inline]
    #[expect(unsafe_code, reason = "only the kernel can pin a thread")]
    pub unsafe fn pin(&self) -> PinnedCpu<'_, M> {
        debug_assert!(self.machine.interrupts_masked(), "the flush interrupt must be masked");
        let (id, cpu) = self.machine.this_cpu();
        PinnedCpu { engine: self, cpu, id, not_send: PhantomData }
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests;
