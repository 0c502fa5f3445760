//! Designs by name.

use std::fmt;
use std::fs::File;
use std::rc::Rc;
use std::str::FromStr;

use shootdown_designs::engine::{Broadcasting, Interrupting, Ours, Policy};
use shootdown_designs::linux::arc::{ByArea, BySpace};
use shootdown_designs::{
    Arc, Arm64, Engine, ExitFlush, Latr, Linux70, Linux412, Linux414, LinuxPolicy, Naive, Riscv,
    UnmapBatched,
};
use shootdown_program::Workload;
use shootdown_recording::Reader;
use shootdown_run::replay::{ReplayError, Survey, replay};
use shootdown_run::{Limits, Outcome, RunError, run};
use shootdown_sim::{Machine, Sim};
use shootdown_vm::Coherence;

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
    /// Linux 7.0 with lazy CPUs counted, and INVLPGB where the machine has it.
    LinuxInvlpgb,
    /// Linux before seed 004: what reclaim takes is flushed page by page.
    Unmap42,
    /// Linux with seed 004: one interrupt for each CPU and batch of pages.
    UnmapBatched,
    /// The same, and nobody is told of an `munmap`: LATR, in its safe configuration.
    Latr,
    /// Linux on ARC before seed 002.
    Arc39,
    /// Linux on ARC with seed 002.
    ArcRanged,
    /// Linux on arm64.
    Arm64,
    /// Linux on arm64 with seed 003.
    Arm64Skip,
    /// Linux on RISC-V.
    Riscv,
    /// The engine of this repository, which tells others by interrupts alone.
    ShootdownInterrupts,
    /// The engine of this repository, which tells others by broadcasts where the machine has them.
    ShootdownBroadcasts,
    /// The engine of this repository, with the memory manager doing as under Linux 7.0.
    ShootdownAlone,
    /// The engine of this repository.
    Shootdown,
}

impl Design {
    /// Those that are of interest on any machine, ours last.
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

    /// Those that differ from others only when memory is reclaimed.
    pub const OF_RECLAIM: [Self; 2] = [Self::Unmap42, Self::UnmapBatched];

    /// Those that were proposed, and are in no kernel.
    pub const OF_RESEARCH: [Self; 1] = [Self::Latr];

    /// Those that were made for hardware of another kind than x86's: tags that are the same on all
    /// CPUs, or are renamed, and ways to tell others that interrupt nobody; and ours with one of
    /// these ways alone.
    ///
    /// They are sound on any machine. What they do without the hardware is what their kernels do,
    /// or would have to; each says so: see [`shootdown_designs::linux`].
    pub const OF_OTHER_HARDWARE: [Self; 8] = [
        Self::Arc39,
        Self::ArcRanged,
        Self::Arm64,
        Self::Arm64Skip,
        Self::Riscv,
        Self::LinuxInvlpgb,
        Self::ShootdownInterrupts,
        Self::ShootdownBroadcasts,
    ];

    /// Every design.
    pub fn every() -> impl Iterator<Item = Self> {
        Self::OF_OTHER_HARDWARE
            .into_iter()
            .chain(Self::OF_RECLAIM)
            .chain(Self::OF_RESEARCH)
            .chain(Self::ALL)
    }

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
            Self::LinuxInvlpgb => "linux-7.0-invlpgb",
            Self::Unmap42 => "unmap-4.2",
            Self::UnmapBatched => "unmap-batched",
            Self::Latr => "latr",
            Self::Arc39 => "arc-3.9",
            Self::ArcRanged => "arc-ranged",
            Self::Arm64 => "arm64",
            Self::Arm64Skip => "arm64-skip",
            Self::Riscv => "riscv",
            Self::ShootdownInterrupts => "shootdown-interrupts",
            Self::ShootdownBroadcasts => "shootdown-broadcasts",
            Self::ShootdownAlone => "shootdown-alone",
            Self::Shootdown => "shootdown",
        }
    }

    /// Runs a workload on a machine under this design.
    ///
    /// # Errors
    ///
    /// As [`shootdown_run::run`].
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
    /// As [`shootdown_run::replay::replay`].
    pub fn replay(
        self,
        machine: Machine,
        reader: Reader<File>,
        survey: &Survey,
        progress: impl Fn(u64) + 'static,
    ) -> Result<Outcome, ReplayError> {
        self.replay_boxed(machine, reader, survey, Box::new(progress))
    }

    /// It has no parameters: so all designs are compiled with it here, once, and not in each crate
    /// that replays.
    fn replay_boxed(
        self,
        machine: Machine,
        reader: Reader<File>,
        survey: &Survey,
        progress: Box<dyn Fn(u64)>,
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
            // On x86 the last flush interrupts, but that INVLPGB does it where it can.
            Self::LinuxInvlpgb => {
                job.perform(machine, |sim| Linux70::invlpgb(sim, ExitFlush::Interrupts))
            }
            Self::Unmap42 => job.perform(machine, Linux412::new),
            Self::UnmapBatched => job.perform(machine, UnmapBatched::new),
            Self::Latr => job.perform(machine, Latr::new),
            Self::Arc39 => job.perform(machine, Arc::<BySpace>::new),
            Self::ArcRanged => job.perform(machine, Arc::<ByArea>::new),
            Self::Arm64 => job.perform(machine, Arm64::stock),
            Self::Arm64Skip => job.perform(machine, Arm64::skip),
            Self::Riscv => job.perform(machine, Riscv::new),
            Self::ShootdownInterrupts => engine::<_, Interrupting>(machine, job),
            Self::ShootdownBroadcasts => engine::<_, Broadcasting>(machine, job),
            Self::ShootdownAlone => engine::<_, LinuxPolicy>(machine, job),
            Self::Shootdown => engine::<_, Ours>(machine, job),
        }
    }
}

/// The engine, as a kernel would be built for so many CPUs.
fn engine<J: Job, P: Policy + 'static>(machine: Machine, job: J) -> J::Output {
    match machine.cpu_count() {
        ..=64 => job.perform(machine, Engine::<1, P>::new),
        65..=256 => job.perform(machine, Engine::<4, P>::new),
        _ => job.perform(machine, Engine::<64, P>::new),
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

struct Replay<'s> {
    reader: Reader<File>,
    survey: &'s Survey,
    progress: Box<dyn Fn(u64)>,
}

impl Job for Replay<'_> {
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
        let found = Self::every().find(|design| design.name() == name);
        found.ok_or_else(|| UnknownDesign(name.to_owned()))
    }
}
