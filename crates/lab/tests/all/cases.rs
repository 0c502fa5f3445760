//! `shootdown explain` on programs that each flush in another way (`programs/cases.c`),
//! beside other users of the kernel's tracing, and in a container. Most tests need root, tracefs
//! and a C compiler, and are skipped otherwise.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{assert_error, can_trace, command, text};

/// The source of [`CASES`] and [`OTHERS`].
const CASES_SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/cases.c");
/// Programs that the book and its recordings also use.
const CULPRITS_SOURCE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/programs/culprits.c");
/// The exit status of a program whose kernel lacks what it tries.
const UNAVAILABLE: i32 = 77;
/// The fewest requests that show a cause: on a busy machine, two threads seldom run at once.
const REQUESTS_MIN: u64 = 5;

/// Each program of `cases.c` with the cause of its flushes, and a part of the first advice.
const CASES: [(&str, &str, &str); 18] = [
    ("shrink_file", "ftruncate", "shrink the file less often"),
    ("punch_hole", "fallocate", "for larger ranges"),
    ("remove_pages", "madvise(MADV_REMOVE)", "punch holes less often"),
    ("protect_writes", "userfaultfd write-protect", "larger ranges"),
    ("commit", "write-back", "write files with write()"),
    ("clear_soft_dirty", "write to clear_refs", "PAGEMAP_SCAN"),
    ("toggle_key", "pkey_mprotect", "pkey_set"),
    ("toggle_write", "mprotect", "less often"),
    ("unmap_file", "munmap", "reuse the mapping"),
    ("page_out", "madvise(MADV_PAGEOUT)", "less often"),
    ("grow", "mremap", "reserve address space"),
    ("copy_after_fork", "copy-on-write", "while a child"),
    ("exchange_pages", "userfaultfd move", "larger ranges"),
    ("free_lazily", "madvise(MADV_FREE)", "less often"),
    ("map_over", "mmap over a mapping", "keep the memory"),
    ("lower_break", "brk", "below the break"),
    ("move_page", "mremap (same size)", "exchange pointers"),
    ("discard_ranges", "process_madvise", "more ranges"),
];
/// Programs whose interrupts are no flushes of the program, and whose calls flush nothing.
const OTHERS: [&str; 6] =
    ["wait_for_others", "install_filter", "lock_pages", "move_to_node", "mark_idle", "empty_swap"];

/// Compiles a program; `None` without a compiler.
fn compiled(source: &str) -> Option<(TempDir, PathBuf)> {
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join(Path::new(source).file_stem().expect("a file"));
    let mut compiler = Command::new("cc");
    let status = compiler.args(["-O1", "-g", "-pthread", source, "-o"]).arg(&program).status();
    match status {
        Ok(status) => assert!(status.success(), "{source} compiles"),
        Err(error) => {
            eprintln!("skipped: no C compiler: {error}");
            return None;
        }
    }
    Some((directory, program))
}

/// Returns what `explain` finds with these options; `None` if the program is unavailable here.
fn explained(options: &[&str], program: &[&str]) -> Option<Value> {
    let mut command = command();
    command.args(["explain", "--format", "json"]).args(options);
    let is_command = !program.is_empty();
    if is_command {
        command.arg("--").args(program);
    }
    let output = command.output().expect("the command runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let has_run = !is_command || json["recording"]["time_ns"].as_u64() > Some(0);
    has_run.then_some(json)
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

#[test]
fn each_case_has_its_cause_caller_and_advice() {
    let Some((_directory, program)) = compiled(CASES_SOURCE).filter(|_| can_trace()) else {
        return;
    };
    let program = program.to_str().expect("a path");
    let (mut with_stacks, mut without_stacks) = (0, 0);
    for (name, cause, advice) in CASES {
        let status = Command::new(program).arg(name).status().expect("it runs");
        if status.code() == Some(UNAVAILABLE) {
            eprintln!("skipped: {name} is unavailable");
            continue;
        }
        let json = explained(&[], &[program, name]).expect("a recording");
        if number(&json["total"]["requests"]) < REQUESTS_MIN {
            eprintln!("skipped: the threads of {name} did not run at once");
            continue;
        }
        if json["overhead"]["stacks_coverage"].as_f64() < Some(0.5) {
            eprintln!("skipped: flushes of other programs took the stacks of {name}");
            without_stacks += 1;
            continue;
        }
        with_stacks += 1;
        let first = &json["callers"][0];
        assert_eq!(first["cause"], cause, "{json}");
        let caller = first["caller"].as_str().unwrap_or_default();
        assert!(caller.starts_with(name), "{name}: {first}");
        let remedy = &first["advice"][0];
        assert!(
            remedy["change"].as_str().is_some_and(|it| it.contains(advice)),
            "{name}: {remedy}"
        );
        // The change removes all of these flushes, in all of these programs.
        let (saves, requests) = (number(&remedy["saves"]), number(&first["requests"]));
        assert!(saves <= requests && saves * 2 >= requests, "{name}: {first}");
    }
    assert!(with_stacks > 0 || without_stacks == 0, "no case has call stacks");
}

#[test]
fn interrupts_of_other_kinds_are_not_blamed_on_the_program() {
    let Some((_directory, program)) = compiled(CASES_SOURCE).filter(|_| can_trace()) else {
        return;
    };
    for name in OTHERS {
        let program = program.to_str().expect("a path");
        let json = explained(&["--predict", "count"], &[program, name]).expect("a recording");
        let callers = json["callers"].as_array().expect("a list").iter();
        let name_of = |row: &Value| row["caller"].as_str().unwrap_or_default().to_owned();
        let blamed = callers.filter(|row| name_of(row).contains(name));
        assert_eq!(blamed.count(), 0, "{json}");
    }
}

#[test]
fn tried_settings_remove_what_was_predicted() {
    let Some((_directory, program)) = compiled(CULPRITS_SOURCE).filter(|_| can_trace()) else {
        return;
    };
    let program = program.to_str().expect("a path");
    let json = explained(&["--try"], &[program, "frees-small"]).expect("a recording");
    let requests = number(&json["total"]["requests"]);
    if requests < 10 * REQUESTS_MIN || json["total"]["cpu_share"].as_f64() < Some(0.001) {
        eprintln!("skipped: the threads did not run at once");
        return;
    }
    let tried = &json["tried"][0];
    assert_eq!(tried["settings"][0], "MALLOC_TRIM_THRESHOLD_=1073741824", "{json}");
    let (predicted, removed) = (number(&tried["predicted"]), number(&tried["removed"]));
    assert!((80..=125).contains(&(100 * removed / predicted)), "{tried}");
    assert_eq!(number(&tried["after"]["requests"]), requests - removed, "{tried}");
    let prefixed =
        ["sh", "-c", &format!("test -z $MALLOC_TRIM_THRESHOLD_ && {program} frees-small")];
    let json = explained(&["--try"], &prefixed).expect("a recording");
    if let Some(tried) = json["tried"].get(0) {
        assert_eq!(tried["reason"], "the command ends differently", "{tried}");
    }
}

#[test]
fn exported_metrics_have_cause_and_waits() {
    let Some((_directory, program)) = compiled(CULPRITS_SOURCE).filter(|_| can_trace()) else {
        return;
    };
    let mut exporter = command();
    exporter.args(["export", "--listen", "127.0.0.1:0"]).stderr(Stdio::piped());
    let mut exporter = exporter.spawn().expect("it runs");
    let mut line = String::new();
    let errors = exporter.stderr.take().expect("a pipe");
    BufReader::new(errors).read_line(&mut line).expect("a line");
    let address = line.trim().strip_prefix("metrics: http://").and_then(|it| it.split('/').next());
    let address = address.unwrap_or_else(|| panic!("{line}"));
    let status = Command::new(program).arg("discards").status().expect("it runs");
    assert!(status.success());
    // Flushes are complete after a second.
    thread::sleep(Duration::from_millis(1500));
    let mut stream = TcpStream::connect(address).expect("a server");
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("a request");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    stop(&mut exporter);
    let sum = |name: &str| -> u64 {
        let lines = text.lines().filter(|line| line.starts_with(name) && line.contains("madvise"));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    };
    let requests = sum("shootdown_requests_total{");
    if requests < 10 * REQUESTS_MIN {
        eprintln!("skipped: the threads did not run at once");
        return;
    }
    let (interrupts, waits) =
        (sum("shootdown_interrupts_total{"), sum("shootdown_wait_seconds_count{"));
    assert!(interrupts <= requests && interrupts * 2 > requests, "{text}");
    assert!(waits <= requests && waits * 2 > requests, "{text}");
    assert!(text.ends_with("shootdown_lost_events_total 0\n# EOF\n"), "{text}");
}

/// Asserts that the call sites of a program are known while other tracers run.
fn assert_sites_are_known(program: &[&str]) {
    let json = explained(&["--predict", "count"], program).expect("a recording");
    if number(&json["total"]["requests"]) < 10 * REQUESTS_MIN {
        eprintln!("skipped: the threads did not run at once");
        return;
    }
    let first = &json["callers"][0];
    assert!(first["caller"].as_str().is_some_and(|it| it.starts_with("release_pages")), "{json}");
    assert!(number(&first["sampled"]) > 0 && first["share"].as_f64() > Some(0.9), "{json}");
}

#[test]
fn call_sites_are_known_beside_other_tracers() {
    let Some((directory, program)) = compiled(CULPRITS_SOURCE).filter(|_| can_trace()) else {
        return;
    };
    let program = program.to_str().expect("a path");
    assert_sites_are_known(&[program, "discards"]);
    let later = format!("sleep 4; exec {program} discards");
    let recorder = || {
        let mut recorder = command();
        recorder.args(["record", "--all", "--quiet", "--duration", "20s", "--force", "--output"]);
        recorder.arg(directory.path().join("r"));
        recorder
    };
    let perf = || {
        let mut perf = Command::new("perf");
        perf.args(["record", "-q", "-a", "-g", "-e", "tlb:tlb_flush", "-o", "/dev/null"]);
        perf.args(["sleep", "20"]);
        perf
    };
    let bpftrace = || {
        let mut bpftrace = Command::new("bpftrace");
        bpftrace.args(["-e", "tracepoint:tlb:tlb_flush { @ = count(); }"]);
        bpftrace
    };
    for other in [&recorder as &dyn Fn() -> Command, &perf, &bpftrace] {
        let start = |mut other: Command| {
            other.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
        };
        let Ok(mut before) = start(other()) else {
            eprintln!("skipped: {:?} is not installed", other().get_program());
            continue;
        };
        // It has begun to sample, or a joining tracer is tested as well.
        thread::sleep(Duration::from_secs(2));
        assert_sites_are_known(&[program, "discards"]);
        stop(&mut before);
        let other = other();
        let after = thread::spawn(move || {
            thread::sleep(Duration::from_secs(2));
            start(other).expect("it runs")
        });
        assert_sites_are_known(&["sh", "-c", &later]);
        stop(&mut after.join().expect("no panic"));
    }
}

/// Ends a process as Ctrl-C does, so that it removes its tracing.
fn stop(child: &mut Child) {
    let _ = rustix::process::kill_process(
        rustix::process::Pid::from_child(child),
        rustix::process::Signal::INT,
    );
    child.wait().expect("it ends");
}

#[test]
fn reclaimed_program_is_shown_its_interrupter() {
    let Some((_directory, program)) = compiled(CASES_SOURCE).filter(|_| can_trace()) else {
        return;
    };
    let mut reclaimer = Command::new(program);
    reclaimer.arg("reclaimed").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut reclaimer = reclaimer.spawn().expect("it runs");
    let mut pid = String::new();
    let output = reclaimer.stdout.take().expect("a pipe");
    BufReader::new(output).read_line(&mut pid).expect("a line");
    let json = explained(&["--pid", pid.trim(), "--duration", "2s"], &[]).expect("a recording");
    drop(reclaimer.stdin.take());
    reclaimer.wait().expect("it ends");
    assert_eq!(json["total"]["requests"], 0, "{json}");
    let suffered = &json["suffered"][0];
    if suffered["requests"].as_u64().unwrap_or_default() < REQUESTS_MIN {
        eprintln!("skipped: the kernel reclaimed no page");
        return;
    }
    assert_eq!(suffered["sender"], "cases", "{json}");
    assert_eq!(suffered["cause"], "process_madvise", "{json}");
}

/// Settings of the kernel, which get their old values back when this is dropped.
struct Settings(Vec<(PathBuf, String)>);

impl Settings {
    /// Returns `None` if the kernel lacks a setting, or forbids the change.
    fn change(directory: &str, values: &[(&str, &str)]) -> Option<Self> {
        let mut changed = Self(Vec::new());
        for (name, value) in values {
            let path = Path::new(directory).join(name);
            let old = fs::read_to_string(&path).ok()?;
            fs::write(&path, value).ok()?;
            changed.0.push((path, old));
        }
        Some(changed)
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        for (path, old) in self.0.iter().rev() {
            fs::write(path, old).expect("the old value");
        }
    }
}

#[test]
fn flushes_of_kernel_thread_have_its_name_and_cause() {
    let Some((_directory, program)) = compiled(CASES_SOURCE).filter(|_| can_trace()) else {
        return;
    };
    let program = program.to_str().expect("a path");
    let fast = [("sleep_millisecs", "1"), ("pages_to_scan", "1000"), ("run", "1")];
    let Some(_settings) = Settings::change("/sys/kernel/mm/ksm", &fast) else {
        eprintln!("skipped: the kernel merges no equal pages");
        return;
    };
    let predict = ["--predict", "count"];
    let json = explained(&predict, &[program, "write_equal_pages"]).expect("a recording");
    let suffered = json["suffered"].as_array().expect("a list");
    let of_kernel: Vec<_> = suffered.iter().filter(|row| row["is_kernel"] == true).collect();
    if of_kernel.iter().map(|row| number(&row["requests"])).sum::<u64>() < REQUESTS_MIN {
        eprintln!("skipped: the kernel merged no page while the other thread ran");
        return;
    }
    let is_named = |row: &Value| row["sender"] == "ksmd" && row["cause"] == "same-page merging";
    assert!(of_kernel.iter().any(|row| is_named(row)), "{json}");
    assert!(of_kernel.iter().all(|row| row["cause"] != "unknown"), "{json}");
}

#[test]
fn recorder_in_a_pid_namespace_is_refused() {
    for (arguments, status) in [
        (&["record", "--", "true"][..], 125),
        (&["explain", "--", "true"], 125),
        (&["explain", "--all"], 125),
        (&["top", "--batch"], 3),
        (&["export", "--listen", "127.0.0.1:0"], 3),
    ] {
        let mut command = Command::new("unshare");
        command.args([
            "--pid",
            "--mount",
            "--fork",
            "--mount-proc",
            env!("CARGO_BIN_EXE_shootdown"),
        ]);
        let output = command.args(arguments).output();
        match output {
            Ok(output) if !text(&output.stderr).contains("unshare") => {
                assert_error(&output, status, &["process numbers of its own", "hostPID"]);
            }
            _ => eprintln!("skipped: no namespaces"),
        }
    }
}
