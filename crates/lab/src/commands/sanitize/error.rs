//! The errors of `shootdown sanitize`.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use crate::error::{BAD_INPUT, CANNOT_RUN, UserError, shown};

/// The kernel could not be run, or the run shows nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SanitizeError {
    #[error("there is neither a program of QEMU nor an architecture")]
    NoProgram,
    #[error("without a function that settles changes, no removed permission can be found")]
    NoSettled,
    #[error("the symbols have none of the functions of the preset {preset}")]
    NoSymbols { preset: String },
    #[error("there is no symbol `{}`", shown(.0))]
    NoSymbol(String),
    #[error("{}: {error}", shown(.path))]
    Symbols { path: PathBuf, error: String },
    /// All addresses are 0: the reader was not root.
    #[error("{} has no addresses", shown(.0))]
    HiddenAddresses(PathBuf),
    #[error("the plugin {} was not found", shown(.0))]
    NoPlugin(PathBuf),
    #[error("temporary files: {0}")]
    Temporary(io::Error),
    #[error("signals: {0}")]
    Signals(io::Error),
    #[error("{} could not be started: {error}", shown(.program))]
    NotStarted { program: OsString, error: io::Error },
    /// QEMU ended before the plugin had started.
    #[error("{} has not loaded the plugin", shown(.program))]
    NoPlugins { program: OsString },
    /// QEMU ended by itself before the guest ran, or crashed.
    #[error("{} failed: {status}", shown(.program))]
    QemuFailed { program: OsString, status: ExitStatus },
    #[error("the plugin cannot work: {}", shown(.cause))]
    Refused { cause: String },
    #[error("the run shows nothing: no address was translated")]
    NoTranslation,
    #[error("the run shows nothing: {ran} of {cpus} CPUs ran user code")]
    OneCpu { cpus: usize, ran: usize },
    #[error("the run shows nothing: the kernel gave no frame that was unmapped to a new owner")]
    NoOwner,
    #[error("the run shows nothing: {act}: {symbols} was not called")]
    NotCalled { act: &'static str, symbols: String },
}

impl UserError for SanitizeError {
    fn exit_status(&self) -> u8 {
        match self {
            Self::NoPlugin(_)
            | Self::Temporary(_)
            | Self::Signals(_)
            | Self::NotStarted { .. }
            | Self::NoPlugins { .. }
            | Self::QemuFailed { .. }
            | Self::Refused { .. } => CANNOT_RUN,
            _ => BAD_INPUT,
        }
    }

    fn remedy(&self) -> String {
        match self {
            Self::NoProgram => "add -- qemu-system-… with its options, or --arch".to_owned(),
            Self::NoSettled => "add --settled SYMBOL, or remove --mode permission".to_owned(),
            Self::NoSymbols { .. } => {
                "give the symbols of this very kernel with --symbols, or hooks with --reuse"
                    .to_owned()
            }
            Self::NoSymbol(_) => "use a name that `nm` prints for the kernel".to_owned(),
            Self::Symbols { .. } => {
                "give an ELF file that is not stripped, System.map, or a copy of /proc/kallsyms"
                    .to_owned()
            }
            Self::HiddenAddresses(_) => "copy /proc/kallsyms as root".to_owned(),
            Self::NoPlugin(_) => {
                "cargo build --release -p shootdown-sanitizer, or give it with --plugin".to_owned()
            }
            Self::Temporary(_) => "free some space, or set TMPDIR".to_owned(),
            Self::Signals(_) => "report this, with the command".to_owned(),
            Self::NotStarted { .. } => "install QEMU, or correct the program's name".to_owned(),
            Self::NoPlugins { .. } => {
                "run QEMU without this command first; if it works, it needs plugins: version 10.0, \
                 built with --enable-plugins"
                    .to_owned()
            }
            Self::QemuFailed { .. } => {
                "correct QEMU's options, by its message above; run it without this command first"
                    .to_owned()
            }
            Self::Refused { .. } => {
                "use QEMU 10.0, a known architecture, pages of 4 KiB, less than 2 TiB of memory, \
                 hooks with the right unit, and the plugin of this version"
                    .to_owned()
            }
            Self::NoTranslation => "let the guest run longer".to_owned(),
            Self::OneCpu { .. } => {
                "use -smp 4, see how many CPUs the kernel finds, and run threads on all".to_owned()
            }
            Self::NoOwner => "run programs that unmap memory while other threads use it, or add \
                              --reuse SYMBOL:ARGUMENT with a function that frees a frame"
                .to_owned(),
            Self::NotCalled { .. } => {
                "boot with nokaslr, use the symbols of this very kernel, or run more programs"
                    .to_owned()
            }
        }
    }
}
