//! The output and the exit statuses of the command.

use std::ffi::OsStr;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Output, Stdio};

use crate::common::{BAD_INPUT, CANNOT_RUN, FOUND, assert_error, command, files, text};

fn run(arguments: &[&str]) -> Output {
    command().args(arguments).output().expect("the command runs")
}

/// Asserts that the command refuses its input and leaves no file in its directory.
fn assert_refuses(arguments: &[&str], words: &[&str]) {
    let directory = tempfile::tempdir().expect("a directory");
    let output = command().args(arguments).current_dir(directory.path()).output();
    assert_error(&output.expect("the command runs"), BAD_INPUT, words);
    assert_eq!(files(&directory), [""; 0], "{arguments:?}");
}

#[test]
fn command_without_arguments_lists_commands() {
    let output = run(&[]);
    assert!(output.status.success());
    insta::assert_snapshot!(text(&output.stdout));
}

#[test]
fn list_of_machines_is_as_reviewed() {
    insta::assert_snapshot!("machines", text(&run(&["machines"]).stdout));
    let details = text(&run(&["machines", "haswell-desktop"]).stdout);
    let number = details.lines().find(|line| line.starts_with("tlb.invalidate_page"));
    let words: Vec<_> = number.expect("a line for it").split_whitespace().collect();
    assert_eq!(words[..3], ["tlb.invalidate_page", "76", "ns"]);
    assert!(details.contains("* fitted to a published measurement:\n"), "{details}");
}

#[test]
fn machine_is_read_from_file() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/xeon-2s.toml");
    let own = run(&["machines", file.to_str().expect("a path in UTF-8")]);
    assert_eq!(own.stdout, run(&["machines", "xeon-2s"]).stdout);
}

#[test]
fn bad_input_exits_2_with_cause_and_remedy() {
    assert_refuses(&["machines", "pdp-11"], &["pdp-11", "xeon-2s"]);
    assert_refuses(&["machines", "no/such.toml"], &["no/such.toml"]);
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    assert_refuses(&["machines", manifest], &["Cargo.toml: TOML parse error at line "]);
    assert_refuses(&["reproduce", "--machine", "pdp-11"], &["pdp-11"]);
    assert_refuses(&["reproduce", "--report", "no/such/report.html"], &["no/such/report.html"]);
    assert_refuses(&["reproduce", "--report", "/"], &["/", "with --report"]);
    // The largest size of a machine file is 1 MiB. A sparse file is long without using the disk.
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("long.toml");
    let file = std::fs::File::create(&path).expect("a file");
    file.set_len(300 << 20).expect("a sparse file");
    assert_refuses(&["machines", path.to_str().expect("UTF-8")], &["has more than 1024 KiB"]);
    let xeon = include_str!("../../../../machines/xeon-2s.toml");
    let nameless = xeon.replace("name = \"xeon-2s\"", "name = \"\"");
    std::fs::write(&path, nameless).expect("a file");
    assert_refuses(
        &["machines", path.to_str().expect("UTF-8")],
        &["the name of the machine is empty"],
    );
}

#[test]
fn path_of_machine_need_not_be_utf_8() {
    let directory = tempfile::tempdir().expect("a directory");
    let name = OsStr::from_bytes(b"\xff.toml");
    let xeon = include_bytes!("../../../../machines/xeon-2s.toml");
    std::fs::write(directory.path().join(name), xeon).expect("a file");
    let output = command().arg("machines").arg(name).current_dir(directory.path()).output();
    let output = output.expect("the command runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    for command_name in ["replay", "report", "reproduce"] {
        let mut command = command();
        command.arg(command_name).args((command_name != "reproduce").then_some("none.shootdown"));
        command.arg("--machine").arg(OsStr::from_bytes(b"\xfe.toml")).current_dir(directory.path());
        let error = text(&command.output().expect("the command runs").stderr);
        assert!(error.starts_with("error: \u{fffd}.toml: No such file"), "{error}");
    }
}

#[test]
fn help_explains_exit_statuses() {
    let help = text(&run(&["--help"]).stdout);
    let table = help.split("Exit status:\n").nth(1).expect("a table");
    for line in
        ["  0    nothing", "  1    something", "  2    bad", "  3    the command", "  130  "]
    {
        assert!(table.contains(line), "{line}: {help}");
    }
}

#[test]
fn help_that_cannot_be_printed_exits_3() {
    let full = || std::fs::File::create("/dev/full").expect("a device");
    for arguments in [&["--help"][..], &["help", "check"], &["--version"], &[], &["machines"]] {
        let status = command().args(arguments).stdout(full()).stderr(Stdio::null()).status();
        assert_eq!(status.expect("the command runs").code(), Some(CANNOT_RUN), "{arguments:?}");
    }
}

#[test]
fn known_bug_is_found_and_drawn() {
    let directory = tempfile::tempdir().expect("a directory");
    let bug = ["check", "--design", "left-out-in-the-middle-of-a-switch", "--svg", "bug.svg"];
    let output = command().args(bug).current_dir(directory.path()).output().expect("it runs");
    assert_eq!(output.status.code(), Some(FOUND));
    insta::assert_snapshot!("bug", text(&output.stdout));
    let error = text(&output.stderr);
    assert!(error.contains("try:   shootdown check --design left-out"), "{error}");
    let svg = std::fs::read_to_string(directory.path().join("bug.svg")).expect("a drawing");
    assert!(svg.starts_with("<svg ") && svg.contains("CPU 0 can use page 0"), "{svg}");
    let fixed = run(&["check", "--design", "left-out-in-the-middle-of-a-switch-fixed"]);
    assert!(fixed.status.success(), "{}", text(&fixed.stderr));
    assert!(text(&fixed.stdout).contains("no violation in any schedule"));
}

#[test]
fn all_known_bugs_are_found() {
    let output = run(&["check", "--design", "zoo"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(
        text(&output.stdout)
            .contains("76 of 76 bugs found, and no violation in their fixed variants")
    );
}

#[test]
fn violation_is_repeated_by_printed_command() {
    let broken = ["check", "--design", "without-catch-up-on-switch", "--budget", "60s"];
    let output = run(&broken);
    assert_eq!(output.status.code(), Some(FOUND));
    let error = text(&output.stderr);
    let again =
        error.split("try:   shootdown ").nth(1).and_then(|it| it.split(", to repeat this").next());
    let again = again.unwrap_or_else(|| panic!("{error}"));
    let (options, program) = again.split_once(" --program ").expect("there is a program");
    let mut arguments: Vec<_> = options.split(' ').collect();
    arguments.extend(["--program", program.trim_matches('\'')]);
    let found = run(&arguments);
    assert_eq!(found.status.code(), Some(FOUND), "{again}");
    let last = |output: &[u8]| text(output).lines().last().map(str::to_owned);
    assert_eq!(last(&found.stdout), last(&output.stdout), "{again}");
    // The engine with all rules.
    let intact = ["check", "--arch", "x86", "--program", "run 0, run 1, run 0 | unmap 0.0"];
    assert!(run(&intact).status.success());
}

#[test]
fn search_that_exceeds_budget_exits_3() {
    let cpu = "run 0, run 1, run 2, map 0.0, unmap 0.1, unmap 1.1, run 0, unmap 0.0";
    let program = [cpu; 8].join(" | ");
    let arguments = ["check", "--arch", "x86", "--budget", "1s", "--program", &program];
    let output = run(&arguments);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(CANNOT_RUN), "{error}");
    assert!(text(&output.stdout).contains("not all schedules were searched"));
    assert!(error.starts_with("error: the budget was too short: "), "{error}");
    assert!(error.ends_with("try:   search longer, with --budget 4s\n"), "{error}");
}

#[test]
fn check_refuses_bad_designs_programs_and_outputs() {
    assert_refuses(&["check", "--design", "nothing"], &["nothing", "--list"]);
    assert_refuses(&["check", "--program", "fly 0"], &["fly 0", "--program"]);
    assert_refuses(&["check", "--design", "zoo", "--program", "idle"], &["zoo", "its own program"]);
    for empty in ["", " ", "|||||", " , | "] {
        assert_refuses(&["check", "--program", empty], &["no operations", "use --program 'run 0"]);
    }
    assert_refuses(&["check", "--svg", "no/such.svg"], &["no/such.svg", "--svg"]);
}

#[test]
fn bad_usage_exits_2() {
    let unknown = text(&run(&["reproduce", "--only", "000"]).stderr);
    let studies = "x86-lazy-tlb, powerpc-shoot-lazies, arc-asid-range, arm64-skip-broadcast, \
                   x86-batched-unmap";
    assert!(unknown.contains(studies), "{unknown}");
    for arguments in [
        &["fly"][..],
        &["reproduce", "--only", "000"],
        &["reproduce", "--seed", "x"],
        &["machines", "a", "b"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(BAD_INPUT), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
}

#[test]
fn help_of_every_command_has_examples() {
    let commands = ["machines", "record", "import", "replay", "report", "reproduce"];
    let helps = commands.map(|command| vec!["help", command]);
    for arguments in helps.into_iter().chain([vec!["--help"]]) {
        let output = run(&arguments);
        assert!(output.status.success());
        assert!(text(&output.stdout).contains("Examples:\n  shootdown "), "{arguments:?}");
    }
}

#[test]
fn closed_standard_output_is_not_error() {
    let mut child = command()
        .args(["machines", "xeon-2s"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command runs");
    drop(child.stdout.take());
    let mut error = String::new();
    child.stderr.take().expect("its errors").read_to_string(&mut error).expect("text");
    assert_eq!(error, "");
    assert!(child.wait().expect("it ends").success());
}
