//! Linux 7.0 as a guest of KVM: `kvm_flush_tlb_multi`. A virtual CPU that the hypervisor does not
//! run is not interrupted; the hypervisor empties its TLB before it runs the CPU again.

use std::rc::Rc;

use shootdown_sim::Sim;

use super::Linux70;
use crate::linux::lifetime::ExitFlush;

/// The flush of virtual CPUs that the hypervisor does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoppedFlush {
    ByInterrupt,
    ByHypervisor,
}

impl Linux70 {
    /// Creates the design `linux-7.0-pv` on this machine.
    pub fn paravirtual(sim: Rc<Sim>) -> Self {
        let counted = Self::counted(sim, ExitFlush::Interrupts);
        Self { stopped_flush: StoppedFlush::ByHypervisor, ..counted }
    }

    /// Returns the CPUs that must be asked to flush: those that the hypervisor does not flush.
    pub(super) fn without_stopped(&self, mut cpus: Vec<usize>) -> Vec<usize> {
        if self.stopped_flush == StoppedFlush::ByHypervisor {
            cpus.retain(|&cpu| !self.sim.defer_flush(cpu));
        }
        cpus
    }
}
