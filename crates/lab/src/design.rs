//! Designs by name.

use std::fmt;
use std::io::Read;
use std::rc::Rc;
use std::str::FromStr;

use shootdown_designs::engine::Ours;
use shootdown_designs::{Engine, ExitFlush, Linux70, Linux412, Linux414, LinuxPolicy, Naive};
use shootdown_sim::{Machine, Sim};
use shootdown_vm::Coherence;
use shootdown_workload::recording::Reader;
use shootdown_workload::replay::{ReplayError, Survey, replay};
use shootdown_workload::{Limits, Outcome, RunError, Workload, run};

/// A way to keep TLBs coherent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Design {
    /// Interrupt everyone and wait.
    Naive,
    /// Linux before seed 000.
    Linux412,
    /// Linux with seed 000, as first merged.
    Linux414,
    /// Linux today, but that nobody counts lazy CPUs.
    Linux70,
    /// Linux 7.0 with lazy CPUs counted, as it does count them.
    LinuxCounted,
    /// Linux 7.0 with lazy CPUs interrupted at exit, as on powerpc (seed 001).
    PowerpcShoot,
    /// Linux 7.0 with lazy CPUs found by hazard pointers, as was proposed.
    LinuxHazard,
    /// The engine of this repository, with the memory manager doing as under Linux 7.0.
    ShootdownAlone,
    /// The engine of this repository.
    Shootdown,
}

impl Design {
    /// All of them, ours last.
    pub const ALL: [Self; 9] = [
        Self::Naive,
        Self::Linux412,
        Self::Linux414,
        Self::Linux70,
        Self::LinuxCounted,
        Self::PowerpcShoot,
        Self::LinuxHazard,
        Self::ShootdownAlone,
        Self::Shootdown,
    ];

    /// Its name, as one types it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::Linux412 => "linux-4.12",
            Self::Linux414 => "linux-4.14",
            Self::Linux70 => "linux-7.0",
            Self::LinuxCounted => "linux-counted",
            Self::PowerpcShoot => "powerpc-shoot",
            Self::LinuxHazard => "linux-hazard",
            Self::ShootdownAlone => "shootdown-alone",
            Self::Shootdown => "shootdown",
        }
    }

    /// Runs a workload on a machine under this design.
    ///
    /// # Errors
    ///
    /// As [`shootdown_workload::run`].
    pub fn run(
        self,
        machine: Machine,
        limits: Limits,
        workload: Rc<dyn Workload>,
    ) -> Result<Outcome, RunError> {
        self.perform(machine, Run { limits, workload })
    }

    /// Replays a recording by its own schedule under this design.
    ///
    /// # Errors
    ///
    /// As [`shootdown_workload::replay::replay`].
    pub fn replay<R: Read + 'static>(
        self,
        machine: Machine,
        reader: Reader<R>,
        survey: &Survey,
        progress: impl Fn(u64) + 'static,
    ) -> Result<Outcome, ReplayError> {
        self.perform(machine, Replay { reader, survey, progress })
    }

    fn perform<J: Job>(self, machine: Machine, job: J) -> J::Output {
        match self {
            Self::Naive => job.perform(machine, Naive::new),
            Self::Linux412 => job.perform(machine, Linux412::new),
            Self::Linux414 => job.perform(machine, Linux414::new),
            Self::Linux70 => job.perform(machine, Linux70::new),
            Self::LinuxCounted => job.perform(machine, |sim| Linux70::counted(sim, EXIT_FLUSH)),
            Self::PowerpcShoot => job.perform(machine, |sim| Linux70::shoot(sim, EXIT_FLUSH)),
            Self::LinuxHazard => job.perform(machine, |sim| Linux70::hazard(sim, EXIT_FLUSH)),
            // As a kernel would be built for so many CPUs.
            Self::ShootdownAlone => match machine.cpu_count() {
                ..=64 => job.perform(machine, Engine::<1, LinuxPolicy>::new),
                65..=256 => job.perform(machine, Engine::<4, LinuxPolicy>::new),
                _ => job.perform(machine, Engine::<64, LinuxPolicy>::new),
            },
            Self::Shootdown => match machine.cpu_count() {
                ..=64 => job.perform(machine, Engine::<1, Ours>::new),
                65..=256 => job.perform(machine, Engine::<4, Ours>::new),
                _ => job.perform(machine, Engine::<64, Ours>::new),
            },
        }
    }
}

/// Of the designs that differ in how long lazy spaces live, on whatever machine: were lazy CPUs
/// interrupted by the last flush, as on x86, they would not differ in what follows. It is in favour
/// of all three alike.
const EXIT_FLUSH: ExitFlush = ExitFlush::Broadcast;

/// What can be done under any design.
trait Job {
    type Output;

    fn perform<C: Coherence + 'static>(
        self,
        machine: Machine,
        design: impl FnOnce(Rc<Sim>) -> C,
    ) -> Self::Output;
}

struct Run {
    limits: Limits,
    workload: Rc<dyn Workload>,
}

impl Job for Run {
    type Output = Result<Outcome, RunError>;

    fn perform<C: Coherence + 'static>(
        self,
        machine: Machine,
        design: impl FnOnce(Rc<Sim>) -> C,
    ) -> Self::Output {
        run(machine, self.limits, self.workload, design)
    }
}

struct Replay<'s, R, P> {
    reader: Reader<R>,
    survey: &'s Survey,
    progress: P,
}

impl<R: Read + 'static, P: Fn(u64) + 'static> Job for Replay<'_, R, P> {
    type Output = Result<Outcome, ReplayError>;

    fn perform<C: Coherence + 'static>(
        self,
        machine: Machine,
        design: impl FnOnce(Rc<Sim>) -> C,
    ) -> Self::Output {
        let frames = Limits::default().frames;
        replay(machine, frames, self.reader, self.survey, self.progress, design)
    }
}

impl fmt::Display for Design {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// There is no design of that name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownDesign(pub String);

impl fmt::Display for UnknownDesign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no design `{}`", self.0.escape_debug())
    }
}

impl std::error::Error for UnknownDesign {}

impl FromStr for Design {
    type Err = UnknownDesign;

    fn from_str(name: &str) -> Result<Self, UnknownDesign> {
        let found = Self::ALL.into_iter().find(|design| design.name() == name);
        found.ok_or_else(|| UnknownDesign(name.to_owned()))
    }
}
