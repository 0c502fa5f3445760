//! CPUs that are taking an ASID, which a CPU waits for that is going to end the epoch, if ASIDs are
//! few.

use core::sync::atomic::Ordering::Relaxed;

use crate::base::memory::Word;
use crate::parts::cpu_set::CpuSet;
use crate::state::cpu_state::CpuState;
use crate::state::machine::Machine;
use crate::state::pinned_cpu::PinnedCpu;

/// Most times that a CPU calls [`Machine::spin_hint`] for each CPU before it ends an epoch. A CPU
/// that takes an ASID reads a few words of each CPU, which take 0.1 µs each.
const SPINS_PER_CPU: usize = 256;

/// Records that a CPU, this one or one that has stopped, has chosen the ASID that it took, or gives
/// it up.
pub(super) fn end_taking<M: Machine>(cpu: &CpuState<M>) {
    // Relaxed: for progress only. Most CPUs never write the word: see `may_run_out_early`.
    if cpu.taking.load(Relaxed) != 0 {
        cpu.taking.store(0, Relaxed);
    }
}

impl<M: Machine> PinnedCpu<'_, M> {
    /// Records that this CPU is taking an ASID of `epoch`, if other CPUs may wait for it.
    pub(super) fn begin_taking(&self, epoch: u64) {
        if self.engine.tags().may_run_out_early(self.machine()) {
            // Relaxed: for progress only.
            self.cpu.taking.store(epoch, Relaxed);
        }
    }

    /// Waits until no other CPU is taking an ASID of `epoch`, which this CPU is about to end, if
    /// CPUs could otherwise end epochs for each other for ever: with `C` CPUs, and fewer than `2C`
    /// ASIDs that are not pinned.
    ///
    /// Then the epoch ends after a CPU has chosen an ASID of it: this CPU has found all blocks
    /// taken, at least one of them had an ASID to hand out, and the CPU that took it was taking
    /// until it had chosen. A CPU that is taking waits for none, so there is no deadlock. The wait
    /// is bounded, for a CPU that its hypervisor has stopped: only progress depends on it.
    pub(super) fn await_takers(&self, epoch: u64) {
        let (machine, tags) = (self.machine(), self.engine.tags());
        end_taking(self.cpu);
        if !tags.may_run_out_early(machine) {
            return;
        }
        let mut users = CpuSet::new();
        tags.users.read_into(machine, &mut users);
        let mut spins = users.len() * SPINS_PER_CPU;
        for cpu in users.iter() {
            // Relaxed: for progress only. A CPU that is found too late loses its ASID.
            while machine.state(cpu).taking.load(Relaxed) == epoch
                && tags.epoch.load(Relaxed) == epoch
            {
                if spins == 0 {
                    return;
                }
                spins -= 1;
                machine.spin_hint();
            }
        }
    }
}

#[cfg(all(test, feature = "soft"))]
#[expect(unsafe_code, reason = "switching is unsafe")]
mod tests;
