//! The options of `shootdown boot`.

use std::path::PathBuf;

use clap::Args;

use super::emulator::{Architecture, Emulator};
use crate::render::Format;

#[derive(Args, Clone, Debug)]
pub(crate) struct Boot {
    /// On which architecture
    #[arg(long, value_enum, default_value_t = Architecture::X86_64)]
    pub(super) arch: Architecture,
    /// On which machine of that architecture
    #[arg(long, value_enum, default_value_t = Emulator::Qemu)]
    pub(super) emulator: Emulator,
    /// How many CPUs
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(super) cpus: u32,
    /// Run a workload by name, or a recording, and compare with the simulator; without this, try
    /// whether faults would be seen
    #[arg(long, value_name = "W|TRACE")]
    pub(super) workload: Option<String>,
    /// Count instructions: CPUs take turns, and the same run is the same to the byte
    #[arg(long)]
    pub(super) counts: bool,
    /// Count the instructions of each of the engine's hot paths, on one CPU
    #[arg(long, conflicts_with = "workload")]
    pub(super) paths: bool,
    /// Where random numbers of the workload start
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// How often each CPU flushes in a storm, where faults are tried; or each path is run
    #[arg(long, value_name = "N", default_value_t = 40, conflicts_with = "workload")]
    pub(super) rounds: u64,
    /// For how many seconds the kernel may say nothing
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(super) patience: u64,
    /// How to print what came of it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(super) format: Format,
    /// Show all that the kernel writes
    #[arg(long)]
    pub(super) console: bool,
    /// Boot this kernel, instead of building the one of the repository
    #[arg(long, value_name = "ELF")]
    pub(super) kernel: Option<PathBuf>,
}

impl Boot {
    /// The name of the machine, in one word.
    pub(super) const fn machine_name(&self) -> &'static str {
        match self.emulator {
            Emulator::Qemu => self.arch.name(),
            Emulator::Bochs => "x86_64-bochs",
        }
    }
}
