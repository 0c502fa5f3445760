//! *Retire*: the end of a space, while CPUs that are lazy on it still have it loaded.
//!
//! A kernel thread, or the idle loop, borrows the user space that was loaded before. A kernel must
//! not free the space before the last borrower is gone. Most kernels count the borrowers, in one
//! word per space: two locked operations on one cache line for each trip through idle, which limits
//! a machine of 192 CPUs to a million context switches per second. There are two alternatives
//! ([`Lifetime`]): to interrupt the borrowers when the space dies; or to let the last of them free
//! it. The second was proposed for Linux in the same discussion and not built. It costs nothing
//! until a space dies, and then neither an interrupt nor a wait:
//!
//! Each CPU publishes the space whose tables it can walk, in a word of its own, its hazard pointer.
//! The CPU that retires a space reads these words, and marks those that name the space, one by one,
//! by compare-and-swap. A CPU drops a space by swapping its hazard pointer, as it does at each
//! switch. If it finds the mark, it drops a reference to the space. The CPU that drops the last
//! reference frees the space. How the two fit together is in [`rules`](crate::rules).

#![expect(unsafe_code, reason = "a dead space is a pointer: it may be gone at any moment")]

use core::fmt;
use core::ptr::NonNull;

use crate::cpu_set::CpuSet;
use crate::engine::Shootdown;
use crate::hazard::Hazard;
use crate::machine::{Lifetime, Machine};
use crate::memory::{Word, order};
use crate::pending::Pending;
use crate::pinned_cpu::PinnedCpu;
use crate::presence::Presence;
use crate::rules::Rule;
use crate::space::{ALIVE, Space, drop_ref};

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// Ends a space. It is [reclaimed](Machine::reclaim) when no CPU can walk its page tables any
    /// more: before this returns if none can; else, as the machine's [`Lifetime`] has it, when the
    /// last CPU lets go of it by itself, or when the returned [`Retiring`] has been waited for.
    ///
    /// Pages that were mapped can be freed at once, without a flush: nobody uses them.
    ///
    /// # Safety
    ///
    /// The space must be one that CPUs could switch to until now, at this address, and be retired
    /// once. Nobody uses it any more: every CPU that did has since entered lazy, left or switched
    /// away, and this call comes after that, and after the wait for each of its flushes. This CPU,
    /// too, is lazy on it at most.
    ///
    /// No CPU switches to it again, and none [resumes](Self::resume) it while this call runs; after
    /// it, those that still have it loaded lazily find that they cannot, unless the lifetime is
    /// [`Lifetime::Counted`], which leaves no mark: there nobody may try.
    ///
    /// The space must stay where it is until it is reclaimed, and its root a valid page table.
    pub unsafe fn retire(&self, space: NonNull<Space<M>>) -> Retiring<'e, M> {
        // Exposes the pointer that we were given: it is what comes back to be reclaimed.
        let hazard = Hazard::space(space.as_ptr());
        let mut pending = Pending::done(self.engine);
        let mut marked = 0;
        if M::LIFETIME != Lifetime::Counted && !self.machine().breaks(Rule::MarkHazards) {
            if M::LIFETIME == Lifetime::Shoot && self.hazard().is(space.as_ptr()) {
                self.leave_space();
            }
            // SAFETY: the space is there as long as the reference of its users, which is ours to
            // drop, and the Rust reference is gone by then.
            let holders = self.mark_holders(unsafe { space.as_ref() }, hazard);
            marked = holders.len() as u64;
            if M::LIFETIME == Lifetime::Shoot {
                pending.waiting = holders;
                self.ring_all(&mut pending);
            }
        }
        let mut retiring = Retiring { unsettled: Some((space, marked)), pending };
        if retiring.pending.waiting().is_empty() {
            retiring.drop_initial_refs();
        }
        retiring
    }

    /// Has every CPU that holds a dead space let go of it, by interrupting it: for a kernel that is
    /// short of memory, or whose CPUs idle for long with their translations kept. Interrupts no
    /// others.
    ///
    /// When the returned [`Reaping`] is done, spaces that were retired before the call are
    /// reclaimed; but for those that a CPU has [resumed](Self::resume), or is in the middle of
    /// letting go of by itself. With [`Lifetime::Counted`] nobody knows who holds what, and nobody
    /// is told.
    pub fn reap(&self) -> Reaping<'e, M> {
        let machine = self.machine();
        // What our handler could not reclaim, too.
        let hazard = self.hazard();
        if hazard.is_orphaned()
            || hazard.is_marked() && matches!(self.presence(), Presence::Lazy(_))
        {
            self.leave_space();
        }
        let mut online = CpuSet::new();
        self.engine.online().read_into(machine, &mut online);
        online.remove(self.id);
        if M::PREFETCHES {
            online.iter().for_each(|cpu| machine.state(cpu).prefetch(machine));
        }
        let (mut pending, mut all) = (Pending::done(self.engine), CpuSet::new());
        for cpu in online.iter() {
            let hazard = machine.state(cpu).hazard(machine);
            if hazard.is_marked() {
                pending.waiting.insert(cpu);
            }
            if hazard.is_dead() {
                all.insert(cpu);
            }
        }
        self.ring_all(&mut pending);
        Reaping { engine: self.engine, pending, cpus: all }
    }

    /// Marks every CPU that holds the space: it will have to pay when it lets go.
    ///
    /// None can be missed. Whoever holds the space has put itself into the cpumask first; what it
    /// says to hold, it said before it stopped using the space, and so before we look; and it does
    /// not come back once it has let go.
    fn mark_holders(&self, space: &Space<M>, hazard: Hazard) -> CpuSet<M::CpuBits> {
        let machine = self.machine();
        let members = space.cpumask.members(machine);
        if M::PREFETCHES {
            members.iter().for_each(|cpu| machine.state(cpu).prefetch(machine));
        }
        let mut holders = CpuSet::new();
        for cpu in members.iter() {
            let state = machine.state(cpu);
            // Looked at first: the line of one who is elsewhere stays where it is.
            if state.hazard(machine).is(space)
                && state.change_hazard(machine, hazard, hazard.marked())
            {
                holders.insert(cpu);
            }
        }
        holders
    }

    /// Says what is held from now on, the new root being loaded. Returns what was held, and whether
    /// there is a debt to be paid for it.
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

    /// After this CPU has let go of what it held, which was marked: does what is due for it.
    #[cold]
    pub(crate) fn release_hazard(&self, hazard: Hazard) {
        let Some(space) = hazard.pointer() else { return };
        if hazard.is_orphaned() || drop_ref(self.machine(), space) {
            self.counters().spaces_reclaimed.add_unshared(1);
            self.machine().reclaim(space);
        }
    }

    /// Lets go of what is held in the handler of the flush interrupt, where nothing is reclaimed.
    /// If that falls to us, the next one to look at what we hold does it: ourselves, when we next
    /// switch or leave, or whoever [reaps](Self::reap).
    ///
    /// From marked to orphaned in one step: in between, a reaper would find nothing to do here.
    #[cold]
    pub(crate) fn drop_hazard_in_handler(&self, before: Presence) {
        let machine = self.machine();
        let hazard = self.hazard();
        let counted = M::LIFETIME == Lifetime::Counted && matches!(before, Presence::Lazy(_));
        // If that fails, it has been marked this moment.
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

/// A space that is being retired. Done at once, unless its [`Lifetime`] is [`Shoot`].
///
/// Dropping it waits, as with [`Pending`].
///
/// [`Shoot`]: Lifetime::Shoot
#[must_use = "with `Lifetime::Shoot`, the space is reclaimed when this was waited for"]
pub struct Retiring<'e, M: Machine> {
    /// The space, and how many CPUs were marked; `None` when it was given up.
    unsettled: Option<(NonNull<Space<M>>, u64)>,
    pending: Pending<'e, M>,
}

impl<M: Machine> Retiring<'_, M> {
    /// Returns when nobody need be waited for any more. As [`Pending::wait`].
    pub fn wait(self) {}

    /// Whether nobody need be waited for any more, without waiting. As [`Pending::poll`].
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
        let Some((space, marked)) = self.unsettled.take() else { return };
        let machine = &self.pending.engine.machine;
        // SAFETY: as in `drop_ref`: the reference that we drop here is ours.
        let refs = unsafe { &(*space.as_ptr()).refs };
        let change = marked.wrapping_sub(ALIVE);
        let before = refs.fetch_add(change, order(machine, Rule::RetireRelease));
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

/// CPUs that hold dead spaces were told to let go. Dropping it waits, as with [`Pending`].
#[must_use = "dead spaces are reclaimed when this was waited for"]
pub struct Reaping<'e, M: Machine> {
    engine: &'e Shootdown<M>,
    pending: Pending<'e, M>,
    cpus: CpuSet<M::CpuBits>,
}

impl<M: Machine> Reaping<'_, M> {
    /// Returns when they have let go. As [`Pending::wait`].
    ///
    /// [Reclaims](Machine::reclaim) what they could not reclaim in their handlers.
    pub fn wait(self) {}

    /// Whether they have let go, without waiting. Reclaims, too. As [`Pending::poll`].
    pub fn poll(&mut self) -> bool {
        let is_done = self.pending.poll();
        if is_done {
            self.collect();
        }
        is_done
    }

    fn collect(&mut self) {
        let machine = &self.engine.machine;
        while let Some(cpu) = self.cpus.first() {
            self.cpus.remove(cpu);
            let state = machine.state(cpu);
            let hazard = state.hazard(machine);
            if hazard.is_orphaned()
                && state.change_hazard(machine, hazard, Hazard::NOTHING)
                && let Some(space) = hazard.pointer()
            {
                machine.reclaim(space);
            }
        }
    }
}

impl<M: Machine> Drop for Reaping<'_, M> {
    fn drop(&mut self) {
        self.pending.wait();
        self.collect();
    }
}

impl<M: Machine> fmt::Debug for Reaping<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reaping").field(&self.cpus).finish()
    }
}
