//! `shootdown top` on a terminal, which `script` of util-linux provides. Most tests need root and
//! tracefs, and are skipped otherwise.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{assert_error, can_trace, command, text};
use tempfile::TempDir;

/// The longest time that a step takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);
/// The end of a display that covers the terminal.
const RESTORED: &str = "\u{1b}[?1049l";

/// Returns `true` if the test can trace and has a terminal. Otherwise, prints the reason.
fn can_run() -> bool {
    let has_script = Command::new("script").arg("--version").output().is_ok();
    if !has_script {
        eprintln!("skipped: there is no `script`");
    }
    has_script && can_trace()
}

/// The command on a terminal of 100 columns.
struct OnTerminal {
    child: Child,
    output: Arc<Mutex<Vec<u8>>>,
    directory: TempDir,
}

impl OnTerminal {
    fn start(options: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let lab = env!("CARGO_BIN_EXE_shootdown");
        let line = format!(
            "stty rows 30 cols 100; exec env --default-signal {lab} top --interval 200ms {options}"
        );
        let mut command = Command::new("script");
        command.args(["-qefc", &line, "/dev/null"]).current_dir(directory.path());
        command.env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the command runs");
        let output = Arc::<Mutex<Vec<u8>>>::default();
        let (mut from, to) = (child.stdout.take().expect("a pipe"), Arc::clone(&output));
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                to.lock().expect("no panic").extend(&bytes[..count]);
            }
        });
        Self { child, output, directory }
    }

    fn printed(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().expect("no panic")).into_owned()
    }

    fn press(&mut self, keys: &str) {
        let pipe = self.child.stdin.as_mut().expect("a pipe");
        pipe.write_all(keys.as_bytes()).expect("a terminal");
    }

    /// Returns the number of the command's process, which is the only child of `script`.
    fn id(&self) -> String {
        let id = self.child.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        children.expect("children").trim().to_owned()
    }

    /// Waits until the command has printed all of `words`.
    fn wait_for(&self, words: &[&str]) {
        let start = Instant::now();
        while !words.iter().all(|word| self.printed().contains(word)) {
            assert!(start.elapsed() < PATIENCE, "{words:?}: {}", self.printed());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits for the end. Returns the exit status.
    fn end(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a status") {
                return status.code();
            }
            assert!(start.elapsed() < PATIENCE, "{}", self.printed());
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Returns `true` if the process with this number has instances of tracing.
fn is_tracing(id: &str) -> bool {
    let instances = fs::read_dir("/sys/kernel/tracing/instances").expect("instances");
    let prefix = format!("shootdown-{id}-");
    instances.flatten().any(|it| it.file_name().to_string_lossy().starts_with(&prefix))
}

#[test]
fn output_that_is_no_terminal_is_refused() {
    let output = command().args(["top"]).stdin(Stdio::null()).output().expect("the command runs");
    assert_error(&output, 2, &["not a terminal", "shootdown top --batch"]);
}

#[test]
fn running_program_is_shown_and_saved() {
    if !can_run() {
        return;
    }
    let program = std::env::current_exe().expect("a path");
    let mut culprit = Command::new(program);
    culprit.args(["--exact", "explain::lasting_culprit", "--ignored"]).stdout(Stdio::null());
    let mut culprit = culprit.stdin(Stdio::piped()).spawn().expect("the program runs");
    let mut top = OnTerminal::start(&format!("--pid {}", culprit.id()));
    // `t` is for sums, because nothing may happen in the last interval on a busy machine.
    top.wait_for(&["PROCESS", "CALL SITE"]);
    top.press("t");
    top.wait_for(&["munmap", &culprit.id().to_string()]);
    top.press("s");
    // The file is there when it is whole. Of the message, only the letters that differ from those
    // before are printed.
    let (saved, start) = (top.directory.path().join("top-1.shootdown"), Instant::now());
    while !saved.exists() {
        assert!(start.elapsed() < PATIENCE, "{}", top.printed());
        thread::sleep(Duration::from_millis(50));
    }
    top.press("q");
    assert_eq!(top.end(), Some(0), "{}", top.printed());
    assert!(top.printed().contains(RESTORED), "{}", top.printed());
    drop(culprit.stdin.take());
    culprit.wait().expect("a status");
    let mut explain = command();
    explain.args(["explain", "top-1.shootdown", "--predict", "count"]);
    let explained = explain.current_dir(top.directory.path()).output().expect("the command runs");
    let explained = text(&explained.stdout);
    assert!(explained.contains("munmap in "), "{explained}");
}

#[test]
fn control_c_and_errors_restore_the_terminal() {
    if !can_run() {
        return;
    }
    let mut top = OnTerminal::start(&format!("--pid {}", std::process::id()));
    top.wait_for(&["PROCESS"]);
    let id = top.id();
    assert!(is_tracing(&id), "{id}");
    top.press("\u{3}");
    assert_eq!(top.end(), Some(0), "{}", top.printed());
    assert!(top.printed().contains(RESTORED), "{}", top.printed());
    assert!(!is_tracing(&id), "{id}");

    let mut top = OnTerminal::start("--pid 4194304");
    assert_eq!(top.end(), Some(2));
    let printed = top.printed();
    assert!(printed.contains("error: there is no process 4194304"), "{printed}");
    assert!(printed.contains("try:   ") && !printed.contains("\u{1b}[?1049h"), "{printed}");
}

#[test]
fn missing_permission_is_reported_before_the_display() {
    if !can_run() || Command::new("setpriv").arg("--version").output().is_err() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    // The copy is where another user may execute it.
    let lab = directory.path().join("shootdown");
    fs::copy(env!("CARGO_BIN_EXE_shootdown"), &lab).expect("a copy");
    let open = |path: &Path| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(path, mode).expect("permissions");
    };
    open(directory.path());
    open(&lab);
    let line = format!("setpriv --reuid 65534 --clear-groups {} top", lab.display());
    let output = Command::new("script").args(["-qec", &line, "/dev/null"]).output();
    let output = output.expect("the command runs");
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{printed}");
    assert!(printed.contains("error: only root may trace the kernel"), "{printed}");
    assert!(printed.contains("try:   run the command as root"), "{printed}");
    assert!(!printed.contains("\u{1b}[?1049h"), "{printed}");
}
