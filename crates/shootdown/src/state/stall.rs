//! *Stall*: which CPUs a flush waits for, and how far each of them has got.

use core::fmt;

use crate::base::ids::CpuId;
use crate::parts::bell::BellState;
use crate::parts::cpu_set::CpuSet;
use crate::parts::presence::Presence;
use crate::state::machine::Machine;

/// Number of turns of a wait after which a build with debug assertions
/// [reports](Machine::report_stall) it: two seconds, at 100 ns each.
#[cfg(debug_assertions)]
const TURNS_MAX: u32 = 1 << 24;

/// The CPUs that a flush waits for, as text for a watchdog. Each CPU has one line:
///
/// ```text
/// no answer to a flush:
/// CPU 3: rung, handler not entered (interrupt masked or lost, or CPU not running), Active(7)
/// ```
///
/// If there is no CPU, the flush waits for a device.
///
/// Make it in [`Machine::wait_hint`], from the set that is passed there.
pub struct StallReport<'a, M: Machine> {
    machine: &'a M,
    waiting: &'a CpuSet<M::CpuBits>,
}

/// A CPU whose answer a flush waits for, as shared memory shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// The CPU.
    pub cpu: CpuId,
    /// How far the CPU has got with its answer.
    pub bell: BellState,
    /// The space that the CPU could be using.
    pub presence: Presence,
}

impl<'a, M: Machine> StallReport<'a, M> {
    /// The report of a wait for the CPUs of `waiting`.
    #[must_use]
    pub const fn new(machine: &'a M, waiting: &'a CpuSet<M::CpuBits>) -> Self {
        Self { machine, waiting }
    }

    /// The CPUs that the flush waits for. Some may have answered since the waiter last polled:
    /// their bell is [quiet](BellState::Quiet).
    pub fn cpus(&self) -> impl Iterator<Item = Unanswered> + use<'a, M> {
        let machine = self.machine;
        self.waiting.iter().map(move |cpu| {
            let state = machine.state(cpu);
            Unanswered { cpu, bell: state.bell.state(), presence: state.presence(machine) }
        })
    }
}

impl<M: Machine> fmt::Display for StallReport<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no answer to a flush:")?;
        if self.waiting.is_empty() {
            return f.write_str(" a device has not completed it");
        }
        self.cpus().try_for_each(|cpu| write!(f, "\n{cpu}"))
    }
}

impl<M: Machine> fmt::Debug for StallReport<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.cpus()).finish()
    }
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpu, bell, presence } = self;
        let state = match bell {
            BellState::Quiet => "has answered by now",
            BellState::Rung => {
                "rung, handler not entered (interrupt masked or lost, or CPU not running)"
            }
            BellState::Polling => "waits for a flush of its own, masked, and does not poll",
            BellState::Answering => "in its handler, masked, and has not answered",
            BellState::Disconnected => "offline",
        };
        write!(f, "CPU {}: {state}, {presence:?}", cpu.0)
    }
}

/// Counts the turns of one wait. Empty in builds without debug assertions.
#[derive(Default)]
pub(crate) struct Turns {
    #[cfg(debug_assertions)]
    count: u32,
}

impl Turns {
    /// Counts one turn, and reports a stall once.
    #[inline]
    pub(crate) fn count<M: Machine>(&mut self, machine: &M, waiting: &CpuSet<M::CpuBits>) {
        #[cfg(debug_assertions)]
        {
            self.count = self.count.saturating_add(1);
            if self.count == TURNS_MAX {
                machine.report_stall(&StallReport::new(machine, waiting));
            }
        }
        #[cfg(not(debug_assertions))]
        let _ = (self, machine, waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::machine::tests::Plain;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::string::String;

    /// The report of the default [`Machine::report_stall`] in one turn of a wait for CPU 3; `None`
    /// if there is none.
    fn report_in_turn(turns: &mut Turns) -> Option<String> {
        let (machine, mut waiting) = (Plain::<0>::with_tags(0), CpuSet::new());
        waiting.insert(CpuId(3));
        let turn = AssertUnwindSafe(|| turns.count(&machine, &waiting));
        catch_unwind(turn).err().map(|panic| *panic.downcast().unwrap())
    }

    #[test]
    #[cfg(debug_assertions)]
    fn long_wait_is_reported_once() {
        let mut turns = Turns { count: TURNS_MAX - 2 };
        assert_eq!(report_in_turn(&mut turns), None);
        let report = report_in_turn(&mut turns);
        assert_eq!(report.as_deref(), Some("no answer to a flush:\nCPU 3: offline, Out"));
        assert_eq!(report_in_turn(&mut turns), None);
        turns.count = u32::MAX;
        assert_eq!(report_in_turn(&mut turns), None);
    }
}
