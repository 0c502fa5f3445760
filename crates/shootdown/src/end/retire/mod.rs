//! *Retire*: the end of a space, while CPUs that are lazy on it still have it loaded.
//!
//! A kernel thread, or the idle loop, borrows the user space that was loaded before. A kernel must
//! not free the space before the last borrower is gone. Most kernels count the borrowers in one
//! word per space. That takes two locked operations on one cache line for each trip through idle,
//! and limits a machine of 192 CPUs to a million context switches per second.
//!
//! There are two alternatives ([`Lifetime`]). One interrupts the borrowers when the space dies. The
//! other one lets the last borrower free the space. The second was proposed for Linux in the same
//! discussion as the first, and not built. It costs nothing until a space dies, and then neither an
//! interrupt nor a wait. It works as follows:
//!
//! Each CPU publishes the space whose tables it can walk in its hazard pointer, which is one word.
//! The CPU that retires a space reads these words, and marks those that name the space, one by one,
//! by compare-and-swap. A CPU drops a space by swapping its hazard pointer, as it does at each
//! switch. If it finds the mark, it drops a reference to the space. The CPU that drops the last
//! reference frees the space. How marks and drops fit together is in [`rules`](crate::base::rules).

#![expect(unsafe_code, reason = "a dead space is a pointer: it may be gone at any moment")]

mod reap;

use core::fmt;
use core::mem;
use core::ptr::NonNull;

use crate::base::memory::{Word, order};
use crate::base::rules::Rule;
use crate::parts::cpu_set::CpuSet;
use crate::parts::hazard::Hazard;
use crate::parts::presence::Presence;
use crate::parts::trace_event::{FlushCause, TraceScope};
use crate::path::notify::RingTo;
use crate::path::pending::Pending;
use crate::state::machine::{Lifetime, Machine, is_checked};
use crate::state::pinned_cpu::PinnedCpu;
use crate::state::space::{ALIVE, Space, drop_ref, has_users};

pub use reap::Reaping;

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// Ends a space. The engine calls [`Machine::reclaim`] for it when no CPU can walk its page
    /// tables any more.
    ///
    /// If no CPU can walk them now, that is before this returns. Otherwise it depends on the
    /// machine's [`Lifetime`]: when the last CPU drops the space by itself, or when the returned
    /// [`Retiring`] has been waited for.
    ///
    /// The pages that the space mapped can be freed immediately after this call, without a flush,
    /// because no CPU uses them.
    ///
    /// # Safety
    ///
    /// The caller must ensure all of the following.
    ///
    /// - CPUs could switch to this space, at this address, until now, and it is retired only once.
    /// - No other CPU uses the space any more. Each CPU that used it has since entered lazy, left
    ///   the space or switched away, and this call happens after that. This CPU does not use it
    ///   after this call. If the space is active on this CPU, this call enters lazy. (With
    ///   [`Lifetime::Counted`] it does not: then the caller must have entered lazy.)
    /// - This call happens after the wait for each flush of the space.
    /// - No CPU switches to the space again.
    /// - No device is [attached](crate::Shootdown::attach_device) to the space.
    /// - No CPU [resumes](Self::resume) the space while this call runs. After the call, `resume`
    ///   returns `false` on a CPU that still has the space loaded lazily, because this call has
    ///   marked the CPU. With [`Lifetime::Counted`] there is no mark: then no CPU may call `resume`
    ///   for the space after this call either.
    /// - The space stays at its address, and its root stays a valid page table, until the space is
    ///   reclaimed.
    pub unsafe fn retire(&self, space: NonNull<Space<M>>) -> Retiring<'e, M> {
        let _operation = self.begin();
        // Exposes the provenance of the caller's pointer: `Machine::reclaim` gets it back.
        let hazard = Hazard::space(space.as_ptr());
        let mut pending = Pending::done(self.engine);
        let mut marked = 0;
        if M::LIFETIME != Lifetime::Counted && !self.machine().breaks(Rule::MarkHazards) {
            if M::LIFETIME == Lifetime::Shoot && self.hazard().is(space.as_ptr()) {
                self.leave();
            }
            // SAFETY: the space exists until the reference of its users is dropped, which only this
            // call's `Retiring` does, and the Rust reference ends before that.
            let cpus = self.mark_hazards(unsafe { space.as_ref() }, hazard);
            marked = cpus.len() as u64;
            if M::LIFETIME == Lifetime::Shoot {
                let began_ns = self.begin_trace();
                pending.waiting = cpus;
                self.ring_all(&mut pending, RingTo::DropSpace);
                let scope = TraceScope::Spaces;
                self.end_trace(began_ns, FlushCause::Exit, scope, Some(0), &mut pending);
            }
        }
        // SAFETY: as above.
        self.recycle_asid(unsafe { space.as_ref() });
        let mut retiring = Retiring { undropped: Some((space, marked)), pending };
        if retiring.pending.waiting().is_empty() {
            retiring.drop_initial_refs();
        }
        retiring
    }

    /// Marks the hazard pointer of every CPU that names the space: such a CPU must drop a reference
    /// when it drops the space. Returns the CPUs that were marked.
    ///
    /// No such CPU is missed. It has registered in the cpumask before it published its hazard
    /// pointer. It published its hazard pointer before it stopped using the space, and so before
    /// this call. And after it has dropped the space, it does not come back to it.
    fn mark_hazards(&self, space: &Space<M>, hazard: Hazard) -> CpuSet<M::CpuBits> {
        let machine = self.machine();
        // No load for the assertion alone: with and without assertions, a simulation must give the
        // same bytes.
        let mut members = CpuSet::new();
        let has_devices = space.cpumask.read_with_devices(machine, &mut members);
        debug_assert!(!has_devices, "a device is attached to the dead space");
        if M::PREFETCHES {
            members.iter().for_each(|cpu| machine.state(cpu).prefetch(machine));
        }
        members.retain(|cpu| {
            let state = machine.state(cpu);
            // The load comes before the compare-and-swap, so that the line of a CPU that is
            // elsewhere is not fetched for writing.
            if M::CHECKS && cpu != self.id {
                let presence = state.presence_word(machine);
                let is_used = presence.is_active_on(space.id());
                assert!(!is_used, "the space is retired, and active on CPU {}", cpu.0);
            }
            let can_walk = if cpu == self.id {
                self.stop_using(space)
            } else {
                state.hazard(machine).is(space)
            };
            can_walk && state.change_hazard(machine, hazard, hazard.marked())
        });
        members
    }

    /// Enters lazy if this CPU has the space loaded, and is active on it. Returns `true` if the CPU
    /// has the space loaded.
    ///
    /// For a CPU that is lazy already, this costs a load of its presence, instead of a load of its
    /// hazard pointer in the same line, which names the loaded space.
    fn stop_using(&self, space: &Space<M>) -> bool {
        let is_loaded = self.has_loaded(space);
        if is_loaded {
            self.become_lazy();
        }
        is_loaded
    }

    /// Publishes the next hazard pointer, after the new root was loaded. Returns the previous one;
    /// if that is marked, the caller must [release](Self::release_hazard) it.
    #[inline]
    pub(crate) fn replace_hazard(&self, next: Hazard, before: Presence) -> Hazard {
        let hazard = self.set_hazard(next);
        if self.machine().breaks(Rule::CheckMark) {
            return Hazard::NOTHING;
        }
        match M::LIFETIME {
            Lifetime::Counted if matches!(before, Presence::Lazy(_)) => hazard.marked(),
            _ => hazard,
        }
    }

    /// Drops the reference to the space of a marked hazard pointer that this CPU has replaced, or
    /// reclaims the space of an orphaned one.
    #[cold]
    pub(crate) fn release_hazard(&self, hazard: Hazard) {
        let Some(space) = hazard.pointer() else { return };
        if hazard.is_orphaned() || drop_ref(self.machine(), space) {
            self.counters().spaces_reclaimed.add_unshared(1);
            // SAFETY: after the last reference, only this CPU accesses the space, until it is
            // reclaimed.
            self.recycle_asid(unsafe { space.as_ref() });
            self.machine().reclaim(space);
        }
    }

    /// Drops the loaded space in the handler of the flush interrupt, which must not reclaim it.
    ///
    /// If this drops the last reference, the hazard pointer becomes orphaned. The space is then
    /// reclaimed by this CPU when it next switches or leaves, or by a CPU that [reaps](Self::reap).
    ///
    /// The hazard pointer changes from marked to orphaned in one step. If it were empty in between,
    /// a CPU that reaps could find nothing to reclaim here.
    #[cold]
    pub(crate) fn drop_hazard_in_handler(&self, before: Presence) {
        let machine = self.machine();
        let hazard = self.hazard();
        let counted = M::LIFETIME == Lifetime::Counted && matches!(before, Presence::Lazy(_));
        // If the drop fails, the hazard pointer has been marked since the load above.
        let is_alive = !hazard.is_marked() && !counted;
        if is_alive && self.cpu.drop_unmarked_hazard(machine, hazard) {
            return;
        }
        let Some(space) = hazard.pointer() else { return };
        if drop_ref(machine, space) {
            self.orphan(hazard);
        } else {
            self.set_hazard(Hazard::NOTHING);
        }
    }
}

/// A space that is being retired. It is done immediately, unless the [`Lifetime`] is [`Shoot`].
///
/// Dropping it waits, as for [`Pending`].
///
/// [`Shoot`]: Lifetime::Shoot
#[must_use = "with `Lifetime::Shoot`, the space is reclaimed after the wait"]
pub struct Retiring<'e, M: Machine> {
    /// The space, and the number of CPUs that were marked; `None` after the users' reference was
    /// dropped.
    undropped: Option<(NonNull<Space<M>>, u64)>,
    pending: Pending<'e, M>,
}

impl<M: Machine> Retiring<'_, M> {
    /// Returns when every interrupted CPU has dropped the space. Waits as [`Pending::wait`] does,
    /// with [`Lifetime::Shoot`]; otherwise, no CPU was interrupted, and it returns at once.
    pub fn wait(self) {
        if M::LIFETIME != Lifetime::Shoot {
            debug_assert!(self.undropped.is_none(), "done when `retire` returned");
            // Not a wait in machine code either: `retire` may be called under a lock.
            mem::forget(self);
        }
    }

    /// Returns `true` if every interrupted CPU has dropped the space, without waiting. See
    /// [`Pending::poll`].
    pub fn poll(&mut self) -> bool {
        let is_done = self.pending.poll();
        if is_done {
            self.drop_initial_refs();
        }
        is_done
    }

    /// Drops the reference of the users of the space, and adds one for each CPU that was marked.
    ///
    /// Some of these CPUs may have dropped theirs already, while the users still held their
    /// reference. So only from now on can a drop be the last, and if all have dropped theirs, it is
    /// this one. See [`Rule::RetireRelease`].
    fn drop_initial_refs(&mut self) {
        let Some((space, marked)) = self.undropped.take() else { return };
        let machine = &self.pending.engine.machine;
        // SAFETY: the space exists until the reference of its users is dropped, which happens here.
        // The Rust reference is not used after the operation, and points to a word that may change
        // at any time, as in `Arc`.
        let refs = unsafe { &(*space.as_ptr()).refs };
        let change = marked.wrapping_sub(ALIVE);
        let before = refs.fetch_add(change, order(machine, Rule::RetireRelease));
        assert!(!is_checked::<M>() || has_users(before), "the space is retired twice");
        if before.wrapping_add(change) == 0 {
            refs.load(order(machine, Rule::RetireAcquire));
            machine.reclaim(space);
        }
    }
}

impl<M: Machine> Drop for Retiring<'_, M> {
    fn drop(&mut self) {
        self.pending.wait();
        self.drop_initial_refs();
    }
}

impl<M: Machine> fmt::Debug for Retiring<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Retiring").field(&self.pending.waiting()).finish()
    }
}
