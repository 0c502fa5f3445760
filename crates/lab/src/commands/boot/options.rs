//! The options of `shootdown boot`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::emulator::{Architecture, Emulator};
use crate::render::Format;

/// The flushes of pages that are reclaimed or moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReclaimFlushes {
    /// One for many pages
    Batched,
    /// One for each page
    PerPage,
    /// None: a fault, which must make a thread read a wrong word
    Unflushed,
}

/// The release of pages that `madvise` discards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Discards {
    /// Later, many with one flush
    InPlace,
    /// In the call, which flushes
    Immediate,
    /// Later, without the test for zeros: a fault, which must make a thread read a wrong word
    Untested,
    /// Later, without the flush: a fault, which must make a thread read a wrong word
    Unflushed,
}

/// The page tables that CPUs load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Replicas {
    /// All CPUs that run a space load the same tables
    Never,
    /// Each CPU loads upper tables of its own where that saves more than it costs
    IfWorth,
    /// Each CPU loads upper tables of its own from its first fault on
    Always,
    /// As `always`, and flushes leave out the replicas of other CPUs: a fault, which must show as
    /// wrong words
    Unflushed,
}

/// How flushes notify other CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Notify {
    /// As the architecture's processor does by default
    Default,
    /// By broadcasts where they cost less: RISC-V's remote fences, by the firmware
    Broadcasts,
    /// As by default, and CPUs answer before they invalidate pages
    EarlyAnswers,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Boot {
    /// The architecture
    #[arg(long, value_enum, default_value_t = Architecture::X86_64)]
    pub(super) arch: Architecture,
    /// The emulator
    #[arg(long, value_enum, default_value_t = Emulator::Qemu)]
    pub(super) emulator: Emulator,
    /// The number of CPUs
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(super) cpus: u32,
    /// Run this workload or recording, and compare with the simulator; without this option, inject
    /// faults into the engine's processor and check that the tests detect them
    #[arg(long, value_name = "NAME|RECORDING")]
    pub(super) workload: Option<String>,
    /// Measure time in instructions: CPUs take turns, and each run gives the same output
    #[arg(long)]
    pub(super) counts: bool,
    /// The flushes of pages that the kernel reclaims or moves, in the workloads `reclaim` and
    /// `moves`
    #[arg(long, value_enum, value_name = "FLUSHES", default_value_t = ReclaimFlushes::Batched)]
    pub(super) reclaim: ReclaimFlushes,
    /// The release of pages that the workload discards
    #[arg(long, value_enum, value_name = "RELEASE", default_value_t = Discards::InPlace)]
    pub(super) discards: Discards,
    /// The page tables that CPUs load for the workload; with replicas, threads map memory in
    /// regions of their own. Not on AArch64, whose broadcasts interrupt no CPU
    #[arg(long, value_enum, value_name = "TABLES", default_value_t = Replicas::Never,
          requires = "workload")]
    pub(super) replicas: Replicas,
    /// How flushes notify other CPUs
    #[arg(long, value_enum, value_name = "METHOD", default_value_t = Notify::Default)]
    pub(super) notify: Notify,
    /// The seed of the workload's random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// The number of flushes of each CPU in a storm
    #[arg(long, value_name = "N", default_value_t = 40, conflicts_with = "workload")]
    pub(super) rounds: u64,
    /// The longest time without a line from the kernel, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(super) patience: u64,
    /// The format of the output
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(super) format: Format,
    /// Show every line that the kernel prints
    #[arg(long)]
    pub(super) console: bool,
    /// Keep a TLB that never forgets beside QEMU's, and show which faults it finds
    #[arg(long, conflicts_with_all = ["workload", "counts"])]
    pub(super) sanitize: bool,
    /// Be a hypervisor, and inject faults into the engine that flushes guest memory: on AArch64 at
    /// EL2, and on RISC-V in HS-mode
    #[arg(long, conflicts_with_all = ["workload", "sanitize"])]
    pub(super) guests: bool,
    /// Boot this kernel instead of the one of the repository
    #[arg(long, value_name = "ELF")]
    pub(super) kernel: Option<PathBuf>,
}

impl Boot {
    pub(super) fn is_qemu(&self) -> bool {
        self.emulator == Emulator::Qemu
    }

    /// Returns the name of the emulated machine, in one word.
    pub(super) const fn machine_name(&self) -> &'static str {
        match self.emulator {
            Emulator::Qemu => self.arch.name(),
            Emulator::Bochs => "x86_64-bochs",
        }
    }
}
