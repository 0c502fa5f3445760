//! `shootdown record` on the kernel that runs these tests. Most tests need root and tracefs, and
//! are skipped otherwise.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufReader, Read as _, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{self, INSTANCES, assert_error, can_trace, command, files, has_tracefs, text};
use rustix::process::{Pid, Signal, geteuid, kill_process, kill_process_group};
use shootdown_recording::record::{Event, Record};
use shootdown_recording::{Ended, Reader, Totals};
use tempfile::TempDir;

/// The exit status if the recorder itself fails.
const FAILED: i32 = 125;
/// The longest time that a step takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// Returns a directory for the recording `r`, and the command that records `program` in it.
fn recorder(options: &[&str], program: &[&str]) -> (TempDir, Command) {
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = command();
    command.args(["record", "--output", "r"]).args(options).arg("--").args(program);
    command.current_dir(directory.path()).stdin(Stdio::null());
    (directory, command)
}

fn read(directory: &TempDir) -> (Vec<Record>, Totals) {
    let file = File::open(directory.path().join("r")).expect("a recording");
    let mut reader = Reader::open(BufReader::new(file)).expect("a header");
    let mut records = Vec::new();
    while let Some(record) = reader.next_record().expect("a record") {
        records.push(record);
    }
    let totals = *reader.totals().expect("an end");
    (records, totals)
}

/// Asserts that the recorder exited with `status` and an error, and left no file.
fn assert_fails(output: &Output, status: i32, directory: &TempDir, words: &[&str]) {
    assert_error(output, status, words);
    assert_eq!(files(directory), [""; 0]);
}

fn instances(recorder: u32) -> Vec<String> {
    let prefix = format!("shootdown-{recorder}-");
    let all = fs::read_dir(INSTANCES).expect("instances");
    let names = all.map(|instance| instance.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(&prefix)).collect()
}

/// Waits until `is_true` returns `true`. Panics with `what` after [`PATIENCE`].
fn wait_for(what: &str, mut is_true: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Starts a recorder in its own process group, and waits until its program prints `ready`.
fn begun(options: &[&str], script: &str) -> (TempDir, Child) {
    let (directory, mut command) = recorder(options, &["sh", "-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.process_group(0).spawn().expect("the command runs");
    assert_eq!(line(&mut child), "ready\n");
    (directory, child)
}

/// Reads the next line of the standard output.
fn line(child: &mut Child) -> String {
    let output = child.stdout.as_mut().expect("a pipe");
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        // The bytes are read one by one, because a buffer would read beyond the line.
        let mut byte = [0];
        output.read_exact(&mut byte).expect("a byte");
        line.extend(byte);
    }
    text(&line)
}

/// Waits for the end of the recorder. Returns its standard error and its exit status.
fn end(mut child: Child) -> (String, Option<i32>) {
    let mut errors = child.stderr.take().expect("a pipe");
    wait_for("the recorder ends", || child.try_wait().expect("a status").is_some());
    // The pipe is not read to its end, because a program that still runs has it open.
    let mut error = [0; 4096];
    let count = errors.read(&mut error).expect("text");
    (text(&error[..count]), child.wait().expect("a status").code())
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

#[test]
fn program_runs_and_is_recorded() {
    if !can_trace() {
        return;
    }
    let script = "read line; echo got $line; sleep 0.01 & wait; exit 3";
    let (directory, mut command) = recorder(&[], &["sh", "-c", script]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command runs");
    child.stdin.take().unwrap().write_all(b"this\n").expect("a pipe");
    let (id, output) = (child.id(), child.wait_with_output().expect("it ends"));
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert_eq!(text(&output.stdout), "got this\n");
    assert!(error.contains("sh ended with status 3\n"), "{error}");
    assert!(error.contains(" (lost 0) of sh in "), "{error}");
    assert!(error.ends_with("\ntry:   shootdown replay r\n"), "{error}");
    assert_eq!(files(&directory), ["r"]);
    assert_eq!(instances(id), [""; 0]);

    let (records, totals) = read(&directory);
    assert_eq!((totals.ended, totals.lost), (Ended::Exited(3), 0));
    let count = |is: fn(&Event) -> bool| records.iter().filter(|r| is(&r.event)).count();
    assert_eq!(count(|event| matches!(event, Event::Exec { name, .. } if name == "sh")), 1);
    assert_eq!(count(|event| matches!(event, Event::Exec { name, .. } if name == "sleep")), 1);
    assert_eq!(count(|event| matches!(event, Event::Spawn { .. })), 1);
    assert_eq!(count(|event| matches!(event, Event::Exit)), 2);
    let calls = count(|event| matches!(event, Event::Call(_)));
    assert_eq!(count(|event| matches!(event, Event::Return { .. })), calls);
    assert!(calls > 10 && count(|event| matches!(event, Event::Fault { .. })) > 50);
}

#[test]
fn program_needs_no_separator() {
    if !can_trace() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = command();
    command.args(["record", "--output", "r", "sh", "-c", "exit 5"]).current_dir(directory.path());
    assert_eq!(command.output().expect("the command runs").status.code(), Some(5));
    assert_eq!(read(&directory).1.ended, Ended::Exited(5));
}

#[test]
fn quiet_recorder_prints_nothing() {
    if !can_trace() {
        return;
    }
    let (directory, mut command) = recorder(&["--quiet"], &["true"]);
    let output = command.output().expect("the command runs");
    assert_eq!((text(&output.stderr), output.status.code()), (String::new(), Some(0)));
    assert_eq!(files(&directory), ["r"]);
    // The status of the program is passed on without a message.
    for (script, status) in [("exit 7", 7), ("kill -9 $$", 128 + 9)] {
        let (_directory, mut command) = recorder(&["--quiet"], &["sh", "-c", script]);
        let output = command.output().expect("the command runs");
        assert_eq!((text(&output.stderr), output.status.code()), (String::new(), Some(status)));
    }
}

#[test]
fn bad_usage_exits_125() {
    for arguments in [
        &["record"][..],
        &["record", "--fly", "--", "true"],
        &["record", "--pid", "0"],
        &["record", "--pid", "1", "--", "true"],
        &["record", "--pid", "1", "--all"],
        &["record", "--user", "nobody", "--pid", "1"],
        &["record", "--duration", "10", "--", "true"],
    ] {
        let output = command().args(arguments).output().expect("the command runs");
        assert_eq!(output.status.code(), Some(FAILED), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
        assert!(!text(&output.stderr).contains("-- --"), "{}", text(&output.stderr));
    }
    let help = command().args(["record", "--help"]).output().expect("the command runs");
    assert!(help.status.success());
}

#[test]
fn program_that_cannot_start_exits_126_or_127() {
    if !can_trace() {
        return;
    }
    let fails = |program: &str, status, words: &[&str]| {
        let (directory, mut command) = recorder(&[], &[program]);
        assert_fails(&command.output().expect("the command runs"), status, &directory, words);
    };
    let words = ["`no-such\\u{1b}program`", "No such file", "in PATH"];
    fails("no-such\x1bprogram", 127, &words);
    fails("/", 126, &["`/` could not be started", "runs without `shootdown record`"]);
}

#[test]
fn output_that_cannot_be_written_exits_125() {
    if !can_trace() {
        return;
    }
    let (directory, _) = recorder(&[], &["true"]);
    let at = |path: &str| {
        let mut command = command();
        command.args(["record", "--output", path, "--", "true"]).current_dir(directory.path());
        command.output().expect("the command runs")
    };
    assert_fails(&at("no/such"), FAILED, &directory, &["no/such: ", "with --output"]);
    assert_fails(&at("/"), FAILED, &directory, &["/: ", "with --output"]);
    assert_fails(&at("-"), FAILED, &directory, &["-: ", "not standard output", "with --output"]);
}

#[test]
fn existing_file_is_replaced_only_with_force() {
    if !can_trace() {
        return;
    }
    let (directory, mut command) = recorder(&[], &["true"]);
    let path = directory.path().join("r");
    fs::write(&path, "precious").expect("a file");
    let output = command.output().expect("the command runs");
    let error = text(&output.stderr);
    let remedy = "choose another file with --output, or add --force";
    assert_eq!(error, format!("error: r exists\ntry:   {remedy}\n"));
    assert_eq!(fs::read(&path).expect("a file"), b"precious");
    assert_eq!(output.status.code(), Some(FAILED));

    let (_, mut command) = recorder(&["--force"], &["true"]);
    let output = command.current_dir(directory.path()).output().expect("the command runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(read(&directory).1.ended, Ended::Exited(0));
    assert_eq!(files(&directory), ["r"]);
}

#[test]
fn killed_program_is_recorded_until_its_end() {
    if !can_trace() {
        return;
    }
    let (directory, mut command) = recorder(&[], &["sh", "-c", "kill -9 $$"]);
    let output = command.output().expect("the command runs");
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(128 + 9), "{error}");
    assert!(error.starts_with("note: sh was killed by signal 9\n"), "{error}");
    assert!(error.contains("\ntry:   shootdown replay "), "{error}");
    assert_eq!(read(&directory).1.ended, Ended::Signalled(9));
}

#[test]
fn ctrl_c_ends_program_and_recording() {
    if !can_trace() {
        return;
    }
    let (directory, child) = begun(&[], "echo ready; exec sleep 100");
    let id = child.id();
    assert_eq!(instances(id).len(), 2);
    kill_process_group(pid(&child), Signal::INT).expect("a signal");
    let (error, status) = end(child);
    assert_eq!(status, Some(128 + 2), "{error}");
    assert_eq!(read(&directory).1.ended, Ended::Signalled(2));
    assert_eq!(instances(id), [""; 0]);
}

#[test]
fn second_ctrl_c_ends_recording_but_not_program() {
    if !can_trace() {
        return;
    }
    let (directory, child) = begun(&[], "trap '' INT; echo ready; exec sleep 100");
    let id = child.id();
    kill_process_group(pid(&child), Signal::INT).expect("a signal");
    common::wait_until_handled(id, Signal::INT);
    thread::sleep(Duration::from_millis(300));
    assert_eq!(instances(id).len(), 2, "one Ctrl-C does not end the recording");
    kill_process_group(pid(&child), Signal::INT).expect("a signal");
    assert_interrupted(&directory, child);
}

#[test]
fn sigterm_ends_recording_but_not_program() {
    if !can_trace() {
        return;
    }
    let (directory, child) = begun(&[], "echo ready; exec sleep 100");
    kill_process(pid(&child), Signal::TERM).expect("a signal");
    assert_interrupted(&directory, child);
}

fn assert_interrupted(directory: &TempDir, child: Child) {
    let id = child.id();
    let (error, status) = end(child);
    assert_eq!(status, Some(130), "{error}");
    assert_eq!(read(directory).1.ended, Ended::Interrupted);
    assert_eq!(instances(id), [""; 0]);
    let program = error.split("still runs, as process ").nth(1).expect(&error);
    let program: i32 = program.lines().next().unwrap_or_default().parse().expect(&error);
    let program = Pid::from_raw(program).expect("a number");
    kill_process(program, Signal::KILL).expect("a running program");
}

#[test]
fn ctrl_c_never_leaves_partial_file() {
    if !can_trace() {
        return;
    }
    for delay_ms in (0..120).step_by(6) {
        let (directory, mut command) = recorder(&[], &["sleep", "0.05"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0).spawn();
        let mut child = child.expect("the command runs");
        thread::sleep(Duration::from_millis(delay_ms));
        kill_process_group(pid(&child), Signal::INT).expect("a signal");
        let status = child.wait().expect("it ends");
        match (status.code(), status.signal()) {
            (Some(0), None) => assert_eq!(read(&directory).1.lost, 0),
            // The signal ended the program, or came before the program started.
            (Some(130), None) if !files(&directory).is_empty() => {
                assert_eq!(read(&directory).1.lost, 0);
            }
            // The signal came before the handlers were installed.
            (Some(130), None) | (None, Some(2)) => assert_eq!(files(&directory), [""; 0]),
            other => panic!("{other:?} after {delay_ms} ms"),
        }
        wait_for("all instances are removed", || instances(child.id()).is_empty());
    }
}

#[test]
fn killed_recorder_leaves_no_instance_or_file() {
    if !can_trace() {
        return;
    }
    let (directory, mut child) = begun(&[], "echo ready; exec sleep 3");
    assert_eq!(instances(child.id()).len(), 2);
    kill_process(pid(&child), Signal::KILL).expect("a signal");
    child.wait().expect("it ends");
    wait_for("all instances are removed", || instances(child.id()).is_empty());
    // The written part is left.
    assert_eq!(files(&directory), ["r.part"]);
    let (_, mut command) = recorder(&[], &["true"]);
    let output = command.current_dir(directory.path()).output().expect("the command runs");
    assert_error(&output, FAILED, &["r.part exists", "replay r.part, or remove it"]);
    let (_, mut command) = recorder(&["--force"], &["true"]);
    let output = command.current_dir(directory.path()).output().expect("the command runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(files(&directory), ["r"]);
}

#[test]
fn only_instances_of_dead_recorders_are_removed() {
    if !can_trace() {
        return;
    }
    let mut dead = Command::new("true").spawn().expect("a process");
    dead.wait().expect("it ends");
    let path = |pid: u32| Path::new(INSTANCES).join(format!("shootdown-{pid}-tasks"));
    let (stale, alive) = (path(dead.id()), path(std::process::id()));
    fs::create_dir(&stale).expect("an instance");
    fs::create_dir(&alive).expect("an instance");
    let (_directory, mut command) = recorder(&[], &["true"]);
    let output = command.output().expect("the command runs");
    let (stale, alive) = (stale.exists(), fs::remove_dir(&alive).is_ok());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!((stale, alive), (false, true));
}

#[test]
fn lost_events_are_reported_and_recorded() {
    if !can_trace() {
        return;
    }
    // The recorder must be stopped to lose events, because it is fast enough otherwise.
    let work = "i=0; while [ $i -lt 50 ]; do /bin/true; i=$((i+1)); done";
    let script = format!("echo ready; read go; {work}; echo done");
    let (directory, mut child) = begun(&["--buffer-kib", "4"], &script);
    kill_process(pid(&child), Signal::STOP).expect("a signal");
    let status = || fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it runs");
    wait_for("the recorder has stopped", || status().contains("State:\tT"));
    child.stdin.as_mut().expect("a pipe").write_all(b"go\n").expect("a reader");
    assert_eq!(line(&mut child), "done\n");
    kill_process(pid(&child), Signal::CONT).expect("a signal");
    let (error, status) = end(child);
    assert_eq!(status, Some(FAILED), "{error}");
    assert!(error.contains(" events were lost: r was kept, but lacks them\n"), "{error}");
    assert!(error.contains("--buffer-kib 16\n"), "{error}");
    let (records, totals) = read(&directory);
    assert!(totals.lost > 0);
    assert!(records.iter().any(|record| matches!(record.event, Event::Lost { .. })));
}

#[test]
fn full_disk_leaves_intact_recording() {
    if !can_trace() {
        return;
    }
    let (directory, mut command) = recorder(&["--force"], &["sh", "-c", MANY_PROGRAMS]);
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=160k", "tmpfs"])
        .arg(directory.path())
        .output();
    if !mount.is_ok_and(|mount| mount.status.success()) {
        eprintln!("skipped: no small disk can be mounted");
        return;
    }
    let output = command.current_dir(directory.path()).output();
    let (left, found) = (files(&directory), std::panic::catch_unwind(|| read(&directory)));
    let unmounted = Command::new("umount").arg(directory.path()).status().expect("umount");
    assert!(unmounted.success());
    assert_eq!(left, ["r"]);
    let words = ["r: No space left on device", "it has the first", "with more free space"];
    assert_error_after_notes(&output.expect("the command runs"), &words);
    let (records, totals) = found.expect("an intact recording");
    assert_eq!(totals.ended, Ended::Interrupted);
    assert!(records.len() > 5000, "{}", records.len());
}

/// Runs 1500 programs, whose recording has more than a megabyte.
const MANY_PROGRAMS: &str = "i=0; while [ $i -lt 1500 ]; do /bin/true; i=$((i+1)); done";

/// Asserts that the recorder failed with these words in its last two lines.
fn assert_error_after_notes(output: &Output, words: &[&str]) {
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(FAILED), "{error}");
    let at = error.find("error: ").expect(&error);
    assert!(words.iter().all(|word| error[at..].contains(word)), "{error}");
    assert_eq!(error[at..].lines().count(), 2, "{error}");
}

#[test]
fn limit_ends_recording_but_not_program() {
    if !can_trace() {
        return;
    }
    let script = format!("{MANY_PROGRAMS}; echo done");
    let (directory, mut command) = recorder(&["--limit-mib", "1"], &["sh", "-c", &script]);
    let output = command.output().expect("the command runs");
    assert_error_after_notes(&output, &["r has reached 1 MiB", "--limit-mib 4"]);
    assert_eq!(read(&directory).1.ended, Ended::Interrupted);
    let size = fs::metadata(directory.path().join("r")).expect("a file").len();
    assert!((800 << 10..=1 << 20).contains(&size), "{size}");
    assert_eq!(text(&output.stdout), "done\n");
}

#[test]
fn latest_part_is_kept_at_the_limit() {
    if !can_trace() {
        return;
    }
    let script = MANY_PROGRAMS.replace("1500", "800");
    let options = ["--limit-mib", "1", "--keep-latest"];
    let (directory, mut command) = recorder(&options, &["sh", "-c", &script]);
    let output = command.output().expect("the command runs");
    assert!(output.status.success() && text(&output.stderr).contains("before it r.older"));
    assert_eq!(read(&directory).1.ended, Ended::Exited(0));
    fs::rename(directory.path().join("r.older"), directory.path().join("r")).expect("a file");
    assert_eq!(read(&directory).1.ended, Ended::Interrupted);
}

/// Starts a program that maps and touches memory, forever.
fn busy() -> Child {
    let script = "while :; do /bin/true; done";
    Command::new("sh").args(["-c", script]).spawn().expect("a process")
}

/// Records without a command.
fn record_running(options: &[&str]) -> (TempDir, Output) {
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = command();
    command.args(["record", "--output", "r"]).args(options).current_dir(directory.path());
    let output = command.output().expect("the command runs");
    (directory, output)
}

#[test]
fn running_process_is_recorded_for_a_time() {
    if !can_trace() {
        return;
    }
    let mut program = busy();
    let pid = program.id().to_string();
    let start = Instant::now();
    let (directory, output) = record_running(&["--pid", &pid, "--duration", "500ms"]);
    assert!(start.elapsed() >= Duration::from_millis(500));
    assert!(program.try_wait().expect("a status").is_none(), "the program still runs");
    program.kill().expect("a signal");
    program.wait().expect("an end");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let (records, totals) = read(&directory);
    assert_eq!(totals.ended, Ended::Interrupted);
    let count = |is: fn(&Event) -> bool| records.iter().filter(|r| is(&r.event)).count();
    let spawned = count(|event| matches!(event, Event::Spawn { .. }));
    assert!(spawned > 1, "{spawned}");
    assert!(count(|event| matches!(event, Event::Fault { .. })) > 20 * spawned);
}

#[test]
fn process_or_group_that_is_absent_is_an_error() {
    if !can_trace() {
        return;
    }
    let mut gone = Command::new("true").spawn().expect("a process");
    gone.wait().expect("an end");
    let pid = gone.id().to_string();
    let (directory, output) = record_running(&["--pid", &pid]);
    assert_fails(&output, FAILED, &directory, &["there is no process", "ps -e"]);
    let (directory, output) = record_running(&["--cgroup", "no/such"]);
    assert_fails(&output, FAILED, &directory, &["/sys/fs/cgroup/no/such: ", "systemd-cgls"]);
    let (directory, mut command) = recorder(&["--user", "no such"], &["true"]);
    let output = command.output().expect("the command runs");
    assert_fails(&output, FAILED, &directory, &["there is no user `no such`", "--user"]);
}

#[test]
fn detached_descendants_are_recorded_until_they_end() {
    if !can_trace() {
        return;
    }
    let script = "setsid sh -c 'sleep 0.3; exec /bin/echo late' & exit 4";
    let (directory, mut command) = recorder(&["--until-all-end"], &["sh", "-c", script]);
    let output = command.output().expect("the command runs");
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
    let (records, totals) = read(&directory);
    assert_eq!(totals.ended, Ended::Exited(4));
    let is_late = |event: &Event| matches!(event, Event::Exec { name, .. } if name == "echo");
    assert!(records.iter().any(|record| is_late(&record.event)));
}

#[test]
fn command_runs_as_the_user_that_called_sudo() {
    if !can_trace() {
        return;
    }
    let identity = |options: &[&str], by_sudo: bool| {
        let (_directory, mut command) = recorder(options, &["sh", "-c", "id -u; echo $USER"]);
        command.envs(
            by_sudo.then_some([("SUDO_UID", "65534"), ("SUDO_GID", "65534")]).into_iter().flatten(),
        );
        let output = command.output().expect("the command runs");
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert_eq!(identity(&[], true), "65534\nnobody\n");
    assert!(identity(&["--user", "root"], true).starts_with("0\n"));
    assert_eq!(identity(&["--user", "nobody"], false), "65534\nnobody\n");
}

#[test]
fn missing_tracefs_is_mounted_for_the_recorder_alone() {
    if !can_trace() {
        return;
    }
    let (directory, command) = recorder(&[], &["true"]);
    // The recorder runs in its own mount namespace.
    let script =
        "umount -a -t tracefs,debugfs && \"$0\" \"$@\" && ! ls /sys/kernel/tracing/instances";
    let mut alone = Command::new("unshare");
    alone.args(["--mount", "sh", "-c", script]).arg(command.get_program());
    let alone = alone.args(command.get_args()).current_dir(directory.path()).output();
    let Ok(output) = alone else {
        eprintln!("skipped: no mount namespace can be made");
        return;
    };
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(files(&directory), ["r"]);
}

#[test]
fn recorder_without_root_is_refused() {
    let (directory, command) = recorder(&[], &["true"]);
    let as_nobody = |program: &OsStr| {
        let mut nobody = Command::new("setpriv");
        nobody.args(["--reuid=65534", "--clear-groups"]).arg(program);
        nobody
    };
    if geteuid().is_root() {
        let runs = as_nobody(env!("CARGO_BIN_EXE_shootdown").as_ref()).output();
        if !runs.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: other users cannot run the command");
            return;
        }
    }
    let mut command = if geteuid().is_root() {
        let mut nobody = as_nobody(command.get_program());
        nobody.args(command.get_args());
        nobody
    } else {
        command
    };
    let output = command.output().expect("the command runs");
    // Where tracefs is mounted neither here nor below debugfs, that is the first obstacle.
    let expected = if !has_tracefs() && text(&output.stderr).contains("there is no tracefs") {
        ["there is no tracefs at /sys/kernel/tracing", "mount -t tracefs"]
    } else {
        ["only root may trace the kernel", "as root"]
    };
    assert_fails(&output, FAILED, &directory, &expected);
}
