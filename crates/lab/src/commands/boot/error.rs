//! The errors of `shootdown boot`.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::{bad_input, cannot_run, found, shown, user_errors};

const ALL_LINES: &str = "add --console, which shows every line that the kernel prints";

user_errors! {
    /// The kernel could not be started, or it failed.
    #[derive(Debug, thiserror::Error)]
    pub(crate) enum BootError {
        #[error("{program} is not installed")]
        NoEmulator { program: &'static str, package: &'static str } =>
            cannot_run(format!("sudo apt-get install {package} (on Debian and Ubuntu)")),
        #[error("{program} has version {}, and version {needed} is needed: {why}", shown(.found))]
        OldEmulator { program: &'static str, found: String, needed: u32, why: &'static str } =>
            cannot_run("install a newer version; Debian 12 has it in bookworm-backports"),
        #[error("{option} cannot be used with Bochs")]
        NotOnBochs { option: &'static str } =>
            bad_input("remove --emulator: QEMU supports all options"),
        #[error("AArch64 has no replicas, because its broadcasts interrupt no CPU")]
        NoReplicas => bad_input("remove --replicas, or use another --arch"),
        #[error("the kernel has no guests on {0}")]
        NoGuests(_: &'static str) => bad_input("--arch aarch64, or --arch riscv64"),
        #[error("guests need 3 CPUs")]
        FewForGuests => bad_input("--cpus 3"),
        #[error("the sanitizer does not support {0}")]
        NoSanitizer(_: &'static str) => bad_input("use QEMU, and another --arch than loongarch64"),
        /// The disc that Bochs boots from could not be made.
        #[error("grub-mkrescue failed: {}", shown(.0.to_string()))]
        Disc(_: io::Error) =>
            cannot_run("sudo apt-get install grub-pc-bin xorriso mtools, or free some disk space"),
        /// The repository is no longer at the path where this command was built.
        #[error("the kernel's source is not at {}", shown(.0))]
        NoSource(_: PathBuf) =>
            cannot_run("build this command in the repository, or give a kernel with --kernel ELF"),
        #[error("the kernel does not build for {target}: {}", shown(.error))]
        Build { target: &'static str, error: String } =>
            cannot_run(format!("rustup target add {target}")),
        /// The emulator could not be started, or its files could not be made.
        #[error("the emulator could not be started: {0}")]
        Start(_: io::Error) =>
            cannot_run("free about 600 MiB of memory, or use fewer CPUs with --cpus"),
        #[error("the kernel printed nothing for {} s after `{}`", .patience.as_secs(),
                shown(.last))]
        Silent { last: String, patience: Duration } =>
            found("--console to show all lines, or --patience SECONDS to wait longer"),
        /// A triple fault, or an error of the emulator.
        #[error("the kernel or the emulator ended unexpectedly ({status}) after `{}`",
                shown(.last))]
        Crashed { last: String, status: String } => found(ALL_LINES),
        #[error("there is no workload and no file `{}`", shown(.name))]
        UnknownWorkload { name: String, known: Vec<&'static str> } =>
            bad_input(format!("use {}, or the path of a recording", known.join(", "))),
        /// The kernel passed, but did not print the counts of the workload.
        #[error("the kernel did not report the counts of the workload")]
        NoReport => found(ALL_LINES),
        #[error("in {}, the sanitizer has found {has}", shown(.scenario))]
        Sanitizer { scenario: String, has: &'static str } =>
            found("shootdown sanitize --preset shootdown, which prints each fault"),
        /// The kernel reports a failure.
        #[error("{}", shown(.cause))]
        Failed { cause: String } => found(ALL_LINES),
    }
}
