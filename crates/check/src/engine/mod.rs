//! The engine on the hostile machine, and programs that drive it as a kernel does.

mod generate;
mod hostile;
mod kernel;
mod op;

use std::fmt;
use std::ops::Range;

use shootdown::{Lifetime, Rule};

use crate::explore::Scenario;
use crate::machine::{Outcome, RunSettings};

pub use hostile::EngineMachine;
pub use op::{BadProgram, Op};

/// The size of a system, its hardware, and the rule that its engine breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Number of CPUs: 1 to 64.
    pub cpus: usize,
    /// Number of address spaces.
    pub spaces: usize,
    /// The tags of the hardware.
    pub tags: Tags,
    /// The way in which spaces end.
    pub lifetime: Lifetime,
    /// Number of words of a CPU set, over which the CPUs are spread: 1, or 2 with
    /// [`Lifetime::Handoff`] only.
    pub cpu_words: usize,
    /// The rule that the engine breaks, if any.
    pub broken: Option<Rule>,
    /// The mistake of the kernel or of its processor, if any.
    pub fault: Option<Fault>,
}

/// A mistake outside the engine, which a search must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The processor leaves out the workaround of its [erratum](crate::Erratum).
    NoWorkaround,
    /// The processor of guests invalidates entries of stage 2 only, and keeps combined ones.
    CombinedKept,
    /// The processor of guests invalidates combined entries before it has waited for those of stage
    /// 2.
    CombinedEarly,
    /// Where guests have named virtual CPUs, the processor invalidates the name of the one that ran
    /// last instead of the guest.
    OneNameInvalidated,
    /// Where a guest's entry invalidates, the entry after an interrupt invalidates nothing.
    InterruptedKept,
    /// Where a guest's entry invalidates, the entry of any guest forgets what that of another must
    /// still invalidate.
    EntriesForgotten,
    /// The kernel flushes the small pages of a table as one large page.
    LargeStride,
    /// The kernel tests a [discarded](Op::FreeDiscarded) page for zeros before the flush.
    EarlyZeroTest,
    /// The processor has a wrong map of TLBI domains: it takes each CPU for another one.
    WrongDomains,
    /// The kernel frees its page table without an invalidation on the device.
    KernelTableOnDevice,
}

impl Config {
    /// A configuration of three spaces with [`Lifetime::Handoff`], two tags for each CPU, sets of
    /// one word, and no bug.
    pub const fn new(cpus: usize) -> Self {
        let (tags, lifetime) = (Tags::PerCpu(2), Lifetime::Handoff);
        Self { cpus, spaces: 3, tags, lifetime, cpu_words: 1, broken: None, fault: None }
    }
}

/// The kind and number of the hardware's tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tags {
    /// Each CPU has up to 2 tags of its own, as on x86.
    PerCpu(usize),
    /// All CPUs share up to 63 tags, as on RISC-V.
    Global(usize),
    /// All CPUs share up to 63 tags, and invalidations can be broadcast, as on Arm. The engine
    /// broadcasts if there is at least one tag more than there are CPUs, and if CPU sets have one
    /// word. One tag more can be pinned for a device.
    Broadcast(usize),
    /// As `Broadcast`, but of four broadcasts of a CPU the hardware refuses three, which have
    /// reached no CPU, that CPU, and all.
    Refused(usize),
    /// As `Broadcast`, and the invalidation of a tag can instead be sent to TLBI domains: to
    /// exactly the CPUs that it names, if they are one or two.
    Domains(usize),
    /// Each CPU assigns up to this many tags, counting up, as on ARC.
    Renamed(usize),
    /// The kernel assigns up to 63 tags to spaces in turn, so that spaces share tags if there are
    /// more of them.
    Assigned(usize),
}

/// Maximum number of address spaces.
pub const SPACES_MAX: usize = 12;

/// A program for each CPU of a machine with this engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    /// The machine and the engine.
    pub config: Config,
    /// The operations of each CPU.
    pub ops: Vec<Vec<Op>>,
}

impl Programs {
    /// Returns the number of operations of all CPUs.
    pub fn len(&self) -> usize {
        self.ops.iter().map(Vec::len).sum()
    }

    /// Returns `true` if no CPU has an operation.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the smallest program for which `fails` still returns `true`, as far as removing
    /// operations and CPUs finds it.
    pub fn shrink(&self, fails: impl Fn(&Self) -> bool) -> Self {
        let mut smallest = self.clone();
        // Remove parts that become smaller, down to one operation.
        let mut part = smallest.len().div_ceil(2);
        while part > 0 {
            let mut start = 0;
            while start < smallest.len() {
                let smaller = smallest.without(start..start + part);
                if fails(&smaller) {
                    smallest = smaller;
                } else {
                    start += part;
                }
            }
            part /= 2;
        }
        smallest.with_busy_cpus(&fails)
    }

    /// Returns the programs without a range of operations, which are numbered from CPU to CPU.
    fn without(&self, left_out: Range<usize>) -> Self {
        let mut number = 0;
        let mut stays = |_: &Op| {
            number += 1;
            !left_out.contains(&(number - 1))
        };
        let mut smaller = self.clone();
        smaller.ops.iter_mut().for_each(|ops| ops.retain(&mut stays));
        smaller
    }

    /// Removes the CPUs that have no operation, if the programs still fail then.
    fn with_busy_cpus(self, fails: impl Fn(&Self) -> bool) -> Self {
        let mut busy = self.clone();
        busy.ops.retain(|ops| !ops.is_empty());
        busy.config.cpus = busy.ops.len();
        if busy.config.cpus > 0 && fails(&busy) { busy } else { self }
    }
}

impl Scenario for Programs {
    fn run(&self, settings: RunSettings<'_>) -> Outcome {
        kernel::run_programs(self, settings)
    }
}

impl fmt::Display for Programs {
    /// Formats the programs as they are parsed: operations separated by commas, CPUs by bars.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (cpu, ops) in self.ops.iter().enumerate() {
            f.write_str(if cpu == 0 { "" } else { " | " })?;
            for (index, op) in ops.iter().enumerate() {
                write!(f, "{}{op}", if index == 0 { "" } else { ", " })?;
            }
        }
        Ok(())
    }
}
