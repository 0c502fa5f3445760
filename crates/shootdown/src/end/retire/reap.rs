//! *Reap*: CPUs that are lazy on dead spaces are interrupted, to drop them.

use core::fmt;

use crate::parts::cpu_set::CpuSet;
use crate::parts::hazard::Hazard;
use crate::parts::presence::Presence;
use crate::parts::trace_event::{FlushCause, TraceScope};
use crate::path::notify::RingTo;
use crate::path::pending::Pending;
use crate::state::engine::Shootdown;
use crate::state::machine::Machine;
use crate::state::pinned_cpu::PinnedCpu;

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// Interrupts every CPU whose hazard pointer names a dead space, so that it drops the space.
    /// Interrupts no other CPU.
    ///
    /// Call this in a kernel that is short of memory, or whose CPUs idle for long times with their
    /// translations kept.
    ///
    /// All spaces that were retired before the call are reclaimed when the returned [`Reaping`] is
    /// done. There are two exceptions: a space that a CPU has [resumed](Self::resume), and a space
    /// that a CPU is dropping by itself at this moment. With
    /// [`Lifetime::Counted`](crate::Lifetime::Counted) there are no marks, so this interrupts no
    /// CPU.
    pub fn reap(&self) -> Reaping<'e, M> {
        let _operation = self.begin();
        let (machine, began_ns) = (self.machine(), self.begin_trace());
        // This includes a space that this CPU's handler could not reclaim.
        let hazard = self.hazard();
        if hazard.is_orphaned()
            || hazard.is_marked() && matches!(self.presence(), Presence::Lazy(_))
        {
            self.leave();
        }
        let mut online = CpuSet::new();
        self.engine.online().read_into(machine, &mut online);
        online.remove(self.id);
        if M::PREFETCHES {
            online.iter().for_each(|cpu| machine.state(cpu).prefetch(machine));
        }
        let mut pending = Pending::done(self.engine);
        online.retain(|cpu| {
            let hazard = machine.state(cpu).hazard(machine);
            if hazard.is_marked() {
                pending.waiting.insert(cpu);
            }
            hazard.is_dead()
        });
        self.ring_all(&mut pending, RingTo::DropSpace);
        self.end_trace(began_ns, FlushCause::Exit, TraceScope::Spaces, Some(0), &mut pending);
        Reaping { engine: self.engine, pending, cpus: online }
    }
}

/// CPUs that were interrupted to drop dead spaces. Dropping it waits, as for [`Pending`].
#[must_use = "dead spaces are reclaimed after the wait"]
pub struct Reaping<'e, M: Machine> {
    engine: &'e Shootdown<M>,
    pending: Pending<'e, M>,
    cpus: CpuSet<M::CpuBits>,
}

impl<M: Machine> Reaping<'_, M> {
    /// Returns when every interrupted CPU has dropped its dead space. Waits as [`Pending::wait`]
    /// does.
    ///
    /// [Reclaims](Machine::reclaim) the spaces that these CPUs could not reclaim in their handlers.
    pub fn wait(self) {}

    /// Returns `true` if every interrupted CPU has dropped its dead space, without waiting; then
    /// also reclaims as [`wait`](Self::wait) does. See [`Pending::poll`].
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
            if hazard.is_orphaned() && state.change_hazard(machine, hazard, Hazard::NOTHING) {
                if let Some(space) = hazard.pointer() {
                    machine.reclaim(space);
                }
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
