//! The errors of `shootdown boot`.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Help, UserError, bad_input, cannot_run, found, shown};

/// The kernel could not be started, or it failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BootError {
    #[error("{program} is not installed")]
    NoEmulator { program: &'static str, package: &'static str },
    #[error("{program} has version {}, and version {needed} is needed: {why}", shown(.found))]
    OldEmulator { program: &'static str, found: String, needed: u32, why: &'static str },
    #[error("{option} cannot be used with Bochs")]
    NotOnBochs { option: &'static str },
    #[error("AArch64 has no replicas, because its broadcasts interrupt no CPU")]
    NoReplicas,
    #[error("the kernel has no guests on {0}")]
    NoGuests(&'static str),
    #[error("guests need 3 CPUs")]
    FewForGuests,
    #[error("the sanitizer does not support {0}")]
    NoSanitizer(&'static str),
    /// The disc that Bochs boots from could not be made.
    #[error("grub-mkrescue failed: {}", shown(.0.to_string()))]
    Disc(io::Error),
    /// The repository is no longer at the path where this command was built.
    #[error("the kernel's source is not at {}", shown(.0))]
    NoSource(PathBuf),
    #[error("the kernel does not build for {target}: {}", shown(.error))]
    Build { target: &'static str, error: String },
    /// The emulator could not be started, or its files could not be made.
    #[error("the emulator could not be started: {0}")]
    Start(io::Error),
    #[error("the kernel printed nothing for {} s after `{}`", .patience.as_secs(), shown(.last))]
    Silent { last: String, patience: Duration },
    /// A triple fault, or an error of the emulator.
    #[error("the kernel or the emulator ended unexpectedly ({status}) after `{}`", shown(.last))]
    Crashed { last: String, status: String },
    #[error("there is no workload and no file `{}`", shown(.name))]
    UnknownWorkload { name: String, known: Vec<&'static str> },
    /// The kernel passed, but did not print the counts of the workload.
    #[error("the kernel did not report the counts of the workload")]
    NoReport,
    #[error("in {}, the sanitizer has found {has}", shown(.scenario))]
    Sanitizer { scenario: String, has: &'static str },
    /// The kernel reports a failure.
    #[error("{}", shown(.cause))]
    Failed { cause: String },
}

impl UserError for BootError {
    fn help(&self) -> Help {
        match self {
            Self::NoEmulator { package, .. } => {
                cannot_run(format!("sudo apt-get install {package} (on Debian and Ubuntu)"))
            }
            Self::OldEmulator { .. } => {
                cannot_run("install a newer version; Debian 12 has it in bookworm-backports")
            }
            Self::NotOnBochs { .. } => bad_input("remove --emulator: QEMU supports all options"),
            Self::NoReplicas => bad_input("remove --replicas, or use another --arch"),
            Self::NoGuests(_) => bad_input("--arch aarch64, or --arch riscv64"),
            Self::FewForGuests => bad_input("--cpus 3"),
            Self::NoSanitizer(_) => bad_input("use QEMU, and another --arch than loongarch64"),
            Self::Disc(_) => cannot_run(
                "sudo apt-get install grub-pc-bin xorriso mtools, or free some disk space",
            ),
            Self::NoSource(_) => cannot_run(
                "build this command in the repository, or give a kernel with --kernel ELF",
            ),
            Self::Build { target, .. } => cannot_run(format!("rustup target add {target}")),
            Self::UnknownWorkload { known, .. } => {
                bad_input(format!("use {}, or the path of a recording", known.join(", ")))
            }
            Self::Start(_) => {
                cannot_run("free about 600 MiB of memory, or use fewer CPUs with --cpus")
            }
            Self::Silent { .. } => {
                found("--console to show all lines, or --patience SECONDS to wait longer")
            }
            Self::Sanitizer { .. } => {
                found("shootdown sanitize --preset shootdown, which prints each fault")
            }
            Self::Crashed { .. } | Self::NoReport | Self::Failed { .. } => {
                found("add --console, which shows every line that the kernel prints")
            }
        }
    }
}
