//! `shootdown boot` with scripts that imitate the emulators: the output for each end of a run. Real
//! boots are a step of `cargo xtask test`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Output;

use crate::common::{BAD_INPUT, CANNOT_RUN, FOUND, assert_error, command, files, text};

/// Boots with a script as the emulator. The script runs if the version is not requested.
fn boot(emulator: &str, arguments: &[&str]) -> Output {
    let version = "echo 'QEMU emulator version 7.2.22 (Debian)'; exit 0";
    let text = format!("[ \"$1\" = --version ] && {{ {version}; }}\n{emulator}");
    let programs = ["qemu-system-x86_64", "qemu-system-loongarch64"].map(|name| (name, &*text));
    boot_with(&programs, arguments)
}

/// Boots with the script `bochs` as Bochs, and the script `disc` as the maker of the disc.
fn boot_on_bochs(disc: &str, bochs: &str, arguments: &[&str]) -> Output {
    let quiet = "[ \"$1\" = --help ] && exit 0";
    let bochs = format!("{quiet}\nexec 4>&1 >&3\n{bochs}");
    let disc = format!("{quiet}\ncd $3 || exit 1\n{disc}");
    let arguments = [&["--emulator", "bochs"], arguments].concat();
    boot_with(&[("bochs", &bochs), ("grub-mkrescue", &disc)], &arguments)
}

/// Boots with these scripts in PATH, and asserts that no file is left behind.
fn boot_with(programs: &[(&str, &str)], arguments: &[&str]) -> Output {
    let directory = tempfile::tempdir().expect("a directory");
    let kernel = directory.path().join("kernel.elf");
    fs::write(&kernel, "").expect("a kernel");
    for (name, text) in programs {
        let program = directory.path().join(name);
        fs::write(&program, format!("#!/bin/sh\n{text}\n")).expect("a program");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it can be run");
    }
    let path = std::env::var("PATH").expect("a path");
    let here = tempfile::tempdir().expect("a directory");
    let temporary = tempfile::tempdir().expect("another");
    let output = command()
        .args(["boot", "--kernel"])
        .arg(&kernel)
        .args(arguments)
        .env("PATH", format!("{}:{path}", directory.path().display()))
        .env("TMPDIR", temporary.path())
        .current_dir(here.path())
        .output();
    for directory in [&here, &temporary] {
        assert_eq!(files(directory), [""; 0], "no file is left");
    }
    output.expect("the command runs")
}

/// Returns the script of a kernel that prints these lines and passes.
fn printing(lines: &[&str]) -> String {
    let lines: String = lines.iter().map(|line| format!("echo '{line}'; ")).collect();
    format!("{lines} echo 'end passed'; exit 33")
}

#[test]
fn trials_are_printed_as_table() {
    let trials = printing(&[
        "boot x86_64",
        "trial way=reads-all fault=none verdict=fresh right=yes why=",
        "trial way=reads-all fault=keeps-all verdict=stale right=yes why=",
        "trial way=comes-back fault=none verdict=fresh right=yes why=",
        "trial way=comes-back fault=keeps-all verdict=absent why=there are no tags",
        "storm name=all-flush cpus=2 rounds=3 verdict=over",
    ]);
    let output = boot(&trials, &["--cpus", "2"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    insta::assert_snapshot!(text(&output.stdout));
    let csv = text(&boot(&trials, &["--format", "csv"]).stdout);
    let rows: Vec<_> = csv.lines().collect();
    assert_eq!(rows[..2], ["arch,scenario,fault,verdict", "x86_64,reads-all,none,fresh"]);
    assert_eq!(rows.len(), 5);
}

#[test]
fn workload_is_compared_with_simulator() {
    let report = r#"{"workload":"migrate","ipis_sent":7,"iterations":200,"violations":0}"#;
    let output = boot(&printing(&[report]), &["--workload", "migrate", "--cpus", "2"]);
    let table = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let row = |name: &str| {
        let line = table.lines().find(|line| line.starts_with(name));
        line.map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    };
    assert_eq!(row("iterations").expect("a row"), ["iterations", "200", "200"]);
    assert_eq!(row("interrupts sent").expect("a row")[2], "7");
    assert_eq!(row("switches"), None, "the kernel did not report switches: {table}");
    // A run without a report of violations does not pass.
    for report in ["hello", r#"{"workload":"migrate","iterations":200}"#] {
        let silent = boot(&printing(&[report]), &["--workload", "migrate", "--cpus", "2"]);
        assert_error(&silent, FOUND, &["did not report the counts of the workload", "--console"]);
    }
}

#[test]
fn load_contains_options_and_workload() {
    // The file has no name, but the emulator can open it.
    let read = "while [ \"$1\" != -initrd ]; do shift; done; cat $2; echo 'end passed'; exit 33";
    let load = |arguments: &[&str]| {
        let output = boot(read, &[arguments, &["--console"]].concat());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        // What follows the options is binary.
        text.split("SDWL").next().unwrap_or_default().to_owned()
    };
    let trials = load(&["--cpus", "3"]);
    assert!(trials.starts_with("shootdown-load "), "{trials}");
    assert!(trials.contains("\ncpus=3\nnotify=default\nmode=trials\nrounds=40\n"), "{trials}");
    let workload = load(&["--workload", "migrate", "--cpus", "2"]);
    let common = "\ncpus=2\nnotify=default\nmode=workload\n";
    assert!(workload.ends_with(&format!("{common}discards=in-place\n\n")), "{workload}");
    let immediate = load(&["--workload", "migrate", "--cpus", "2", "--discards", "immediate"]);
    assert!(immediate.ends_with(&format!("{common}discards=immediate\n\n")), "{immediate}");
    let replicas = load(&["--workload", "migrate", "--cpus", "2", "--replicas", "if-worth"]);
    let expected = format!("{common}discards=in-place\nreplicas=if-worth\n\n");
    assert!(replicas.ends_with(&expected), "{replicas}");
    let flags = |counts: &[&str]| {
        let arguments = [counts, &["--console"]].concat();
        text(&boot("echo $@; echo 'end passed'; exit 33", &arguments).stderr)
    };
    assert!(flags(&[]).contains("tcg,thread=multi"));
    assert!(flags(&["--counts"]).contains("-icount shift=0,sleep=off"));
}

#[test]
fn replicas_are_refused_where_they_do_nothing() {
    let replicas = ["--replicas", "always"];
    let on_arm = [&["--workload", "migrate", "--arch", "aarch64"][..], &replicas].concat();
    assert_error(&boot("exit 1", &on_arm), BAD_INPUT, &["AArch64 has no replicas", "--arch"]);
    let alone = boot("exit 1", &replicas);
    assert_eq!(alone.status.code(), Some(BAD_INPUT));
    assert!(text(&alone.stderr).contains("--workload"));
}

#[test]
fn sanitizer_is_refused_where_it_sees_nothing() {
    for machine in [["--arch", "loongarch64"], ["--emulator", "bochs"]] {
        let output = boot("exit 1", &[&machine[..], &["--sanitize"]].concat());
        assert_error(&output, BAD_INPUT, &["the sanitizer does not support", "--arch"]);
    }
}

#[test]
fn guests_are_refused_where_there_are_none() {
    for machine in [["--arch", "loongarch64"], ["--emulator", "bochs"]] {
        let output = boot("exit 1", &[&machine[..], &["--guests"]].concat());
        assert_error(&output, BAD_INPUT, &["the kernel has no guests on", "--arch riscv64"]);
    }
    let too_few = ["--guests", "--arch", "aarch64", "--cpus", "2"];
    assert_error(&boot("exit 1", &too_few), BAD_INPUT, &["guests need 3 CPUs", "--cpus 3"]);
}

/// Runs a command that waits for an emulator, which prints one line. On a busy host, that line may
/// come after a second.
fn assert_silence(run: impl Fn(&str) -> Output) {
    for patience in ["1", "5", "25"] {
        let output = run(patience);
        if patience == "25" || text(&output.stderr).contains("after `begun`") {
            let words = [&*format!("nothing for {patience} s after `begun`"), "--patience"];
            return assert_error(&output, FOUND, &words);
        }
    }
}

#[test]
fn every_failed_run_has_own_error() {
    // An emulator that ends late has not crashed.
    let slow = boot("echo 'end passed'; exec >&-; sleep 1; exit 33", &[]);
    assert!(slow.status.success(), "{}", text(&slow.stderr));
    // Control characters are escaped.
    let fatal = "echo begun; printf 'fatal cpu=1 \\033[2Jno\\r\\n'; echo 'end failed'; exit 35";
    assert_error(&boot(fatal, &[]), FOUND, &["fatal cpu=1 \\u{1b}[2Jno", "--console"]);
    assert_silence(|patience| boot("echo begun; exec sleep 100", &["--patience", patience]));
    // The end of a triple fault.
    let fault = boot("echo begun; exit 0", &[]);
    assert_error(&fault, FOUND, &["ended unexpectedly", "begun", "status: 0"]);
    let unknown = boot("exit 1", &["--workload", "doom"]);
    assert_error(&unknown, BAD_INPUT, &["no workload and no file `doom`", "migrate, "]);
    let inconsistent = boot("echo 'end passed'; exit 0", &[]);
    assert_error(&inconsistent, FOUND, &["ended unexpectedly", "status: 0"]);
    let broken = boot("echo 'no such machine' >&2; exit 1", &[]);
    assert_error(&broken, FOUND, &["no such machine", "status: 1"]);
}

#[test]
fn bochs_boots_from_a_disc() {
    let disc = "(find * -type f | sort; cat boot/grub/grub.cfg load) > $2";
    // The disc has no name, but Bochs can open it. Bochs ends with a panic.
    let read = "for option; do case $option in
                    *path=*) path=${option#*path=}; cat ${path%%,*} ;;
                esac; done";
    let print = "read line; echo debugger: $line; echo screen >&4; echo $@; echo 'end passed'";
    let output =
        boot_on_bochs(disc, &format!("{read}\n{print}\nexit 1"), &["--cpus", "3", "--console"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let console = text(&output.stderr);
    let lines: Vec<_> = console.lines().collect();
    assert_eq!(lines[..3], ["boot/grub/grub.cfg", "kernel", "load"]);
    assert_eq!(lines[3..6], ["multiboot2 /kernel", "module2 /load", "boot"]);
    assert!(lines[6].starts_with("shootdown-load "), "{console}");
    assert!(console.contains("\ncpus=3\nnotify=default\nmode=trials\nrounds=40\n"), "{console}");
    assert!(console.contains("\ndebugger: continue\n"), "{console}");
    assert!(console.contains("count=3,") && console.contains("panic: action=fatal"), "{console}");
    assert!(!console.contains("screen"), "{console}");
    assert!(text(&output.stdout).starts_with("x86_64-bochs, 3 CPUs"));
}

#[test]
fn every_failed_run_of_bochs_has_own_error() {
    let disc = "touch $2";
    let panic = "echo begun; printf '====\\n[CPU0 ] triple fault\\n====\\n' >&2; exit 1";
    let panicked = boot_on_bochs(disc, panic, &[]);
    assert_error(&panicked, FOUND, &["ended unexpectedly", "[CPU0 ] triple fault"]);
    let fatal = "echo 'fatal cpu=1 no'; echo 'end failed'; exit 1";
    assert_error(&boot_on_bochs(disc, fatal, &[]), FOUND, &["fatal cpu=1 no"]);
    let silent = "echo begun; exec sleep 100";
    assert_silence(|patience| boot_on_bochs(disc, silent, &["--patience", patience]));
    let no_disc = boot_on_bochs("echo 'xorriso not found' >&2; exit 1", "exit 1", &[]);
    assert_error(&no_disc, CANNOT_RUN, &["grub-mkrescue failed: xorriso", "apt-get install"]);
    for option in [["--arch", "aarch64"].as_slice(), &["--counts"]] {
        let refused = boot_on_bochs(disc, "exit 1", option);
        let words = [&*format!("{} cannot be used with Bochs", option[0]), "QEMU"];
        assert_error(&refused, BAD_INPUT, &words);
    }
    let none = command().args(["boot", "--emulator", "bochs"]).env("PATH", "/nonexistent").output();
    let words = ["bochs is not installed", "apt-get install bochs bochs-term"];
    assert_error(&none.expect("the command runs"), CANNOT_RUN, &words);
}

#[test]
fn missing_or_old_emulator_is_refused() {
    let old = boot("exit 1", &["--arch", "loongarch64"]);
    assert_error(&old, CANNOT_RUN, &["version 7.2.22", "9 is needed", "bookworm-backports"]);
    let none = command().arg("boot").env("PATH", "/nonexistent").output();
    let words = ["qemu-system-x86_64 is not installed", "apt-get install qemu-system-x86"];
    assert_error(&none.expect("the command runs"), CANNOT_RUN, &words);
}
