//! `shootdown sanitize` with scripts in place of QEMU, which write what the plugin would. Real runs
//! are a part of `cargo xtask boots`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};

use crate::common::{BAD_INPUT, CANNOT_RUN, FOUND, assert_error, command, text};

const TOTALS: &str = concat!(
    r#""cpus":4,"fills":90,"held":9,"invalidations":3,"root_loads":2,"table_stores":5,"#,
    r#""settled":0,"dropped_in_time":1,"not_in_tables":0,"reports":0,"#,
);

/// A fault: CPU 1 has missed an invalidation.
const FAULT: &str = concat!(
    r#"{"event":"fault","mode":"reuse","cpu":1,"in_user_mode":true,"is_used":false,"#,
    r#""at":{"time":9,"pc":4096},"page":8192,"bytes":4096,"tag":3,"frame":65536,"#,
    r#""is_writable":true,"filled":{"time":2,"pc":4096},"#,
    r#""change":{"at":{"time":4,"pc":36},"cpu":0},"#,
    r#""act":{"deed":{"reused":0},"at":{"time":7,"pc":32},"cpu":0},"#,
    r#""change_callers":[68],"act_callers":[34,70],"#,
    r#""later":[{"at":{"time":5,"pc":33},"by":1,"left":"other-tag"}],"mark":0}"#,
);

/// The last line, with these numbers.
fn ended(in_user_mode: u32, reused: u32, faults: u32) -> String {
    let start = format!(r#"{{"event":"ended","cpus_in_user_mode":{in_user_mode},{TOTALS}"#);
    format!(r#"{start}"reused":{reused},"faults":{faults}}}"#)
}

/// Instead of a line: QEMU prints its arguments.
const SHOW: &str = "show";

/// Runs the command with a script as QEMU: it writes lines to the plugin's file.
fn sanitize(lines: &[&str], arguments: &[&str]) -> Output {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    let line = |line: &&str| match *line {
        SHOW => "echo \"$@\"\n".to_owned(),
        line => format!("echo '{line}' >> $out\n"),
    };
    let lines: String = lines.iter().map(line).collect();
    let script = format!(
        "#!/bin/sh\nfor word; do case $word in *,out=*) out=${{word#*,out=}}; out=${{out%%,*}} ;; \
         esac; done\n{lines}"
    );
    fs::write(at("qemu-system-riscv64"), script).expect("a program");
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(at("qemu-system-riscv64"), mode).expect("it can be run");
    fs::write(at("plugin.so"), "").expect("a file");
    let map = "0000000000000020 T frame_free\n0000000000000040 t other\n";
    fs::write(at("System.map"), map).expect("a file");
    command()
        .args(["sanitize", "--plugin", "plugin.so"])
        .args(arguments)
        .current_dir(directory.path())
        .env("PATH", format!("{}:/usr/bin:/bin", directory.path().display()))
        .output()
        .expect("it runs")
}

const HOOKED: [&str; 6] =
    ["--symbols", "System.map", "--reuse", "frame_free:1:physical", "--arch", "riscv64"];

#[test]
fn fault_is_explained_and_found() {
    let output = sanitize(&[FAULT, &ended(2, 7, 1)], &HOOKED);
    assert_eq!(output.status.code(), Some(FOUND), "{}", text(&output.stderr));
    let errors = text(&output.stderr);
    assert!(
        errors.contains("fault 1 (reuse): CPU 1 can use an old entry in user mode"),
        "{errors}"
    );
    assert!(errors.contains("changed   at time 4, by CPU 0 at frame_free+0x4"), "{errors}");
    assert!(errors.contains("by CPU 0 at frame_free+0x4\n            from other\n"), "{errors}");
    assert!(errors.contains("new owner at time 7, by CPU 0 in frame_free\n"), "{errors}");
    assert!(errors.contains("from frame_free, other\n"), "{errors}");
    assert!(errors.contains("frame_free+0x1: another tag"), "{errors}");
    assert!(text(&output.stdout).contains("1 distinct faults"));
}

#[test]
fn run_without_fault_is_ok() {
    let output = sanitize(&[SHOW, &ended(2, 7, 0)], &HOOKED);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    assert!(printed.contains("nothing was found"), "{printed}");
    assert!(printed.contains("reuse=0x20:0:physical,limit=20"), "{printed}");
}

#[test]
fn run_that_shows_nothing_is_refused() {
    for (lines, cause) in [
        (ended(1, 7, 0), "1 of 4 CPUs ran user code"),
        (ended(2, 0, 0), "frame_free was not called"),
    ] {
        assert_error(&sanitize(&[&lines], &HOOKED), BAD_INPUT, &["the run shows nothing", cause]);
    }
    let without = sanitize(&[], &HOOKED);
    assert_error(&without, CANNOT_RUN, &["has not loaded the plugin", "--enable-plugins"]);
    let refused = sanitize(&[r#"{"event":"refused","cause":"no registers"}"#], &HOOKED);
    assert_error(&refused, CANNOT_RUN, &["no registers", "QEMU 10.0"]);
}

#[test]
fn run_without_hooks_infers_new_owners() {
    let (inferred, bare) = (FAULT.replace(r#"{"reused":0}"#, r#""overwritten""#), &HOOKED[4..]);
    let output = sanitize(&[SHOW, &inferred, &ended(2, 7, 1)], bare);
    assert!(text(&output.stdout).contains(",limit=20\n"), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("by CPU 0 which has overwritten it"));
    assert_error(&sanitize(&[&ended(2, 0, 0)], bare), BAD_INPUT, &["no frame", "--reuse"]);
}

#[test]
fn missing_hooks_and_symbols_are_explained() {
    let with = |arguments: &[&str]| sanitize(&[], arguments);
    assert_error(&with(&HOOKED[..2]), BAD_INPUT, &["neither a program of QEMU", "--arch"]);
    let unknown = [&HOOKED[..3], &["gone:1"], &HOOKED[4..]].concat();
    assert_error(&with(&unknown), BAD_INPUT, &["there is no symbol `gone`", "nm"]);
    let preset = [&HOOKED[..2], &["--preset", "xv6"], &HOOKED[4..]].concat();
    assert_error(
        &with(&preset),
        BAD_INPUT,
        &["none of the functions of the preset xv6", "--reuse"],
    );
    let no_file = [&["--symbols", "gone"], &HOOKED[2..]].concat();
    assert_error(&with(&no_file), BAD_INPUT, &["gone: No such file", "System.map"]);
}

#[test]
fn printed_program_runs_and_finds_nothing_here() {
    let printed = command().args(["sanitize", "--print-program"]).output().expect("it runs");
    assert!(printed.status.success());
    let directory = tempfile::tempdir().expect("a directory");
    let [source, program] = ["expose.c", "expose"].map(|name| directory.path().join(name));
    fs::write(&source, printed.stdout).expect("a file");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]).arg(&source);
    match compiler.arg("-o").arg(&program).status() {
        Ok(status) => assert!(status.success()),
        Err(error) => return eprintln!("skipped: no C compiler: {error}"),
    }
    let run =
        |arguments: &[&str]| Command::new(&program).args(arguments).output().expect("it runs");
    let output = run(&["1", "2"]);
    assert!(output.status.success(), "{}", text(&output.stdout));
    assert!(text(&output.stdout).ends_with(" 0 uses of an old page\n"));
    assert_eq!(run(&["1", "1"]).status.code(), Some(2));
    assert_eq!(run(&["1", "513"]).status.code(), Some(2));
}
