//! *Flush of walkers*: makes every CPU stop walking tables that earlier flushes unhooked.

use crate::base::memory::fence;
use crate::base::rules::Rule;
use crate::parts::trace_event::{FlushCause, TraceScope};
use crate::path::notify::RingTo;
use crate::path::pending::Pending;
use crate::path::quarantine::Horizon;
use crate::state::machine::Machine;
use crate::state::pinned_cpu::PinnedCpu;
use crate::state::space::Space;

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// Notifies every CPU that could still walk unhooked page tables of `space`. When the returned
    /// [`Pending`] is done, its [`Horizon`] clears the tables of every flush before this call: they
    /// can be freed.
    ///
    /// For a kernel that has no room left in [`Quarantine`](crate::Quarantine). Interrupts CPUs
    /// that are lazy on the space, and some that use it: a CPU that has not been lazy since the
    /// last flush has not published that it has caught up.
    ///
    /// # Panics
    ///
    /// If the space is another engine's.
    pub fn flush_walkers(&self, space: &Space<M>) -> Pending<'e, M> {
        let _operation = self.begin();
        assert!(self.engine.owns(space), "the space is another engine's");
        let (machine, began_ns) = (self.machine(), self.begin_trace());
        let generation = space.log.generation(machine);
        // Pairs with SwitchFence: this CPU observes the presence of a CPU that switches in and has
        // not read this generation. Without: that CPU walks unhooked tables, and is not rung.
        fence(machine, Rule::FlushWalkersFence);
        let is_broadcast = self.try_broadcast_whole(space, space.global_tag(machine), generation);
        let mut pending = Pending::done(self.engine);
        pending.horizon = Horizon::of(space.id(), generation, generation);
        self.read_others(space, &mut pending.waiting);
        pending.waiting.retain(|cpu| {
            let state = machine.state(cpu);
            let presence = state.presence_word(machine);
            if is_broadcast && presence.is_on(space.id()) {
                return false;
            }
            let is_coming = presence.is_switching_to(space.id());
            // Includes active CPUs: such a CPU may be returning, and not have caught up yet.
            let is_behind = || state.hazard(machine).is(space) && state.seen(machine) < generation;
            (is_coming || is_behind()) && !machine.breaks(Rule::InterruptWalkers)
        });
        self.ring_all(&mut pending, RingTo::Invalidate);
        if is_broadcast {
            self.await_broadcast(&mut pending);
        }
        if self.has_loaded(space) {
            self.catch_up(space);
        }
        let scope = TraceScope::Space(space.id());
        self.end_trace(began_ns, FlushCause::Walkers, scope, Some(0), &mut pending);
        pending
    }
}
