//! The size of each crate, and the cycles among its modules.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::modules::Modules;
use super::source::{code_lines, without_tests};

/// The crates whose largest cycle has a limit below [`CYCLE_MAX`].
const CYCLES: &[(&str, usize)] = &[("crates/lab", 3), ("kernel", 3)];

/// The maximum number of modules of one crate that may all use each other.
const CYCLE_MAX: usize = 4;

/// Prints a line for each crate, and adds the crates whose cycles are too large to `findings`.
///
/// Lines of code are lines outside of tests that are neither blank nor comments.
pub(super) fn check(files: &[(PathBuf, String)], findings: &mut Vec<String>) {
    let mut lines: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for (file, text) in files.iter().filter(|(file, _)| !is_test(file)) {
        *lines.entry(crate_of(file)).or_default() += code_lines(&without_tests(text));
    }
    let read =
        |path: &Path| files.iter().find(|(file, _)| file == path).map(|(_, text)| text.clone());
    println!("{:<20} {:>13} {:>8} {:>14}", "crate", "lines of code", "modules", "largest cycle");
    for (name, lines) in &lines {
        let crates =
            ["src/lib.rs", "src/main.rs"].map(|root| Modules::read(&name.join(root), &read));
        let modules: usize = crates.iter().map(Modules::count).sum();
        let cycle = crates.iter().map(Modules::largest_cycle).max_by_key(Vec::len);
        let cycle = cycle.unwrap_or_default();
        println!("{:<20} {lines:>13} {modules:>8} {:>14}", name.display(), cycle.len());
        let limit = CYCLES.iter().find(|(of, _)| Path::new(of) == name);
        let limit = limit.map_or(CYCLE_MAX, |(_, limit)| *limit);
        if cycle.len() > limit {
            findings.push(format!(
                "{}: {} modules use each other, and {limit} may: {}",
                name.display(),
                cycle.len(),
                cycle.join(", "),
            ));
        }
    }
    println!("{:<20} {:>13}", "total", lines.values().sum::<usize>());
}

/// Returns the folder of the crate of a file: `crates/adapters/NAME`, `crates/NAME`, or the first
/// part of its path.
fn crate_of(file: &Path) -> PathBuf {
    let depths = [("crates/adapters", 3), ("crates", 2)];
    let parts =
        depths.iter().find(|(folder, _)| file.starts_with(folder)).map_or(1, |found| found.1);
    file.iter().take(parts).collect()
}

fn is_test(file: &Path) -> bool {
    file.iter().any(|part| part == "tests" || part == "tests.rs")
}
