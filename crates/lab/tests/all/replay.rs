//! The output and the errors of `shootdown replay`, with untrusted recordings.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use crate::common::{
    BAD_INPUT, CANNOT_RUN, FOUND, assert_error, command, files, text, wait_until_not_ignored,
};
use rustix::process::{Pid, Signal, kill_process_group};
use shootdown_recording::record::{
    Call, Event, FaultCode, FlushReason, Owner, Record, SpaceId, TaskId,
};
use shootdown_recording::{Ended, Header, Source, Writer};
use tempfile::TempDir;

/// Characters that a terminal interprets in several ways.
const HOSTILE: &str = "\x1b[2J\x07\r\n\x7f\u{9b}31m\u{202e}";
const FORMATS: [&str; 2] = ["text", "json"];

fn header(cpus: u32, name: &str) -> Header {
    Header {
        recorder: name.to_owned(),
        source: Source::Tracefs,
        kernel: name.to_owned(),
        processor: name.to_owned(),
        cpus,
        command: vec![name.to_owned(), format!("--{name}=\"a, b\"")],
    }
}

/// Returns the recording of a program with one thread, on CPU 0, that maps and touches `pages`
/// pages.
fn recording(header: &Header, pages: u64) -> Vec<u8> {
    let (task, space, name) = (TaskId(1), SpaceId(0), header.kernel.clone());
    let (address, length) = (0x7f00_0000_0000, pages << 12);
    let map = Call::Map { address: 0, length, protection: 3, flags: 0x22 };
    let begin = [
        Event::Task { task, owner: Owner::Recorded, space, name },
        Event::Running { task },
        Event::Call(map),
        Event::Return { value: address as i64 },
    ];
    let code = FaultCode(6);
    let faults = (0..pages).map(|page| Event::Fault { address: address + (page << 12), code });
    let end =
        [Event::Call(Call::Unmap { address, length }), Event::Return { value: 0 }, Event::Exit];
    let mut writer = Writer::create(Vec::new(), header).expect("a header");
    for (event, time_ns) in begin.into_iter().chain(faults).chain(end).zip((0..).step_by(1000)) {
        writer.write(&Record { time_ns, cpu: 0, event }).expect("a record");
    }
    writer.finish(Ended::Exited(0)).expect("an end")
}

/// Returns a directory with a recording of that name.
fn directory(name: impl AsRef<OsStr>, recording: &[u8]) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join(name.as_ref()), recording).expect("a file");
    directory
}

/// Returns the command that replays in `directory`.
fn replayer(directory: &TempDir, arguments: &[&str]) -> Command {
    let mut command = command();
    command.arg("replay").args(arguments).current_dir(directory.path()).stdin(Stdio::null());
    command
}

fn replay(directory: &TempDir, arguments: &[&str]) -> Output {
    replayer(directory, arguments).output().expect("the command runs")
}

#[test]
fn bad_input_exits_2_with_cause_and_remedy() {
    let small = recording(&header(2, "sort"), 8);
    let directory = directory("r", &small);
    let fails = |arguments: &[&str], words: &[&str]| {
        for format in FORMATS {
            let arguments = [arguments, &["--format", format]].concat();
            assert_error(&replay(&directory, &arguments), BAD_INPUT, words);
        }
    };
    fails(&["r", "--machine", "pdp-11\x1b"], &["no machine `pdp-11\\u{1b}`", "xeon-2s"]);
    fails(&["r", "--machine", "no/such.toml"], &["no/such.toml: No such file"]);
    fails(&["r", "--designs", "linux-7.0,vax\x07"], &["no design `vax\\u{7}`", "shootdown"]);
    fails(&["none\x1b"], &["none\\u{1b}: No such file", "shootdown record -- COMMAND"]);
    fails(&["."], &[".: the recording cannot be read: Is a directory"]);
    assert_eq!(files(&directory), ["r"]);
}

#[test]
fn machine_with_too_few_cpus_is_refused() {
    let directory = directory("r", &recording(&header(64, "sort"), 8));
    let arguments = ["r", "--machine", "skylake-laptop-kvm"];
    let words = ["is of 64 CPUs, and skylake-laptop-kvm has ", "--schedule simulated"];
    assert_error(&replay(&directory, &arguments), BAD_INPUT, &words);
    let simulated = replay(&directory, &[&arguments[..], &["--schedule", "simulated"]].concat());
    assert!(simulated.status.success(), "{}", text(&simulated.stderr));
}

#[test]
fn damaged_recording_is_refused() {
    let whole = recording(&header(2, "sort"), 200);
    let fails = |bytes: &[u8], words: &[&str]| {
        let directory = directory("r", bytes);
        assert_error(&replay(&directory, &["r"]), BAD_INPUT, words);
    };
    for length in [0, 7, 8, 20, 100, whole.len() / 2] {
        fails(&whole[..length], &["r: the recording ends too early, at byte ", "copy it again"]);
    }
    for at in [24, whole.len() / 2] {
        let mut altered = whole.clone();
        altered[at] ^= 1;
        fails(&altered, &["r: the recording was damaged or altered, at byte ", "copy it again"]);
    }
    let mut newer = whole.clone();
    newer[8] = 7;
    fails(
        &newer,
        &["r: the recording has version 7.", ", newer than 1.", ", at byte 8", "a later one"],
    );
    fails(b"# a text, and not a short one", &["this is not a recording, at byte 0"]);
    fails(&[&whole[..], b"!"].concat(), &["something follows the end"]);
}

/// The kernel flushed often, and the replay has no memory to flush: the recording began late.
#[test]
fn replay_that_lacks_flushes_exits_1() {
    let mut writer = Writer::create(Vec::new(), &header(2, "sort")).expect("a header");
    let (task, space) = (TaskId(1), SpaceId(0));
    let task_event = Event::Task { task, owner: Owner::Recorded, space, name: String::new() };
    let flush = || Event::Flush { reason: FlushReason::LocalSpace, pages: Some(1) };
    let begin = [task_event, Event::Running { task }];
    let flushes = (0..20).map(|_| flush());
    for (event, time_ns) in begin.into_iter().chain(flushes).zip((0..).step_by(1000)) {
        writer.write(&Record { time_ns, cpu: 0, event }).expect("a record");
    }
    let directory = directory("r", &writer.finish(Ended::Exited(0)).expect("an end"));
    let output = replay(&directory, &["r"]);
    let (printed, error) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(FOUND), "{error}");
    assert!(printed.contains("fidelity: unusable"), "{printed}");
    assert!(error.contains("r: the replay does not repeat the recorded flushes"), "{error}");
    let output = replay(&directory, &["r", "--format", "json"]);
    let verdict: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let fidelity = &verdict["fidelity"];
    assert_eq!(
        (&fidelity["verdict"], &fidelity["ranged_ratio"]),
        (&"unusable".into(), &0.0.into())
    );
    assert_eq!(
        (&fidelity["full_ratio"], &fidelity["interrupts_ratio"]),
        (&1.0.into(), &1.0.into())
    );
}

/// A fault on a CPU where no thread of the program runs belongs to no thread.
#[test]
fn replay_that_drops_records_exits_1() {
    let mut writer = Writer::create(Vec::new(), &header(2, "sort")).expect("a header");
    let fault = Event::Fault { address: 4096, code: FaultCode(6) };
    for event in [Event::Running { task: TaskId::KERNEL }, fault] {
        writer.write(&Record { time_ns: 0, cpu: 0, event }).expect("a record");
    }
    let directory = directory("r", &writer.finish(Ended::Exited(0)).expect("an end"));
    let output = replay(&directory, &["r"]);
    assert_eq!(output.status.code(), Some(FOUND));
    let error = text(&output.stderr);
    assert!(error.contains("r: 1 recorded operations were not replayed"), "{error}");
}

/// The recording has several blocks, of which the last is cut.
#[test]
fn cut_recording_is_replayed_up_to_cut_with_exit_1() {
    let whole = recording(&header(2, "sort"), 40_000);
    let directory = directory("r", &whole[..whole.len() - 1000]);
    let output = replay(&directory, &["r", "--format", "json"]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(FOUND), "{error}");
    assert!(error.contains("the recording ends too early, at byte "), "{error}");
    assert!(error.contains("try:   use these counts for that part only"), "{error}");
    let verdict: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let faults = verdict["recording"]["faults"].as_u64().expect("a number");
    assert!((10_000..40_000).contains(&faults), "{faults}");
    assert!(verdict["recording"]["cut"].is_string());
    let printed = text(&replay(&directory, &["r"]).stdout);
    assert!(printed.contains("these are its first "), "{printed}");
}

#[test]
fn full_disk_exits_3_and_closed_pipe_0() {
    let directory = directory("r", &recording(&header(2, "sort"), 8));
    for format in FORMATS {
        let mut full = replayer(&directory, &["r", "--format", format]);
        let full = full.stdout(File::create("/dev/full").expect("a device"));
        let words = ["standard output: No space left on device", "redirect the output"];
        assert_error(&full.output().expect("the command runs"), CANNOT_RUN, &words);
        let mut left = replayer(&directory, &["r", "--format", format]);
        let mut left = left.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(left.stdout.take());
        let output = left.wait_with_output().expect("it ends");
        assert_eq!((text(&output.stderr), output.status.code()), (String::new(), Some(0)));
    }
}

#[test]
fn ctrl_c_ends_long_replay() {
    let directory = directory("r", &recording(&header(2, "sort"), 3_000_000));
    for delay_ms in [20, 400] {
        let mut command = replayer(&directory, &["r"]);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let child = command.spawn().expect("the command runs");
        wait_until_not_ignored(child.id(), Signal::INT);
        thread::sleep(Duration::from_millis(delay_ms));
        kill_process_group(Pid::from_child(&child), Signal::INT).expect("a signal");
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.signal(), Some(2), "{}", text(&output.stderr));
        assert!(output.stdout.is_empty() && output.stderr.is_empty());
        assert_eq!(files(&directory), ["r"]);
    }
}

#[test]
fn hostile_names_are_escaped() {
    let harmless = directory("r", &recording(&header(2, "r"), 8));
    let hostile = directory(HOSTILE, &recording(&header(2, HOSTILE), 8));
    for format in FORMATS {
        let expected = replay(&harmless, &["r", "--format", format]);
        let output = replay(&hostile, &[HOSTILE, "--format", format]);
        let (printed, error) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{error}");
        for character in printed.chars().chain(error.chars()) {
            let acts = character.is_control() && character != '\n' || character == '\u{202e}';
            assert!(!acts, "{format}: {character:?} in {printed}");
        }
        // The names added no line.
        assert_eq!(printed.lines().count(), text(&expected.stdout).lines().count(), "{printed}");
    }
}

#[test]
fn json_has_unchanged_names() {
    let directory = directory(HOSTILE, &recording(&header(2, HOSTILE), 8));
    let output = replay(&directory, &[HOSTILE, "--format", "json"]);
    let verdict: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let recording = &verdict["recording"];
    let names = [&recording["file"], &recording["kernel"], &recording["command"][0]];
    assert_eq!(names, [HOSTILE; 3]);
}

#[test]
fn error_about_hostile_name_has_two_lines() {
    for format in FORMATS {
        let directory = directory(HOSTILE, b"");
        let output = replay(&directory, &[HOSTILE, "--format", format]);
        assert_error(
            &output,
            BAD_INPUT,
            &["\\u{1b}[2J\\u{7}\\r\\n\\u{7f}\\u{9b}31m\\u{202e}: the recording"],
        );
    }
}
