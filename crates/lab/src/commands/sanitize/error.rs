//! The errors of `shootdown sanitize`.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use crate::error::{bad_input, cannot_run, shown, user_errors};

user_errors! {
    /// The kernel could not be run, or the run shows nothing.
    #[derive(Debug, thiserror::Error)]
    pub(crate) enum SanitizeError {
        #[error("there is neither a program of QEMU nor an architecture")]
        NoProgram => bad_input("add -- qemu-system-… with its options, or --arch"),
        #[error("without a function that settles changes, no removed permission can be found")]
        NoSettled => bad_input("add --settled SYMBOL, or remove --mode permission"),
        #[error("the symbols have none of the functions of the preset {preset}")]
        NoSymbols { preset: String } =>
            bad_input("give the symbols of this very kernel with --symbols, or hooks with --reuse"),
        #[error("there is no symbol `{}`", shown(.0))]
        NoSymbol(_: String) => bad_input("use a name that `nm` prints for the kernel"),
        #[error("{}: {error}", shown(.path))]
        Symbols { path: PathBuf, error: String } => bad_input(
            "give an ELF file that is not stripped, System.map, or a copy of /proc/kallsyms",
        ),
        /// All addresses are 0: the reader was not root.
        #[error("{} has no addresses", shown(.0))]
        HiddenAddresses(_: PathBuf) => bad_input("copy /proc/kallsyms as root"),
        #[error("the plugin {} was not found", shown(.0))]
        NoPlugin(_: PathBuf) =>
            cannot_run("cargo build --release -p shootdown-sanitizer, or give it with --plugin"),
        #[error("temporary files: {0}")]
        Temporary(_: io::Error) => cannot_run("free some space, or set TMPDIR"),
        #[error("signals: {0}")]
        Signals(_: io::Error) => cannot_run("report this, with the command"),
        #[error("{} could not be started: {error}", shown(.program))]
        NotStarted { program: OsString, error: io::Error } =>
            cannot_run("install QEMU, or correct the program's name"),
        /// QEMU ended before the plugin had started.
        #[error("{} has not loaded the plugin", shown(.program))]
        NoPlugins { program: OsString } => cannot_run(
            "run QEMU without this command first; if it works, it needs plugins: version 10.0, \
             built with --enable-plugins",
        ),
        /// QEMU ended by itself before the guest ran, or crashed.
        #[error("{} failed: {status}", shown(.program))]
        QemuFailed { program: OsString, status: ExitStatus } => cannot_run(
            "correct QEMU's options, by its message above; run it without this command first",
        ),
        #[error("the plugin cannot work: {}", shown(.cause))]
        Refused { cause: String } => cannot_run(
            "use QEMU 10.0, a known architecture, pages of 4 KiB, less than 2 TiB of memory, \
             hooks with the right unit, and the plugin of this version",
        ),
        #[error("the run shows nothing: no address was translated")]
        NoTranslation => bad_input("let the guest run longer"),
        #[error("the run shows nothing: {ran} of {cpus} CPUs ran user code")]
        OneCpu { cpus: usize, ran: usize } =>
            bad_input("use -smp 4, see how many CPUs the kernel finds, and run threads on all"),
        #[error("the run shows nothing: the kernel gave no frame that was unmapped to a new owner")]
        NoOwner => bad_input(
            "run programs that unmap memory while other threads use it, or add --reuse \
             SYMBOL:ARGUMENT with a function that frees a frame",
        ),
        #[error("the run shows nothing: {act}: {symbols} was not called")]
        NotCalled { act: &'static str, symbols: String } => bad_input(
            "boot with nokaslr, use the symbols of this very kernel, or run more programs",
        ),
    }
}
