//! The engine on the hostile machine, and programs that drive it as a kernel does.

mod generate;
mod hostile;
mod kernel;
mod op;

use std::fmt;
use std::ops::Range;

use shootdown::{Lifetime, Rule};

use crate::explore::Scene;
use crate::world::{Outcome, Setting};

pub use hostile::Hostile;
pub use op::{BadProgram, Op};

/// How large a system is, what its hardware has, and what is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// CPUs: up to 64.
    pub cpus: usize,
    /// Address spaces.
    pub spaces: usize,
    /// Which tags the hardware has.
    pub tags: Tags,
    /// How spaces end.
    pub lifetime: Lifetime,
    /// Words of a set of CPUs, over which the CPUs are spread: 1; or 2, with
    /// [`Lifetime::Handoff`] alone.
    pub cpu_words: usize,
    /// A rule that the engine breaks.
    pub broken: Option<Rule>,
}

impl Config {
    /// Three spaces that the last CPU frees, two tags for each CPU, sets of one word, and no rule
    /// broken.
    #[must_use]
    pub const fn new(cpus: usize) -> Self {
        let (tags, lifetime) = (Tags::PerCpu(2), Lifetime::Handoff);
        Self { cpus, spaces: 3, tags, lifetime, cpu_words: 1, broken: None }
    }
}

/// Which tags there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tags {
    /// So many of each CPU's own, up to 2: as on x86.
    PerCpu(usize),
    /// So many that mean the same on all CPUs, up to 63: as on RISC-V.
    Global(usize),
    /// The same, with invalidations that reach everyone, if there is one more than there are CPUs
    /// (and sets of CPUs have one word): as on Arm. One tag more can be pinned for a device.
    Broadcast(usize),
    /// So many that each CPU counts up: as on ARC.
    Renamed(usize),
}

/// How many address spaces there can be.
pub const SPACES_MAX: usize = 12;

/// What each CPU does on a machine with this engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    /// The machine and the engine.
    pub config: Config,
    /// For each CPU.
    pub ops: Vec<Vec<Op>>,
}

impl Programs {
    /// How many operations all CPUs have together.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ops.iter().map(Vec::len).sum()
    }

    /// Whether no CPU does anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same with as few operations as it can have so that `fails` says so all the same.
    #[must_use]
    pub fn shrunken(&self, fails: impl Fn(&Self) -> bool) -> Self {
        let mut smallest = self.clone();
        // In parts that become smaller, down to one operation.
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

    /// Without some of the operations, which are counted from CPU to CPU.
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

    /// Without the CPUs that do nothing, if it fails without them, too.
    fn with_busy_cpus(self, fails: impl Fn(&Self) -> bool) -> Self {
        let mut busy = self.clone();
        busy.ops.retain(|ops| !ops.is_empty());
        busy.config.cpus = busy.ops.len();
        if busy.config.cpus > 0 && fails(&busy) { busy } else { self }
    }
}

impl Scene for Programs {
    fn run(&self, setting: Setting<'_>) -> Outcome {
        kernel::run_programs(self, setting)
    }
}

impl fmt::Display for Programs {
    /// As it is parsed: operations behind commas, CPUs behind bars.
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
