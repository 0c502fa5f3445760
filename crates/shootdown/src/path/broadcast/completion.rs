//! The completion of a broadcast: by its issuer, for this flush or for another CPU.

use crate::base::ids::CpuId;
use crate::base::rules::Rule;
use crate::parts::bell::Rung;
use crate::parts::cpu_set::CpuSet;
use crate::path::pending::Pending;
use crate::state::machine::Machine;

impl<M: Machine> Pending<'_, M> {
    /// Completes the broadcast that this flush waits for, if this CPU has issued it. Otherwise
    /// rings the issuer, and adds it to the CPUs to wait for.
    #[inline]
    pub(crate) fn complete_broadcast(&mut self) {
        if let Some(issuer) = self.take_issuer() {
            self.complete_broadcast_of(issuer);
        }
    }

    #[inline(never)]
    fn complete_broadcast_of(&mut self, issuer: CpuId) {
        let machine = &self.engine.machine;
        if machine.breaks(Rule::CompleteBroadcasts) {
            return;
        }
        // If the interrupt is not masked, this thread may be moved at any time, and would complete
        // the broadcasts of another CPU.
        if machine.interrupts_masked() && issuer == machine.cpu() {
            self.pin().complete_broadcasts();
        } else {
            self.ring_issuer(issuer);
        }
    }

    fn ring_issuer(&mut self, issuer: CpuId) {
        let machine = &self.engine.machine;
        match machine.state(issuer).bell.ring(machine) {
            Rung::First => {
                let mut cpus = CpuSet::new();
                cpus.insert(issuer);
                machine.ring(&cpus);
            }
            Rung::Coalesced => {}
            // The issuer completed its broadcasts when it went offline.
            Rung::Disconnected => return,
        }
        self.wait_for(issuer);
    }
}
