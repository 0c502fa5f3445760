//! `shootdown import` as its users meet it, with texts that other tools wrote.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use crate::common::{assert_error, command, files, text};
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

const TEXT: &str = include_str!("../../../recording/tests/import/kernel.txt");

/// A directory with the text `t`, and the command that imports something there.
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

/// It fails, and nothing is there but what was there before.
fn assert_fails(arguments: &[&str], words: &[&str]) {
    let (directory, output) = run(arguments);
    assert_error(&output, words);
    assert_eq!(files(&directory), ["t"], "{arguments:?}");
    assert_eq!(fs::read_to_string(directory.path().join("t")).expect("text"), TEXT);
}

#[test]
fn what_is_imported_can_be_replayed() {
    let (directory, output) = run(&["t", "--command", "mapper", "--output", "r"]);
    let error = text(&output.stderr);
    assert_eq!((error.as_str(), output.status.code()), ("", Some(0)));
    let said = text(&output.stdout);
    assert!(said.starts_with("imported 287 events "), "{said}");
    let next = said.lines().last().and_then(|line| line.strip_prefix("try:   shootdown "));
    let replayed = command()
        .args(next.expect("what to do next").split(' '))
        .current_dir(directory.path())
        .output()
        .expect("the command runs");
    assert!(replayed.status.success(), "{}", text(&replayed.stderr));
    assert_eq!(files(&directory), ["r", "t"]);
}

#[test]
fn mistakes_are_answered_with_a_cause_and_a_remedy_and_leave_nothing() {
    let to_r = ["--output", "r"];
    let fails = |arguments: &[&str], words: &[&str]| {
        assert_fails(&[arguments, &to_r].concat(), words);
    };
    fails(&["none\x1b", "--pid", "1"], &["none\\u{1b}: No such file", "trace-cmd report"]);
    fails(&[".", "--pid", "1"], &[".: the text: Is a directory"]);
    fails(&["t", "--pid", "1"], &["t: process 1 does nothing in the text", "--command NAME"]);
    fails(&["t", "--command", "a\x07"], &["t: `a\\u{7}` does nothing in the text", "--pid PID"]);
    fails(&["t", "--pid", "1", "--source", "perf"], &["t: there is no event", "no other --source"]);
    let at = |path, words: &[&str]| {
        assert_fails(&["t", "--command", "mapper", "--force", "--output", path], words);
    };
    at("no/such", &["no/such: No such file", "--output FILE"]);
    at("/", &["/: is a directory", "--output FILE"]);
    at("/dev/null", &["/dev/null exists, and is no file", "--output ANOTHER-FILE"]);
    at("t", &["t is the input as well", "--output ANOTHER-FILE"]);
    at("./t", &["./t is the input as well"]);
    assert_fails(&["t", "--pid", "19820", "--output", "t"], &["t exists", "--force"]);
}

#[test]
fn a_text_that_is_cut_or_has_lost_events_is_told_from_one_that_is_whole() {
    let (directory, mut command) = importer(&["t", "--command", "mapper", "--output", "r"]);
    let path = directory.path().join("t");
    fs::write(&path, TEXT.trim_end()).expect("a text");
    assert_error(&command.output().expect("the command runs"), &["has no end", "new line"]);
    assert_eq!(files(&directory), ["t"]);
    fs::write(&path, format!("{TEXT}CPU:1 [LOST 7 EVENTS]\n")).expect("a text");
    let words = ["7 events were lost: r was kept, but lacks them", "larger buffers"];
    assert_error(&command.output().expect("the command runs"), &words);
    assert_eq!(files(&directory), ["r", "t"]);
}

/// The text again and again, later each time: what takes a while to import.
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
fn ctrl_c_and_a_request_to_end_leave_nothing() {
    let (directory, _) = importer(&[]);
    write_long(&directory.path().join("t")).expect("a text");
    for (signal, delay_ms) in [(Signal::INT, 0), (Signal::INT, 60), (Signal::TERM, 150)] {
        let mut command = command();
        command.args(["import", "t", "--command", "mapper", "--output", "r"]);
        command.current_dir(directory.path()).process_group(0);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.expect("the command runs");
        thread::sleep(Duration::from_millis(delay_ms));
        kill_process_group(Pid::from_child(&child), signal).expect("a signal");
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(files(&directory), ["t"], "after {delay_ms} ms");
        assert!(output.stdout.is_empty());
        match (output.status.code(), output.status.signal()) {
            (Some(130), None) => assert!(text(&output.stderr).starts_with("error: interrupted, ")),
            // Before it cared.
            (None, Some(_)) => assert_eq!(delay_ms, 0),
            other => panic!("{other:?} after {delay_ms} ms: {}", text(&output.stderr)),
        }
    }
}
