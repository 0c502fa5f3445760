//! `shootdown explain` on the files of other tools.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use crate::common::{assert_error, command, text};
use crate::explain::recording;

const KERNEL_TEXT: &str = include_str!("../../../recording/tests/import/kernel.txt");
const PERF_TEXT: &str = include_str!("../../../recording/tests/import/perf.txt");

/// Returns the output of `explain` with these words, beside a `perf` that prints `perf.txt`.
fn explain_beside_perf(directory: &Path, words: &[&str]) -> Output {
    let tools = std::env::join_paths([directory, Path::new("/usr/bin"), Path::new("/bin")]);
    let mut command = command();
    command.arg("explain").args(words).current_dir(directory).env("PATH", tools.expect("paths"));
    command.output().expect("the command runs")
}

/// Compresses a file to `NAME.gz`.
fn compress(directory: &Path, name: &str) {
    let mut gzip = Command::new("gzip");
    let status = gzip.args(["--keep", name]).current_dir(directory).status();
    assert!(status.expect("gzip runs").success());
}

#[test]
fn files_of_other_tools_are_explained_as_their_text() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    fs::write(path("t"), KERNEL_TEXT).expect("a text");
    fs::write(path("perf.txt"), PERF_TEXT).expect("a text");
    fs::write(path("perf.data"), "PERFILE2").expect("a file");
    fs::write(path("r"), recording()).expect("a file");
    let script = "#!/bin/sh\ntest \"$1 $2\" = 'script --ns' || exit 1\n\
                  for last in \"$@\"; do :; done\ntest -s \"$last\" && cat perf.txt\n";
    fs::write(path("perf"), script).expect("a script");
    fs::set_permissions(path("perf"), fs::Permissions::from_mode(0o755)).expect("a program");
    for name in ["t", "perf.data", "r"] {
        compress(directory.path(), name);
    }
    let first_line = |words: &[&str]| {
        let output = explain_beside_perf(directory.path(), words);
        assert_eq!(output.status.code(), Some(0), "{words:?}: {}", text(&output.stderr));
        text(&output.stdout).lines().next().unwrap_or_default().to_owned()
    };
    let of_text = first_line(&["t"]);
    assert!(of_text.contains("% of the program's CPU time"), "{of_text}");
    assert_eq!(first_line(&["t.gz"]), of_text);
    assert_eq!(first_line(&["t", "--pid", "19820"]), of_text);
    let of_perf = first_line(&["perf.txt", "--pid", "19923"]);
    assert_eq!(first_line(&["perf.data", "--pid", "19923"]), of_perf);
    assert_eq!(first_line(&["perf.data.gz", "--pid", "19923"]), of_perf);
    assert_eq!(first_line(&["r.gz"]), first_line(&["r"]));
}

#[test]
fn unreadable_file_of_another_tool_names_the_tool() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    fs::write(path("r"), recording()).expect("a file");
    fs::write(path("t"), KERNEL_TEXT).expect("a text");
    fs::write(path("trace.dat"), b"\x17\x08\x44tracing6\0").expect("a file");
    fs::write(path("bad.gz"), b"\x1f\x8b bad").expect("a file");
    fs::write(path("utf16"), b"\xff\xfet\0").expect("a file");
    let ends_with = |status: i32, words: &[&str], message: &[&str]| {
        let mut command = command();
        command.arg("explain").args(words).current_dir(directory.path());
        command.env("PATH", "/usr/bin:/bin");
        assert_error(&command.output().expect("the command runs"), status, message);
    };
    let fails = |words: &[&str], message: &[&str]| ends_with(2, words, message);
    if !Path::new("/usr/bin/trace-cmd").exists() {
        ends_with(3, &["trace.dat"], &["trace.dat needs `trace-cmd`", "install trace-cmd"]);
    }
    fails(&["bad.gz"], &["bad.gz: `gzip` cannot read it: gzip: ", "the version of gzip"]);
    fails(&["utf16"], &["utf16: this is text in UTF-16", "iconv"]);
    fails(&["t", "--pid", "1"], &["t: process 1 does nothing in the text"]);
    fails(&["t", "--pid", "1,2"], &["--pid selects one process"]);
    fails(&["r", "--pid", "1"], &["--pid selects one process"]);
}

#[test]
fn cut_gzip_is_explained_but_within_no_budget() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("t"), KERNEL_TEXT).expect("a text");
    compress(directory.path(), "t");
    let bytes = fs::read(directory.path().join("t.gz")).expect("a file");
    fs::write(directory.path().join("cut.gz"), &bytes[..bytes.len() - 4]).expect("a file");
    let output = explain_beside_perf(directory.path(), &["cut.gz", "--budget", "requests<=9999"]);
    assert!(text(&output.stderr).contains("cut.gz is used as far as `gzip` can read it: "));
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let output = explain_beside_perf(directory.path(), &["t.gz", "--budget", "requests<=9999"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn text_of_several_processes_lists_them_by_flushes() {
    let directory = tempfile::tempdir().expect("a directory");
    let other = "           other-77 [000] ..... 1000000.5: tlb_flush: pages:1 reason:remote IPI \
                 send (4)\n";
    fs::write(directory.path().join("t"), format!("{KERNEL_TEXT}{other}")).expect("a text");
    let output = explain_beside_perf(directory.path(), &["t"]);
    let words = ["t: choose a program: flush requests are ", " (mapper), 1 of 77 (other)", "--pid"];
    assert_error(&output, 2, &words);
}

#[test]
fn text_without_events_is_named_without_a_program() {
    let directory = tempfile::tempdir().expect("a directory");
    for (text, words) in [
        ("hello\n", "no event"),
        ("{\"a\":1}", "JSON"),
        ("           CPU0       CPU1\n  0:  1  2\n", "/proc/interrupts"),
    ] {
        fs::write(directory.path().join("t"), text).expect("a file");
        let output = explain_beside_perf(directory.path(), &["t"]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(words) && !errors.contains("choose a program"), "{errors}");
    }
}
