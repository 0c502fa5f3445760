//! Every file in `machines/` is valid, and every number in it has a source.

use std::fs;
use std::path::{Path, PathBuf};

use shootdown_sim::machine::Machine;

use crate::common::{MACHINES, machine_of};

fn files() -> Vec<PathBuf> {
    let entries = fs::read_dir(MACHINES).expect("a directory `machines`");
    let paths = entries.map(|entry| entry.expect("an entry of `machines`").path());
    let mut files: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect();
    files.sort();
    assert!(!files.is_empty(), "no machine in {MACHINES}");
    files
}

fn machine(path: &Path) -> Machine {
    machine_of(&fs::read_to_string(path).expect("a machine file that can be read"))
}

#[test]
fn every_file_describes_machine_of_its_name() {
    for path in files() {
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name in UTF-8");
        assert_eq!(machine(&path).name, name);
    }
}

#[test]
fn every_number_has_source() {
    for path in files() {
        for number in machine(&path).numbers() {
            let place = format!("{}: {}.{}", path.display(), number.section, number.key);
            let source = number.source.trim();
            assert!(source.len() >= 10, "{place}: `{source}` is not a source");
            let measurement = number.calibrated_on.as_deref();
            assert!(measurement.is_none_or(|it| it.contains(char::is_numeric)), "{place}");
        }
    }
}

#[test]
fn command_embeds_every_file() {
    let output = command(&["machines"], Path::new("."));
    let list = String::from_utf8(output.stdout).expect("text");
    for path in files() {
        let name = machine(&path).name;
        assert!(list.lines().any(|line| line.starts_with(&name)), "{name} is not embedded");
    }
}

fn command(arguments: &[&str], directory: &Path) -> std::process::Output {
    let mut command = crate::common::command();
    command.args(arguments).current_dir(directory).output().expect("the command")
}

#[test]
fn every_file_states_error_of_its_times() {
    for path in files() {
        let machine = machine(&path);
        let percent = machine.time_error_percent.expect("an error of times");
        let is_held = machine.measured.is_empty() || percent <= 15;
        assert!(percent > 0 && is_held, "{}: {percent} %", path.display());
    }
}

/// A cost of the kernel's work that is 0 in a file names the number that it is a part of, or says
/// that it is none.
#[test]
fn no_cost_of_kernel_is_silently_zero() {
    for path in files() {
        let machine = machine(&path);
        let zeros = machine.numbers().iter().filter(|it| it.section == "kernel" && it.value == 0.0);
        for number in zeros {
            let has_reason = number.source.contains("part of") || number.source.contains("all of");
            assert!(has_reason, "{}: {}: {}", path.display(), number.key, number.source);
        }
    }
}

/// Every embedded file that quotes loops of a real machine, in the simulator.
#[test]
fn machines_take_as_long_as_they_quote() {
    let output = command(&["machines", "--check"], Path::new("."));
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{text}");
    for (machine, loops) in [("emerald-rapids-kvm", 9), ("epyc-zen5-kvm", 12), ("xeon-2s", 1)] {
        let lines = text.lines().filter(|line| line.starts_with(machine));
        assert_eq!(lines.count(), loops, "{machine}: {text}");
    }
}

#[test]
fn wrong_number_fails_the_check() {
    let directory = tempfile::tempdir().expect("a directory");
    let own = |text: &str| {
        let head = "name = \"own\"\nabout = \"a test\"\nextends = \"base.toml\"\n";
        fs::write(directory.path().join("own.toml"), format!("{head}{text}")).expect("a file");
        command(&["machines", "own.toml", "--check"], directory.path()).status.code()
    };
    let base = include_str!("../../../../machines/emerald-rapids-kvm.toml");
    fs::write(directory.path().join("base.toml"), base).expect("a file");
    let quoted = "[measured]\nsyscall_ns = { value = 80.7, source = \"host.c: getppid\" }\n";
    assert_eq!(own(""), Some(2), "measurements are not inherited");
    assert_eq!(own(quoted), Some(0));
    let slow = "[kernel]\nsyscall_ns = { value = 95, source = \"made up for a test\" }\n";
    assert_eq!(own(&format!("{quoted}{slow}")), Some(1));
    assert_eq!(own("[measured]\nloop_ns = { value = 1, source = \"no such loop\" }"), Some(2));
    let circle = base.replacen("name =", "extends = \"base.toml\"\nname =", 1);
    fs::write(directory.path().join("base.toml"), circle).expect("a file");
    assert_eq!(own(quoted), Some(2), "a file must not extend itself");
}

/// Numbers that are far off are fitted to the loops that the file quotes.
#[test]
fn machine_is_fitted_to_its_loops() {
    let directory = tempfile::tempdir().expect("a directory");
    let base = include_str!("../../../../machines/emerald-rapids-kvm.toml");
    let quoted = base.split("[measured]").last().expect("loops");
    let own = format!(
        "name = \"own\"\nabout = \"a test\"\nextends = \"haswell-desktop\"\n[measured]{quoted}"
    );
    fs::write(directory.path().join("own.toml"), own).expect("a file");
    let check = command(&["machines", "own.toml", "--check"], directory.path());
    assert_eq!(check.status.code(), Some(1), "the numbers of the base are of another machine");
    let output = command(&["calibrate", "--refit", "own.toml"], directory.path());
    let text = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.success(), "{text}");
}
