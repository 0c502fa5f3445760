//! Helpers of the tests of the command.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, geteuid};
use shootdown_sim::Machine;

/// The exit status if something was found.
pub(crate) const FOUND: i32 = 1;
/// The exit status after bad usage or bad input.
pub(crate) const BAD_INPUT: i32 = 2;
/// The exit status of a command that could not run or finish.
pub(crate) const CANNOT_RUN: i32 = 3;

/// Where tracefs has its instances.
pub(crate) const INSTANCES: &str = "/sys/kernel/tracing/instances";

/// Returns `true` if tracefs is mounted, also where only root may look into it.
pub(crate) fn has_tracefs() -> bool {
    match fs::metadata(INSTANCES) {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::PermissionDenied,
    }
}

/// Returns `true` if the test can trace the kernel. Otherwise, prints the reason.
pub(crate) fn can_trace() -> bool {
    let reason = match (geteuid().is_root(), has_tracefs()) {
        (false, _) => "only root may trace",
        (true, false) => "there is no tracefs",
        (true, true) => return true,
    };
    eprintln!("skipped: {reason}");
    false
}

/// Returns `true` if tests should run in full. `cargo xtask soak` requests it; CI runs samples.
pub(crate) fn is_soak() -> bool {
    std::env::var_os("SHOOTDOWN_SOAK").is_some()
}

/// The folder `machines/`.
pub(crate) const MACHINES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../machines");

/// Reads the file of a machine of `machines/`.
pub(crate) fn machine_file(name: &str) -> String {
    let path = Path::new(MACHINES).join(name).with_extension("toml");
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the machine that a file describes, which may extend one of `machines/`.
pub(crate) fn machine_of(text: &str) -> Machine {
    Machine::from_toml_extending(text, |base| Machine::from_toml(&machine_file(base)))
        .unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns the command without arguments.
///
/// All signals have their default actions. A shell starts programs in the background with some
/// signals ignored, and every process inherits that.
pub(crate) fn command() -> Command {
    let mut command = Command::new("/usr/bin/env");
    command.args(["--default-signal", env!("CARGO_BIN_EXE_shootdown")]);
    command
}

/// Returns `true` if a signal is in a set of a process, such as `SigCgt`.
fn has_signal(process: u32, set: &str, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let mask = status.lines().find_map(|line| line.strip_prefix(set)?.strip_prefix(':'));
    let mask = u64::from_str_radix(mask.expect("signals").trim(), 16).expect("a mask");
    mask >> (signal.as_raw() - 1) & 1 == 1
}

/// Waits until a process that [`command`] started does not ignore a signal: a busy host may not
/// have run it yet.
pub(crate) fn wait_until_not_ignored(process: u32, signal: Signal) {
    while has_signal(process, "SigIgn", signal) {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until a process has handled a signal that it was sent.
pub(crate) fn wait_until_handled(process: u32, signal: Signal) {
    while has_signal(process, "ShdPnd", signal) {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until a process has a handler for a signal.
pub(crate) fn wait_until_caught(process: u32, signal: Signal) {
    while !has_signal(process, "SigCgt", signal) {
        thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// Returns the sorted names of the entries of a directory.
pub(crate) fn files(directory: impl AsRef<Path>) -> Vec<String> {
    let files = fs::read_dir(directory).expect("a directory");
    let mut files: Vec<_> =
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    files.sort_unstable();
    files
}

/// Asserts that the command exited with `status`, printed nothing on standard output, and printed
/// one line of cause and one line of remedy on standard error that contain all of `words`.
pub(crate) fn assert_error(output: &Output, status: i32, words: &[&str]) {
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{error}");
    assert!(output.stdout.is_empty(), "{error}");
    let lines: Vec<_> = error.lines().filter(|line| !line.starts_with("note: ")).collect();
    assert_eq!(lines.len(), 2, "{error}");
    assert!(lines[0].starts_with("error: ") && lines[1].starts_with("try:   "), "{error}");
    for word in words {
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
}
