//! The size of each part, and the cycles among the modules of each crate.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::modules::Modules;

/// The crates whose largest cycle has a limit below [`CYCLE_MAX`].
const CYCLES: &[(&str, usize)] = &[("crates/lab", 3), ("kernel", 3)];

/// The maximum number of modules of one crate that may all use each other.
const CYCLE_MAX: usize = 4;

/// Prints a line for each part with its lines of code, and adds the crates whose cycles are too
/// large to `findings`.
pub(super) fn check(
    lines: &BTreeMap<String, usize>,
    files: &[(PathBuf, String)],
    findings: &mut Vec<String>,
) {
    let read =
        |path: &Path| files.iter().find(|(file, _)| file == path).map(|(_, text)| text.clone());
    println!("{:<36} {:>13} {:>8} {:>14}", "part", "lines of code", "modules", "largest cycle");
    for (name, lines) in lines {
        let crates = ["src/lib.rs", "src/main.rs"]
            .map(|root| Modules::read(&Path::new(name).join(root), &read));
        let modules: usize = crates.iter().map(Modules::count).sum();
        let cycle = crates.iter().map(Modules::largest_cycle).max_by_key(Vec::len);
        let cycle = cycle.unwrap_or_default();
        println!("{name:<36} {lines:>13} {modules:>8} {:>14}", cycle.len());
        let limit = CYCLES.iter().find(|(of, _)| of == name);
        let limit = limit.map_or(CYCLE_MAX, |(_, limit)| *limit);
        if cycle.len() > limit {
            findings.push(format!(
                "{name}: {} modules use each other, and {limit} may: {}",
                cycle.len(),
                cycle.join(", "),
            ));
        }
    }
    println!("{:<36} {:>13}", "total", lines.values().sum::<usize>());
}
