//! The output and the errors of `shootdown import`, with texts of other tools.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use crate::common::{
    BAD_INPUT, assert_error, command, files, text, wait_until_caught, wait_until_not_ignored,
};
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

const TEXT: &str = include_str!("../../../recording/tests/import/kernel.txt");

/// Returns a directory with the text `t`, and the command that imports in it.
fn importer(arguments: &[&str]) -> (TempDir, Command) {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("t"), TEXT).expect("a text");
    let mut command = command();
    command.arg("import").args(arguments).current_dir(directory.path()).stdin(Stdio::null());
    (directory, command)
}

fn run(arguments: &[&str]) -> (TempDir, Output) {
    let (directory, mut command) = importer(arguments);
    let output = command.output().expect("the command runs");
    (directory, output)
}

/// Asserts that the command refuses its input and leaves only the text.
fn assert_refuses(arguments: &[&str], words: &[&str]) {
    let (directory, output) = run(arguments);
    assert_error(&output, BAD_INPUT, words);
    assert_eq!(files(&directory), ["t"], "{arguments:?}");
    assert_eq!(fs::read_to_string(directory.path().join("t")).expect("text"), TEXT);
}

#[test]
fn imported_recording_can_be_replayed() {
    let (directory, output) = run(&["t", "--command", "mapper", "--output", "r"]);
    let error = text(&output.stderr);
    assert_eq!((error.as_str(), output.status.code()), ("", Some(0)));
    let printed = text(&output.stdout);
    assert!(printed.starts_with("imported 287 events "), "{printed}");
    let next = printed.lines().last().and_then(|line| line.strip_prefix("try:   shootdown "));
    let replayed = command()
        .args(next.expect("the next command").split(' '))
        .current_dir(directory.path())
        .output()
        .expect("the command runs");
    assert!(replayed.status.success(), "{}", text(&replayed.stderr));
    assert_eq!(files(&directory), ["r", "t"]);
}

#[test]
fn bad_input_exits_2_and_leaves_no_file() {
    let to_r = ["--output", "r"];
    let fails = |arguments: &[&str], words: &[&str]| {
        assert_refuses(&[arguments, &to_r].concat(), words);
    };
    fails(&["none\x1b", "--pid", "1"], &["none\\u{1b}: No such file", "trace-cmd report"]);
    fails(&[".", "--pid", "1"], &[".: the text: Is a directory"]);
    fails(&["t", "--pid", "1"], &["t: process 1 does nothing in the text", "--command NAME"]);
    fails(&["t", "--command", "a\x07"], &["t: `a\\u{7}` does nothing in the text", "--pid PID"]);
    fails(&["t"], &["t: choose a program: flush requests are ", " (mapper)", "add --pid 19820"]);
    fails(&["t", "--pid", "1", "--source", "perf"], &["t: there is no event", "no other --source"]);
    let at = |path, words: &[&str]| {
        assert_refuses(&["t", "--command", "mapper", "--force", "--output", path], words);
    };
    at("no/such", &["no/such: No such file", "with --output"]);
    at("/", &["/: is a directory", "with --output"]);
    at("/dev/null", &["/dev/null exists, and is not a regular file", "with --output"]);
    at("t", &["t is also the input", "with --output"]);
    at("./t", &["./t is also the input"]);
    assert_refuses(&["t", "--pid", "19820", "--output", "t"], &["t exists", "--force"]);
}

#[test]
fn truncated_text_is_noted_and_lost_events_are_errors() {
    let (directory, mut command) = importer(&["t", "--command", "mapper", "--output", "r"]);
    let path = directory.path().join("t");
    fs::write(&path, TEXT.trim_end()).expect("a text");
    let output = command.output().expect("the command runs");
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stderr).contains("the text ends within a line"));
    fs::remove_file(directory.path().join("r")).expect("a recording");
    fs::write(&path, format!("{TEXT}CPU:1 [LOST 7 EVENTS]\n")).expect("a text");
    let words = ["7 events were lost: r was kept, but lacks them", "larger buffers"];
    assert_error(&command.output().expect("the command runs"), BAD_INPUT, &words);
    assert_eq!(files(&directory), ["r", "t"]);
}

/// Writes many copies of the text, each at a later time, so that the import takes a while.
fn write_long(path: &Path) -> io::Result<()> {
    let mut file = io::BufWriter::new(fs::File::create(path)?);
    let events: Vec<_> = TEXT.lines().filter(|line| !line.starts_with('#')).collect();
    for round in 0..3000 {
        for event in &events {
            let (before, rest) = event.split_once(": ").expect("a time");
            let (begin, time) = before.rsplit_once(' ').expect("a time");
            let (_, decimals) = time.split_once('.').expect("seconds");
            writeln!(file, "{begin} {}.{decimals}: {rest}", 1_000_000 + 100 * round)?;
        }
    }
    file.flush()
}

#[test]
fn signals_end_import_without_file() {
    let (directory, _) = importer(&[]);
    write_long(&directory.path().join("t")).expect("a text");
    for (signal, delay_ms) in [(Signal::INT, 0), (Signal::INT, 60), (Signal::TERM, 150)] {
        let mut command = command();
        command.args(["import", "t", "--command", "mapper", "--output", "r"]);
        command.current_dir(directory.path()).process_group(0);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.expect("the command runs");
        wait_until_not_ignored(child.id(), signal);
        if delay_ms > 0 {
            wait_until_caught(child.id(), signal);
        }
        thread::sleep(Duration::from_millis(delay_ms));
        kill_process_group(Pid::from_child(&child), signal).expect("a signal");
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(files(&directory), ["t"], "after {delay_ms} ms");
        assert!(output.stdout.is_empty());
        match (output.status.code(), output.status.signal()) {
            (Some(130), None) => assert!(text(&output.stderr).starts_with("error: interrupted, ")),
            // The signal came before the handlers were installed.
            (None, Some(_)) => assert_eq!(delay_ms, 0),
            other => panic!("{other:?} after {delay_ms} ms: {}", text(&output.stderr)),
        }
    }
}
