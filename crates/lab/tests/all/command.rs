//! The command as its users meet it: what it prints where, and with which exit code.

use std::io::Read as _;
use std::path::Path;
use std::process::{Output, Stdio};

use crate::common::{assert_error, command, files, text};

fn run(arguments: &[&str]) -> Output {
    command().args(arguments).output().expect("the command runs")
}

/// It fails, and leaves nothing where it runs.
fn assert_fails(arguments: &[&str], words: &[&str]) {
    let directory = tempfile::tempdir().expect("a directory");
    let output = command().args(arguments).current_dir(directory.path()).output();
    assert_error(&output.expect("the command runs"), words);
    assert_eq!(files(&directory), [""; 0], "{arguments:?}");
}

#[test]
fn alone_it_says_what_it_can_do() {
    let output = run(&[]);
    assert!(output.status.success());
    insta::assert_snapshot!(text(&output.stdout));
}

#[test]
fn the_machines_are_as_reviewed() {
    insta::assert_snapshot!("machines", text(&run(&["machines"]).stdout));
    let details = text(&run(&["machines", "haswell-desktop"]).stdout);
    let number = details.lines().find(|line| line.starts_with("tlb.invalidate_page"));
    let words: Vec<_> = number.expect("a line for it").split_whitespace().collect();
    assert_eq!(words[..3], ["tlb.invalidate_page", "76", "ns"]);
    assert!(details.contains("* fitted to a published measurement:\n"), "{details}");
}

#[test]
fn a_machine_of_one_s_own_is_read_from_its_file() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/xeon-2s.toml");
    let own = run(&["machines", file.to_str().expect("a path in UTF-8")]);
    assert_eq!(own.stdout, run(&["machines", "xeon-2s"]).stdout);
}

#[test]
fn mistakes_are_answered_with_a_cause_and_a_remedy() {
    assert_fails(&["machines", "pdp-11"], &["pdp-11", "xeon-2s"]);
    assert_fails(&["machines", "no/such.toml"], &["no/such.toml"]);
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    assert_fails(&["machines", manifest], &["Cargo.toml: TOML parse error at line "]);
    assert_fails(&["reproduce", "--only", "999"], &["999", "--only 000"]);
    assert_fails(&["reproduce", "--machine", "pdp-11"], &["pdp-11"]);
    assert_fails(&["reproduce", "--report", "no/such/report.html"], &["no/such/report.html"]);
    assert_fails(&["reproduce", "--report", "/"], &["/"]);
}

#[test]
fn a_bug_is_found_told_and_drawn() {
    let directory = tempfile::tempdir().expect("a directory");
    let bug = ["check", "--design", "left-out-in-the-middle-of-a-switch", "--svg", "bug.svg"];
    let output = command().args(bug).current_dir(directory.path()).output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    insta::assert_snapshot!("bug", text(&output.stdout));
    let error = text(&output.stderr);
    assert!(error.contains("try:   shootdown check --design left-out"), "{error}");
    let svg = std::fs::read_to_string(directory.path().join("bug.svg")).expect("a drawing");
    assert!(svg.starts_with("<svg ") && svg.contains("CPU 0 can use page 0"), "{svg}");
    let twin = run(&["check", "--design", "left-out-in-the-middle-of-a-switch-fixed"]);
    assert!(twin.status.success(), "{}", text(&twin.stderr));
    assert!(text(&twin.stdout).contains("right in every schedule"));
}

#[test]
fn all_bugs_of_the_zoo_are_found() {
    let output = run(&["check", "--design", "zoo"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("36 of 36 found, and right when mended"));
}

#[test]
fn what_is_found_comes_with_the_command_that_finds_it_again() {
    let broken = ["check", "--design", "without-catch-up-on-switch", "--budget", "60s"];
    let output = run(&broken);
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    let again =
        error.split("try:   shootdown ").nth(1).and_then(|it| it.split(", for this").next());
    let again = again.unwrap_or_else(|| panic!("{error}"));
    let (options, program) = again.split_once(" --program ").expect("there is a program");
    let mut arguments: Vec<_> = options.split(' ').collect();
    arguments.extend(["--program", program.trim_matches('\'')]);
    let found = run(&arguments);
    assert_eq!(found.status.code(), Some(1), "{again}");
    let last = |output: &[u8]| text(output).lines().last().map(str::to_owned);
    assert_eq!(last(&found.stdout), last(&output.stdout), "{again}");
    // The engine as it is.
    let intact = ["check", "--arch", "x86", "--program", "run 0, run 1, run 0 | unmap 0.0"];
    assert!(run(&intact).status.success());
}

#[test]
fn what_cannot_be_checked_says_why() {
    assert_fails(&["check", "--design", "nothing"], &["nothing", "--list"]);
    assert_fails(&["check", "--program", "fly 0"], &["fly 0", "is not an operation"]);
    assert_fails(&["check", "--design", "zoo", "--program", "idle"], &["zoo", "of its own"]);
    assert_fails(&["check", "--svg", "no/such.svg"], &["no/such.svg", "--svg"]);
}

#[test]
fn wrong_usage_is_another_exit_code() {
    for arguments in [&["fly"][..], &["reproduce", "--seed", "x"], &["machines", "a", "b"]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
}

#[test]
fn help_has_examples() {
    let commands = ["machines", "record", "import", "replay", "report", "reproduce"];
    let helps = commands.map(|command| vec!["help", command]);
    for arguments in helps.into_iter().chain([vec!["--help"]]) {
        let output = run(&arguments);
        assert!(output.status.success());
        assert!(text(&output.stdout).contains("Examples:\n  shootdown "), "{arguments:?}");
    }
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
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
