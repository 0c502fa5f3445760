//! `shootdown guest` with a script in place of QEMU, which sends what a guest would send. A real
//! guest boots in `cargo xtask test guests`.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{BAD_INPUT, CANNOT_RUN, assert_error, command, files, text};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tempfile::TempDir;

/// The longest time that a step takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// The beginning of the script: `$port` is the file of what the guest sends, and `send NAME FILE`
/// sends a file.
const QEMU: &str = r#"#!/bin/sh
[ "$1" = --version ] && exit 0
for word; do
    case $word in file,id=sent,path=*) port=${word#file,id=sent,path=} ;; esac
done
send() { echo "$1 $(stat -c %s "$2")"; cat "$2"; }
"#;

/// A host of guests: its emulator is a script.
struct Host {
    directory: TempDir,
}

impl Host {
    /// Returns a host whose emulator runs `script`.
    fn new(script: &str) -> Self {
        let host = Self { directory: tempfile::tempdir().expect("a directory") };
        for part in ["programs", "temporary", "work", "cache"] {
            fs::create_dir(host.at(part)).expect("a directory");
        }
        host.program("qemu-system-x86_64", &format!("{QEMU}{script}"));
        // The image has the header of a bzImage, with the release after it.
        let mut image = vec![0; 0x400];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x20e..0x210].copy_from_slice(&[0x10, 0x01]);
        image[0x310..0x31b].copy_from_slice(b"6.12.1-test");
        fs::write(host.at("vmlinuz"), &image).expect("a file");
        host
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.at("programs").join(name);
        fs::write(&path, script).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
    }

    /// Returns the command that records a program, with these options.
    fn guest(&self, kernel: &str, options: &[&str]) -> Command {
        let mut command = self.unrecorded(kernel);
        command.args(["--output", "r"]).args(options);
        command
    }

    /// Returns the command without `--output`, which looks for programs on this host first.
    fn unrecorded(&self, kernel: &str) -> Command {
        let paths = std::env::var("PATH").expect("a path");
        let mut command = command();
        command
            .args(["guest", "--kernel", kernel, "--busybox", "/bin/true"])
            .current_dir(self.at("work"))
            .env("PATH", format!("{}:{paths}", self.at("programs").display()))
            .env("TMPDIR", self.at("temporary"))
            .env("XDG_CACHE_HOME", self.at("cache"))
            .stdin(Stdio::null());
        command
    }

    fn run(&self, options: &[&str]) -> Output {
        self.guest("../vmlinuz", options).output().expect("the command runs")
    }

    /// Asserts that the command left nothing behind.
    fn assert_empty(&self) {
        assert_eq!(files(self.at("work")), [""; 0]);
        assert_eq!(files(self.at("temporary")), [""; 0]);
    }
}

/// Sends a recording, the output of a program with status 7, and a file.
fn delivery() -> String {
    let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/ls.shootdown");
    format!(
        "cd $(dirname $port)\nprintf 'out\\nput' > o; printf 'error: mine' > e; echo 7 > s\n\
         echo 'TLB: 3 4 TLB shootdowns' > a; echo 'TLB: 1 1 TLB shootdowns' > b\n\
         {{ send status s; send before b; send after a; send stdout o; send stderr e\n\
         send recording {}; send taken0 o; echo end 0; }} > $port\n",
        recording.display()
    )
}

#[test]
fn recording_output_files_and_status_come_back() {
    let host = Host::new(&delivery());
    let output = host.run(&["--take", "result", "--take", "missing", "--", "true"]);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{errors}");
    assert_eq!(text(&output.stdout), "out\nput");
    assert_eq!(files(host.at("work")), ["r", "result"]);
    assert_eq!(fs::read(host.at("work/result")).expect("a file"), b"out\nput");
    assert!(errors.starts_with("error: mine"), "{errors}");
    for words in ["the guest has no file missing", "Linux 6.12.1-test", "all programs: 5 "] {
        assert!(errors.contains(words), "{errors}");
    }
    assert_eq!(files(host.at("temporary")), [""; 0]);
    // The second run would replace the recording.
    assert_error(&host.run(&["--", "true"]), BAD_INPUT, &["r exists", "--force"]);
}

#[test]
fn guest_that_fails_leaves_nothing() {
    let panics = Host::new("echo 'Kernel panic - not syncing'; echo '</TASK>'; exit 1\n");
    assert_error(&panics.run(&["--", "true"]), CANNOT_RUN, &["Kernel panic", "--console"]);
    panics.assert_empty();
    let stops_early = Host::new("echo 'status 2\n7\nrecording 100' > $port\n");
    assert_error(&stops_early.run(&["--", "true"]), CANNOT_RUN, &["ended unexpectedly"]);
    stops_early.assert_empty();
    let hangs = Host::new("echo booting; exec sleep 1000\n");
    let output = hangs.run(&["--limit", "1", "--", "true"]);
    assert_error(&output, CANNOT_RUN, &["within 1 s", "booting", "--limit"]);
    hangs.assert_empty();
}

#[test]
fn error_of_recorder_in_guest_is_shown() {
    let host = Host::new(
        "cd $(dirname $port); printf 'error: no event\\ntry:   another kernel\\n' > e\n\
         echo 125 > s\n\
         { send status s; send stderr e; echo end 0; } > $port\n",
    );
    let output = host.run(&["--", "true"]);
    assert_error(&output, CANNOT_RUN, &["in the guest: no event", "try:   another kernel"]);
    host.assert_empty();
}

#[test]
fn bad_input_is_refused_before_boot() {
    let host = Host::new("exit 1\n");
    let refused = |kernel: &str, options: &[&str], words: &[&str]| {
        let output = host.guest(kernel, options).output().expect("the command runs");
        assert_error(&output, BAD_INPUT, words);
        host.assert_empty();
    };
    refused("no-such", &["--", "true"], &["`no-such` is neither"]);
    refused("/bin/true", &["--", "true"], &["not a kernel image", "bzImage"]);
    refused("../vmlinuz", &["--", "no-such-program"], &["no program `no-such-program`"]);
    refused("../vmlinuz", &["--file", "no-such-file", "--", "true"], &["no-such-file", "path"]);
    refused("../vmlinuz", &["--take", "no/such", "--", "true"], &["no/such"]);
}

#[test]
fn missing_tools_and_network_are_named() {
    let host = Host::new("exit 1\n");
    fs::remove_file(host.at("programs/qemu-system-x86_64")).expect("a file");
    for tool in ["ldd", "setpriv"] {
        let path = std::env::var_os("PATH").expect("a path");
        let found = std::env::split_paths(&path).map(|directory| directory.join(tool));
        let found = found.into_iter().find(|path| path.exists()).expect("the tool");
        symlink(found, host.at("programs").join(tool)).expect("a link");
    }
    let fails = |kernel: &str, words: &[&str]| {
        let mut command = host.guest(kernel, &["--", "/bin/true"]);
        let output = command.env("PATH", host.at("programs")).output().expect("the command runs");
        assert_error(&output, CANNOT_RUN, words);
        host.assert_empty();
    };
    fails("../vmlinuz", &["qemu-system-x86_64 is not installed", "apt-get install"]);
    fails("6.12", &["apt-get is not installed"]);
    fails("shootdown", &["Linux on the engine was not built", "cargo xtask port linux --cloud"]);
    fs::create_dir_all(host.at("cache/shootdown")).expect("a directory");
    fs::copy(host.at("vmlinuz"), host.at("cache/shootdown/vmlinuz-shootdown")).expect("a copy");
    fails("shootdown", &["qemu-system-x86_64 is not installed"]);
    host.program("apt-get", "#!/bin/sh\n[ $1 = indextargets ] && echo http://localhost/other\n");
    fails("6.12", &["no mirror of Debian", "--kernel"]);
    let fetches = "#!/bin/sh\n[ $1 = indextargets ] && echo http://localhost/debian/ && exit\n\
                   echo 'Hit: 1' >&2; echo 'E: Could not connect' >&2; exit 100\n";
    host.program("apt-get", fetches);
    fails("6.12", &["apt-get failed: E: Could not connect", "network"]);
}

/// Starts a guest that never ends, and returns the command with the process of the emulator.
fn begun(host: &Host) -> (Child, Pid) {
    let mut command = host.guest("../vmlinuz", &["--", "true"]);
    let child = command.stderr(Stdio::piped()).spawn().expect("the command runs");
    let file = host.at("cache/pid");
    wait_for("the guest starts", || fs::read_to_string(&file).is_ok_and(|it| it.ends_with('\n')));
    let pid = fs::read_to_string(&file).expect("a number").trim().parse().expect("a number");
    (child, Pid::from_raw(pid).expect("a process"))
}

/// Waits until `is_true` returns `true`. Panics with `what` after [`PATIENCE`].
fn wait_for(what: &str, mut is_true: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

const ENDLESS: &str = "echo $$ > $XDG_CACHE_HOME/pid; exec sleep 1000\n";

#[test]
fn ctrl_c_ends_guest_and_leaves_nothing() {
    for signal in [Signal::INT, Signal::TERM] {
        let host = Host::new(ENDLESS);
        let (child, emulator) = begun(&host);
        kill_process(Pid::from_child(&child), signal).expect("a signal");
        let output = child.wait_with_output().expect("a status");
        assert_error(&output, 130, &["interrupted", "run the command again"]);
        assert!(test_kill_process(emulator).is_err(), "the emulator still runs");
        host.assert_empty();
    }
}

#[test]
fn killed_command_ends_guest() {
    let host = Host::new(ENDLESS);
    let (mut child, emulator) = begun(&host);
    child.kill().expect("a signal");
    child.wait().expect("a status");
    wait_for("the emulator ends", || test_kill_process(emulator).is_err() || is_zombie(emulator));
    assert_eq!(files(host.at("work")), [""; 0]);
}

/// Returns `true` if the process has ended, and nobody has waited for it: its parent is the init
/// process, which may not wait for processes in a container.
fn is_zombie(pid: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    status.is_ok_and(|status| status.contains(") Z "))
}

#[test]
fn program_without_output_is_not_recorded() {
    let host = Host::new(
        "cd $(dirname $port); echo out > o; echo 3 > s\n\
         { send status s; send stdout o; send taken0 o; echo end 0; } > $port\n",
    );
    let mut command = host.unrecorded("../vmlinuz");
    let output = command.args(["--take", "result", "--", "true"]).output();
    let output = output.expect("the command runs");
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("out\n".into(), String::new()));
    assert_eq!(files(host.at("work")), ["result"]);
}
