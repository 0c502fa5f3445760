//! The command as its users meet it: what it prints where, and with which exit code.

mod common;

use std::io::Read as _;
use std::path::Path;
use std::process::{Output, Stdio};

use common::{assert_error, command, files, text};

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
