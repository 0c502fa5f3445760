//! What can go wrong, and what to do about it.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::shown;

/// Why nothing booted, or what went wrong.
#[derive(Debug)]
pub(crate) enum BootFailure {
    /// The emulator is not installed.
    NoEmulator { program: &'static str, package: &'static str },
    /// It is too old for this.
    OldEmulator { program: &'static str, found: String, needed: u32, why: &'static str },
    /// There is no such thing on Bochs.
    NotOnBochs { option: &'static str },
    /// What Bochs boots from could not be made.
    Disc(std::io::Error),
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
    /// There is no workload of that name, and no such file.
    UnknownWorkload { name: String, known: Vec<&'static str> },
    /// The workload cannot be handed over.
    Stream(String),
    /// It has ended well, and does not say what came of the workload.
    NoReport,
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
            Self::NotOnBochs { option } => format!("{option} is not for Bochs"),
            Self::Disc(error) => {
                format!("grub-mkrescue makes no disc: {}", shown(error.to_string()))
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
            Self::UnknownWorkload { name, .. } => {
                format!("there is no workload `{}`, nor such a file", shown(name))
            }
            Self::NoReport => "the kernel does not say what came of the workload".to_owned(),
            Self::Stream(error) => format!("the workload cannot be handed over: {}", shown(error)),
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
            Self::NotOnBochs { .. } => "without --emulator, for QEMU has all of them".to_owned(),
            Self::Disc(_) => "sudo apt-get install grub-pc-bin xorriso mtools; or room".to_owned(),
            Self::NoSource(_) => "build this command in the repository, or --kernel ELF".to_owned(),
            Self::Build { target, .. } => format!("rustup target add {target}"),
            Self::UnknownWorkload { known, .. } => known.join(", "),
            Self::Stream(_) => "a shorter one".to_owned(),
            Self::Start(_) => "its memory is some 600 MiB, besides what it runs".to_owned(),
            Self::Silent { .. } => "--console shows all of it; --patience waits longer".to_owned(),
            Self::Crashed { .. } | Self::NoReport | Self::Failed { .. } => {
                "the same with --console, which shows all that the kernel writes".to_owned()
            }
        }
    }
}
