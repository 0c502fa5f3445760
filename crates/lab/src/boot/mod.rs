//! `shootdown boot`: the engine in a kernel that boots, on an emulated machine whose MMU is not
//! ours.

mod console;
mod emulator;
mod kernel;
mod load;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::error::{Failure, shown};
use crate::print;

pub(crate) use emulator::Architecture;

use console::{Console, Line};
use load::Load;

#[derive(Args, Clone, Debug)]
pub(crate) struct Boot {
    /// On which architecture
    #[arg(long, value_enum, default_value_t = Architecture::X86_64)]
    pub(crate) arch: Architecture,
    /// How many CPUs
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) cpus: u32,
    /// Count instructions: CPUs take turns, and the same run is the same to the byte
    #[arg(long)]
    pub(crate) counts: bool,
    /// For how many seconds the kernel may say nothing
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) patience: u64,
    /// Show all that the kernel writes
    #[arg(long)]
    pub(crate) console: bool,
    /// Boot this kernel, instead of building the one of the repository
    #[arg(long, value_name = "ELF")]
    pub(crate) kernel: Option<PathBuf>,
}

/// Why nothing booted, or what went wrong.
#[derive(Debug)]
pub(crate) enum BootFailure {
    /// The emulator is not installed.
    NoEmulator { program: &'static str, package: &'static str },
    /// It is too old for this.
    OldEmulator { program: &'static str, found: String, needed: u32, why: &'static str },
    /// The repository is not where this command was built.
    NoSource(PathBuf),
    /// The kernel does not build.
    Build { target: &'static str, said: String },
    /// What the kernel is to do could not be put where the emulator finds it; or that not started.
    Start(std::io::Error),
    /// The kernel says nothing any more.
    Silent { last: String, patience: Duration },
    /// It ended without saying so: a triple fault, or an emulator that gave up.
    Crashed { last: String, status: String },
    /// It says that something is wrong.
    Failed { said: String },
}

impl BootFailure {
    pub(crate) fn cause(&self) -> String {
        match self {
            Self::NoEmulator { program, .. } => format!("{program} is not installed"),
            Self::OldEmulator { program, found, needed, why } => {
                format!("{program} is version {}, and {needed} is needed: {why}", shown(found))
            }
            Self::NoSource(path) => format!("the kernel's source is not at {}", shown(path)),
            Self::Build { target, said } => {
                format!("the kernel does not build for {target}: {}", shown(said))
            }
            Self::Start(error) => format!("the emulator could not be started: {error}"),
            Self::Silent { last, patience } => {
                let seconds = patience.as_secs();
                format!("the kernel has said nothing for {seconds} s since `{}`", shown(last))
            }
            Self::Crashed { last, status } => {
                format!("the kernel ended ({status}) without saying so, after `{}`", shown(last))
            }
            Self::Failed { said } => shown(said),
        }
    }

    pub(crate) fn remedy(&self) -> String {
        match self {
            Self::NoEmulator { package, .. } => {
                format!("sudo apt-get install {package}, or your system's way to install it")
            }
            Self::OldEmulator { .. } => {
                "a newer one: Debian 12 has it in bookworm-backports".to_owned()
            }
            Self::NoSource(_) => "build this command in the repository, or --kernel ELF".to_owned(),
            Self::Build { target, .. } => format!("rustup target add {target}"),
            Self::Start(_) => "its memory is some 600 MiB, besides what it runs".to_owned(),
            Self::Silent { .. } => "--console shows all of it; --patience waits longer".to_owned(),
            Self::Crashed { .. } | Self::Failed { .. } => {
                "the same with --console, which shows all that the kernel writes".to_owned()
            }
        }
    }
}

/// Runs the command.
pub(crate) fn boot(options: &Boot) -> Result<(), Failure> {
    let lines = run(options).map_err(|failure| Failure::Boot(Box::new(failure)))?;
    let shown: String = lines.iter().map(|line| format!("{line}\n")).collect();
    print(&shown)
}

/// Boots, and returns what the kernel said, in order.
fn run(options: &Boot) -> Result<Vec<Line>, BootFailure> {
    let Boot { arch, cpus, .. } = *options;
    arch.emulator_is_there()?;
    let kernel = match &options.kernel {
        Some(kernel) => kernel.clone(),
        None => kernel::build(arch, options.counts)?,
    };
    let values = [("cpus", cpus.to_string()), ("mode", "trials".to_owned())];
    let load = Load::new(&values, &[]).map_err(BootFailure::Start)?;
    let mut command = arch.command(&kernel, load.path(), cpus, options.counts);
    let console = Console { patience: Duration::from_secs(options.patience), all: options.console };
    console.watch(arch, &mut command)
}
