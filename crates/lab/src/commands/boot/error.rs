//! The errors of a boot.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::{UserError, shown};

/// Nothing booted, or something went wrong.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BootError {
    #[error("{program} is not installed")]
    NoEmulator { program: &'static str, package: &'static str },
    #[error("{program} is version {}, and {needed} is needed: {why}", shown(.found))]
    OldEmulator { program: &'static str, found: String, needed: u32, why: &'static str },
    #[error("{option} is not for Bochs")]
    NotOnBochs { option: &'static str },
    /// The disc that Bochs boots from could not be made.
    #[error("grub-mkrescue makes no disc: {}", shown(.0.to_string()))]
    Disc(io::Error),
    /// The repository is not where this command was built.
    #[error("the kernel's source is not at {}", shown(.0))]
    NoSource(PathBuf),
    #[error("the kernel does not build for {target}: {}", shown(.said))]
    Build { target: &'static str, said: String },
    /// The emulator, or the file that it loads, could not be started or made.
    #[error("the emulator could not be started: {0}")]
    Start(io::Error),
    #[error("the kernel has said nothing for {} s since `{}`", .patience.as_secs(), shown(.last))]
    Silent { last: String, patience: Duration },
    /// A triple fault, or an emulator that gave up.
    #[error("the kernel ended ({status}) without saying so, after `{}`", shown(.last))]
    Crashed { last: String, status: String },
    #[error("there is no workload `{}`, nor such a file", shown(.name))]
    UnknownWorkload { name: String, known: Vec<&'static str> },
    /// The kernel passed, without the workload's result.
    #[error("the kernel does not say what came of the workload")]
    NoReport,
    /// The kernel reports a failure.
    #[error("{}", shown(.said))]
    Failed { said: String },
}

impl UserError for BootError {
    fn remedy(&self) -> String {
        match self {
            Self::NoEmulator { package, .. } => {
                format!("sudo apt-get install {package}, or your system's way to install it")
            }
            Self::OldEmulator { .. } => {
                "a newer one: Debian 12 has it in bookworm-backports".to_owned()
            }
            Self::NotOnBochs { .. } => "without --emulator, for QEMU has all of them".to_owned(),
            Self::Disc(_) => "sudo apt-get install grub-pc-bin xorriso mtools; or room".to_owned(),
            Self::NoSource(_) => "build this command in the repository, or --kernel ELF".to_owned(),
            Self::Build { target, .. } => format!("rustup target add {target}"),
            Self::UnknownWorkload { known, .. } => known.join(", "),
            Self::Start(_) => "its memory is some 600 MiB, besides what it runs".to_owned(),
            Self::Silent { .. } => "--console shows all of it; --patience waits longer".to_owned(),
            Self::Crashed { .. } | Self::NoReport | Self::Failed { .. } => {
                "the same with --console, which shows all that the kernel writes".to_owned()
            }
        }
    }
}
