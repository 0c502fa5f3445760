//! Every file in `machines/` is valid, and every number in it has a source.

use std::fs;
use std::path::{Path, PathBuf};

use shootdown_sim::machine::Machine;

fn files() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines");
    let entries = fs::read_dir(&directory).expect("a directory `machines`");
    let paths = entries.map(|entry| entry.expect("an entry of `machines`").path());
    let mut files: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect();
    files.sort();
    assert!(!files.is_empty(), "no machine in {}", directory.display());
    files
}

fn machine(path: &Path) -> Machine {
    let text = fs::read_to_string(path).expect("a machine file that can be read");
    Machine::from_toml(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
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
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_shootdown"))
        .arg("machines")
        .output()
        .expect("the command");
    let list = String::from_utf8(output.stdout).expect("text");
    for path in files() {
        let name = machine(&path).name;
        assert!(list.lines().any(|line| line.starts_with(&name)), "{name} is not embedded");
    }
}
