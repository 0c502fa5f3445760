//! `shootdown explain`: on a recording that the test writes, and on a program that runs. The second
//! needs root and tracefs, and is skipped otherwise.

use std::fs;
use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{assert_error, can_trace, command, text};
use serde_json::Value;
use shootdown_recording::record::{
    Call, Event, FaultCode, FlushReason, Frame, FrameId, Layer, Owner, Record, SpaceId, TaskId,
};
use shootdown_recording::{Ended, Header, Source, Writer};
use tempfile::TempDir;

/// Number of pages that the recorded program returns.
const ROUNDS: u64 = 50;

/// Returns a recording of two threads, of which one touches a page and returns it, many times.
pub(crate) fn recording() -> Vec<u8> {
    recording_of("release_pages", ROUNDS)
}

/// The same in a function of this name, which is also the name of the program.
fn recording_of(name: &str, rounds: u64) -> Vec<u8> {
    recording_with_end(name, rounds, 0)
}

/// The same, and the program then runs for a time.
fn recording_with_end(name: &str, rounds: u64, long_ns: u64) -> Vec<u8> {
    let header = Header {
        recorder: "test".into(),
        source: Source::Tracefs,
        kernel: "6.18".into(),
        processor: "test".into(),
        cpus: 2,
        command: vec![name.into()],
    };
    let space = SpaceId(0);
    let task =
        |id| Event::Task { task: TaskId(id), owner: Owner::Recorded, space, name: "thread".into() };
    let frame = |frame, layer, function: &str, line| {
        let (function, file) = (function.into(), "pool.c".into());
        let function = Frame { layer, function, file, line };
        Event::Frame { frame: FrameId(frame), caller: FrameId(frame - 1), function }
    };
    let mut events = vec![
        (0, task(1)),
        (0, task(2)),
        (0, Event::Running { task: TaskId(1) }),
        (1, Event::Running { task: TaskId(2) }),
        (0, Event::Call(Call::Map { address: 0, length: 4096, protection: 3, flags: 0x22 })),
        (0, Event::Return { value: 0x7000_0000 }),
        (0, frame(1, Layer::User, "main", 30)),
        (0, frame(2, Layer::User, name, 9)),
        (0, frame(3, Layer::Kernel, "do_madvise", 0)),
    ];
    for _ in 0..rounds {
        let (address, length) = (0x7000_0000, 4096);
        events.extend([
            (0, Event::Fault { address, code: FaultCode(6) }),
            (0, Event::Call(Call::Advise { address, length, advice: 4 })),
            (0, Event::Flush { reason: FlushReason::Request, pages: Some(1) }),
            (0, Event::Stack { frame: FrameId(3), requests: 1 }),
            (0, Event::Requests { targets: vec![1] }),
            (0, Event::Interrupts { targets: vec![1] }),
            (0, Event::Flush { reason: FlushReason::LocalSpace, pages: Some(1) }),
            (1, Event::Flush { reason: FlushReason::Remote, pages: Some(1) }),
            (0, Event::Return { value: 0 }),
        ]);
    }
    let mut writer = Writer::create(Vec::new(), &header).expect("a header");
    let mut end_ns = long_ns;
    for (time_ns, (cpu, event)) in (0..).step_by(700).zip(events) {
        writer.write(&Record { time_ns, cpu, event }).expect("a record");
        end_ns = time_ns + long_ns;
    }
    writer.write(&Record { time_ns: end_ns, cpu: 0, event: Event::Exit }).expect("a record");
    writer.finish(Ended::Exited(0)).expect("an end")
}

#[test]
fn recorded_call_site_is_named_with_advice() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("r"), recording()).expect("a file");
    let explain = |options: &[&str]| {
        let mut command = command();
        let output = command.args(["explain", "r"]).args(options).current_dir(directory.path());
        let output = output.output().expect("the command runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let answer = explain(&[]);
    let first = answer.lines().next().expect("a line");
    let cause = "all by madvise(MADV_DONTNEED) in release_pages (pool.c:9)";
    assert!(first.contains(" % of the program's CPU time: ") && first.contains(cause), "{first}");
    assert!(first.contains("keep the memory and reuse it"), "{first}");

    let json: Value = serde_json::from_str(&explain(&["--format", "json"])).expect("JSON");
    assert_eq!(json["schema"], 1);
    assert_eq!(json["total"]["requests"], ROUNDS);
    assert_eq!(json["causes"][0]["cause"], "madvise(MADV_DONTNEED)");
    let site = &json["sites"][0];
    assert_eq!(site["frames"][1], "main (pool.c:30)");
    let advice = &site["advice"][0];
    assert_eq!(advice["by"], "replay");
    // Without the calls, the page is touched once and never flushed.
    assert_eq!(advice["saves"], ROUNDS);

    let folded = explain(&["--format", "folded"]);
    assert!(folded.starts_with("main;release_pages;[madvise(MADV_DONTNEED)] "), "{folded}");
    let graph = explain(&["--format", "flamegraph"]);
    assert!(graph.starts_with("<?xml") && graph.trim_end().ends_with("</svg>"), "{graph}");
    // The names of calls, with their cost.
    for call in ["main (", "release_pages (", "[madvise(MADV_DONTNEED)] ("] {
        assert!(graph.contains(&format!("<title>{call}")), "{call}: {graph}");
    }
    let timeline: Value = serde_json::from_str(&explain(&["--format", "timeline"])).expect("JSON");
    assert_eq!(timeline["traceEvents"].as_array().map(Vec::len), Some(ROUNDS as usize));
}

/// Returns the output and the exit status of `explain` with these words, in this directory.
fn explain_in(directory: &TempDir, words: &[&str]) -> (String, Option<i32>) {
    let mut command = command();
    command.arg("explain").args(words).current_dir(directory.path());
    let output = command.output().expect("the command runs");
    (text(&output.stdout), output.status.code())
}

#[test]
fn part_of_a_killed_recorder_is_explained_with_a_note() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = recording();
    fs::write(directory.path().join("r.part"), &file[..file.len() - 20]).expect("a file");
    let mut command = command();
    let output = command.args(["explain", "r.part"]).current_dir(directory.path()).output();
    let output = output.expect("the command runs");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stderr).starts_with("note: only the intact part is explained: "));
}

#[test]
fn small_cost_gets_no_advice() {
    let directory = tempfile::tempdir().expect("a directory");
    for (long_ns, is_small) in [(0, false), (10_000_000_000, true)] {
        let file = recording_with_end("f", ROUNDS, long_ns);
        fs::write(directory.path().join("r"), file).expect("a file");
        let (output, _) = explain_in(&directory, &["r"]);
        assert_eq!(
            output.starts_with("nothing to gain: shootdowns take 0.00"),
            is_small,
            "{output}"
        );
        assert_eq!(output.contains("advice:"), !is_small, "{output}");
    }
}

#[test]
fn exceeded_budget_is_exit_status_one() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("r"), recording()).expect("a file");
    for (budget, status) in [("requests<=50,cpu<=100%", 0), ("requests<=49", 1), ("cpu<=1%", 1)] {
        let (output, found) =
            explain_in(&directory, &["r", "--format", "json", "--budget", budget]);
        assert_eq!(found, Some(status), "{budget}");
        assert!(serde_json::from_str::<Value>(&output).is_ok(), "{output}");
    }
    assert_eq!(explain_in(&directory, &["r", "--budget", "requests<50"]).1, Some(2));
    // The rest of a recording may exceed the budget.
    let cut = recording();
    fs::write(directory.path().join("r.part"), &cut[..cut.len() - 20]).expect("a file");
    assert_eq!(explain_in(&directory, &["r.part", "--budget", "requests<=50"]).1, Some(3));
}

#[test]
fn two_recordings_are_compared_by_caller() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("a"), recording_of("f", 40)).expect("a file");
    fs::write(directory.path().join("b"), recording_of("f", 3)).expect("a file");
    let (output, status) = explain_in(&directory, &["--compare", "a", "b"]);
    assert_eq!(status, Some(0), "{output}");
    assert!(output.starts_with("3 requests instead of 40, "), "{output}");
    let (output, _) = explain_in(&directory, &["--compare", "a", "b", "--format", "json"]);
    let json: Value = serde_json::from_str(&output).expect("JSON");
    let row = &json["callers"][0];
    assert_eq!((&row["before"]["requests"], &row["after"]["requests"]), (&40.into(), &3.into()));
    assert_eq!(row["caller"], "f (pool.c:9)");
}

#[test]
fn table_without_such_cpu_or_format_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("r"), recording()).expect("the file is written");
    let explain = |words: &[&str]| explain_in(&directory, &[&["r"], words].concat());
    assert_eq!(explain(&["--cpu", "1"]).1, Some(0));
    let (idle, _) = explain(&["--cpu", "0"]);
    assert!(idle.contains("asked CPU 0 to flush") && !idle.contains("─"), "{idle}");
    for words in [
        &["--cpu", "2"][..],
        &["--cpu", "1", "--format", "folded"],
        &["--compare", "r", "--format", "timeline"],
    ] {
        assert_eq!(explain(words), (String::new(), Some(2)), "{words:?}");
    }
}

#[test]
fn missing_cpu_is_refused_before_recording() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = command();
    command.args(["explain", "--cpu", "99999", "--", "touch", "run"]).current_dir(directory.path());
    assert_error(&command.output().expect("the command runs"), 2, &["no CPU 99999", "--cpu N"]);
    assert!(!directory.path().join("run").exists());
}

/// Returns the recording with another header, and only with these events.
fn rewritten(header: impl Fn(Header) -> Header, is_kept: impl Fn(&Event) -> bool) -> Vec<u8> {
    let mut read = shootdown_recording::Reader::open(std::io::Cursor::new(recording())).expect("r");
    let header = header(read.header().clone());
    let mut writer = Writer::create(Vec::new(), &header).expect("a header");
    while let Some(record) = read.next_record().expect("a record") {
        if is_kept(&record.event) {
            writer.write(&record).expect("a record");
        }
    }
    writer.finish(Ended::Interrupted).expect("an end")
}

#[test]
fn text_without_targets_is_not_free_of_shootdowns() {
    let directory = tempfile::tempdir().expect("a directory");
    let is_kept = |event: &Event| match event {
        Event::Requests { .. } | Event::Interrupts { .. } => false,
        Event::Flush { reason, .. } => *reason != FlushReason::Remote,
        _ => true,
    };
    let imported = |header| Header { source: Source::PerfScript, ..header };
    let bytes = rewritten(imported, is_kept);
    fs::write(directory.path().join("r"), bytes).expect("the file is written");
    let (output, status) = explain_in(&directory, &["r"]);
    assert!(output.starts_with("unknown: ") && status == Some(0), "{output}");
    assert_eq!(explain_in(&directory, &["r", "--budget", "requests<=9"]).1, Some(3));
}

#[test]
fn broadcasts_are_calls_without_interrupts() {
    let directory = tempfile::tempdir().expect("a directory");
    for (processor, answer) in [
        ("aarch64", "no shootdowns: this processor broadcasts"),
        ("x86", "no shootdowns: no thread"),
    ] {
        let is_kept = |event: &Event| {
            matches!(event, Event::Task { .. } | Event::Running { .. } | Event::Call(_))
                || matches!(event, Event::Return { .. })
        };
        let of = |header| Header { processor: processor.to_owned(), ..header };
        fs::write(directory.path().join("r"), rewritten(of, is_kept)).expect("the file is written");
        let (output, status) = explain_in(&directory, &["r"]);
        assert!(output.starts_with(answer) && status == Some(0), "{output}");
        let has_calls = output.contains(&format!("madvise(MADV_DONTNEED): {ROUNDS} calls"));
        assert_eq!(has_calls, processor == "aarch64", "{output}");
    }
}

#[test]
fn flame_graph_escapes_hostile_names() {
    let hostile = "<script>alert(1)</script>\"&]]>;\u{1b}[2J\u{202e}";
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("r"), recording_of(hostile, ROUNDS)).expect("a file");
    let mut command = command();
    command.args(["explain", "r", "--format", "flamegraph"]).current_dir(directory.path());
    let graph = text(&command.output().expect("the command runs").stdout);
    assert!(graph.contains("&lt;script&gt;alert(1)"), "{graph}");
    assert!(!graph.contains("<script>alert") && !graph.contains('\u{1b}'), "{graph}");
    assert_eq!(graph.matches("</script>").count(), 1, "inferno's own");
}

#[test]
fn flame_graph_without_shootdowns_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("r"), recording_of("f", 0)).expect("a file");
    let mut command = command();
    command.args(["explain", "r", "--format", "flamegraph"]).current_dir(directory.path());
    let output = command.output().expect("the command runs");
    assert_error(&output, 2, &["asked another CPU to flush", "--format text"]);
}

#[test]
fn missing_or_damaged_recording_is_bad_input() {
    let output = command().args(["explain", "/nowhere"]).output().expect("the command runs");
    assert_error(&output, 2, &["/nowhere"]);
}

/// The program that the next test records. A thread computes while another one gets memory from the
/// kernel and returns it, many times.
#[test]
#[ignore = "a program for the test below"]
fn culprit() {
    beside_another_thread(|| (0..2000).for_each(|_| return_memory()));
}

/// The same until its standard input is closed, for the tests of `top`.
#[test]
#[ignore = "a program for another test"]
fn lasting_culprit() {
    let is_over = Arc::new(AtomicBool::new(false));
    let of_reader = Arc::clone(&is_over);
    thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        of_reader.store(true, Ordering::Relaxed);
    });
    beside_another_thread(|| {
        while !is_over.load(Ordering::Relaxed) {
            return_memory();
            thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Runs a function while another thread computes.
fn beside_another_thread(function: impl FnOnce()) {
    static STOP: AtomicBool = AtomicBool::new(false);
    let other = thread::spawn(|| {
        while !STOP.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    });
    function();
    STOP.store(true, Ordering::Relaxed);
    other.join().expect("it ends");
}

/// Allocates a block that is so large that the allocator maps it alone, and frees it.
#[inline(never)]
fn return_memory() {
    let mut block = Vec::<u8>::with_capacity(64 << 20);
    block.push(1);
    std::hint::black_box(&mut block);
}

#[test]
fn running_program_is_explained() {
    if !can_trace() {
        return;
    }
    let program = std::env::current_exe().expect("a path");
    let mut command = command();
    command.args(["explain", "--format", "json", "--predict", "count", "--"]).arg(program);
    command.args(["--exact", "explain::culprit", "--ignored"]);
    let output = command.output().expect("the command runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    // The output of the program is not on standard output.
    assert!(text(&output.stderr).contains("running 1 test"));
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let count = |part: &str, of: &str| json[part][of].as_u64().expect("a count");
    assert_eq!(json["balance"]["difference"], Value::Null, "{json}");
    assert!(count("balance", "counted") >= count("total", "requests"), "{json}");
    // On a busy machine, the two threads may never run at once.
    if count("total", "requests") < 100 || count("overhead", "stacks") < 20 {
        eprintln!("skipped: the threads did not run at once");
        return;
    }
    assert!(count("total", "attributed") * 100 >= count("total", "requests") * 95, "{json}");
    let site = &json["sites"][0];
    assert_eq!(site["cause"], "munmap", "{json}");
    let frames = site["frames"].to_string();
    assert!(frames.contains("return_memory"), "{frames}");
}

#[test]
fn several_runs_have_spread_and_median() {
    if !can_trace() {
        return;
    }
    let program = std::env::current_exe().expect("a path");
    let mut command = command();
    command.args(["explain", "--runs", "3", "--format", "json", "--predict", "count", "--"]);
    command.arg(program).args(["--exact", "explain::culprit", "--ignored"]);
    let output = command.output().expect("the command runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let runs = json["runs"].as_array().expect("runs");
    let requests: Vec<_> = runs.iter().map(|run| run["requests"].as_u64().expect("r")).collect();
    assert!(requests.len() == 3 && requests.is_sorted(), "{requests:?}");
    assert_eq!(json["total"]["requests"], requests[1], "{requests:?}");
}
