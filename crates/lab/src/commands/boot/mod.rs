//! `shootdown boot`: the engine in a kernel that boots, on an emulated machine whose MMU is not
//! ours.

mod bochs;
mod console;
mod emulator;
mod failure;
mod kernel;
mod load;
mod paths;
mod printed;
mod trials;
mod workload;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::cli::Format;
use crate::error::Failure;
use crate::print;

pub(crate) use emulator::{Architecture, Emulator};
pub(crate) use failure::BootFailure;

use bochs::Disc;
use console::{Console, Line};
use load::Load;
use printed::Printed as _;

#[derive(Args, Clone, Debug)]
pub(crate) struct Boot {
    /// On which architecture
    #[arg(long, value_enum, default_value_t = Architecture::X86_64)]
    pub(crate) arch: Architecture,
    /// On which machine of that architecture
    #[arg(long, value_enum, default_value_t = Emulator::Qemu)]
    pub(crate) emulator: Emulator,
    /// How many CPUs
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) cpus: u32,
    /// Run a workload by name, or a recording, and compare with the simulator; without this, try
    /// whether faults would be seen
    #[arg(long, value_name = "W|TRACE")]
    pub(crate) workload: Option<String>,
    /// Count instructions: CPUs take turns, and the same run is the same to the byte
    #[arg(long)]
    pub(crate) counts: bool,
    /// Count the instructions of each of the engine's hot paths, on one CPU
    #[arg(long, conflicts_with = "workload")]
    pub(crate) paths: bool,
    /// Where random numbers of the workload start
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// How often each CPU flushes in a storm, where faults are tried; or each path is run
    #[arg(long, value_name = "N", default_value_t = 40, conflicts_with = "workload")]
    pub(crate) rounds: u64,
    /// For how many seconds the kernel may say nothing
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) patience: u64,
    /// How to print what came of it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
    /// Show all that the kernel writes
    #[arg(long)]
    pub(crate) console: bool,
    /// Boot this kernel, instead of building the one of the repository
    #[arg(long, value_name = "ELF")]
    pub(crate) kernel: Option<PathBuf>,
}

impl Boot {
    /// What it is that boots, in one word.
    pub(crate) const fn machine_name(&self) -> &'static str {
        match self.emulator {
            Emulator::Qemu => self.arch.name(),
            Emulator::Bochs => "x86_64-bochs",
        }
    }
}

/// Runs the command.
pub(crate) fn boot(options: &Boot) -> Result<(), Failure> {
    match &options.workload {
        None if options.paths => {
            let options = &Boot { cpus: 1, counts: true, ..options.clone() };
            let values = [("mode", "paths".to_owned()), ("rounds", options.rounds.to_string())];
            let lines = run(options, &values, &[])?;
            print(&paths::Report::new(options, &lines).in_format(options.format))
        }
        None => {
            let values = [("mode", "trials".to_owned()), ("rounds", options.rounds.to_string())];
            let lines = run(options, &values, &[])?;
            print(&trials::Report::new(options, &lines).in_format(options.format))
        }
        Some(name) => {
            let workload = workload::find(name, options)?;
            let mut values = vec![("mode", "workload".to_owned())];
            if options.counts {
                values.push(("tick_ns", workload::TICK_NS.to_string()));
            }
            let lines = run(options, &values, workload.bytes())?;
            let compared = workload::Comparison::new(options, name, workload, &lines)?;
            print(&compared.in_format(options.format))
        }
    }
}

/// Boots, and returns what the kernel said, in order.
fn run(options: &Boot, values: &[(&str, String)], payload: &[u8]) -> Result<Vec<Line>, Failure> {
    let failed = |failure| Failure::Boot(Box::new(failure));
    let Boot { arch, cpus, emulator, .. } = *options;
    let is_ready = match emulator {
        Emulator::Qemu => arch.emulator_is_there(),
        Emulator::Bochs => bochs::is_ready(options),
    };
    is_ready.map_err(failed)?;
    let kernel = match &options.kernel {
        Some(kernel) => kernel.clone(),
        None => kernel::build(arch, options.counts).map_err(failed)?,
    };
    let values = [&[("cpus", cpus.to_string())], values].concat();
    let load = Load::new(&values, payload).map_err(|error| failed(BootFailure::Start(error)))?;
    let console = Console { patience: Duration::from_secs(options.patience), all: options.console };
    let watched = match emulator {
        Emulator::Qemu => {
            let mut command = arch.command(&kernel, &load.path(), cpus, options.counts);
            console.watch(&mut command, arch.passed_status())
        }
        Emulator::Bochs => {
            let disc = Disc::new(&kernel, &load).map_err(failed)?;
            console.watch(&mut disc.command(cpus), bochs::PASSED_STATUS)
        }
    };
    watched.map_err(failed)
}
