//! Instructions and stack of the hot paths, with their budgets; and the speed of the simulator, the
//! replays and the checker.

use std::fs;
use std::ops::RangeInclusive;

use crate::command::{Command, Failure, cargo};
use crate::setup;
use crate::test::builds;

/// Counts on this host and on bare metal, then measures speed.
pub(crate) fn all() -> Result<(), Failure> {
    counts()?;
    throughput()
}

/// The compiler whose code the budgets were measured on.
const BUDGETS_OF: &str = "rustc 1.95.";

/// Counts on this host and, if the budgets are for this compiler, on bare metal.
fn counts() -> Result<(), Failure> {
    if hot_paths()? { hot_paths_boot() } else { Ok(()) }
}

/// Counts the hot paths on this host. Returns whether the budgets are for this compiler; if they
/// are, a path above its budget is a failure.
pub(crate) fn hot_paths() -> Result<bool, Failure> {
    setup::instruction_counter()?;
    let counted = cargo("bench --quiet -p shootdown-hot-paths --bench hot_paths")
        // As in a kernel; a profile's `panic` is not for benchmarks.
        .env("RUSTFLAGS", "-Cpanic=abort")
        .run();
    let compiler = Command::new("rustc").args("--version").output()?;
    if compiler.starts_with(BUDGETS_OF) {
        return counted.map(|()| true);
    }
    println!("budgets not enforced: they are for {BUDGETS_OF}x, and this is {}", compiler.trim());
    Ok(false)
}

/// On bare metal, paths are as long as on the host and as the book shows.
fn hot_paths_boot() -> Result<(), Failure> {
    /// Budgets are that much above the host's counts.
    const BUDGET_ABOVE_HOST: f64 = 1.02;
    /// The kernel's code has no vector registers, so that counts differ by up to 6 %.
    const NEAR: RangeInclusive<f64> = 0.94..=1.06;
    /// Of a short path, a few instructions are more than that.
    const NEAR_INSTRUCTIONS: f64 = 5.0;
    if !setup::emulators::for_boots()?.contains(&"x86_64") {
        println!("not counted on bare metal");
        return Ok(());
    }
    let said = Command::new(builds::lab()?).args("boot --paths --format csv").output()?;
    if said.lines().count() < 2 {
        return Err(Failure::new("the kernel counts no path", "shootdown boot --paths --console"));
    }
    let book = fs::read_to_string(crate::root().join(COSTS))
        .map_err(|error| Failure::new(format!("{COSTS}: {error}"), "git checkout docs"))?;
    for line in said.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let number = |cell: usize| cells.get(cell)?.parse::<f64>().ok();
        let is_near = |count: f64, budget: f64| {
            let host = budget / BUDGET_ABOVE_HOST;
            NEAR.contains(&(count / host)) || (count - host).abs() <= NEAR_INSTRUCTIONS
        };
        if !number(2).zip(number(4)).is_some_and(|(count, budget)| is_near(count, budget)) {
            return Err(Failure::new(
                format!("a path takes other than the host's number of instructions: {line}"),
                "shootdown boot --paths",
            ));
        }
        let shown = cells.get(1).and_then(|path| counts_in_book(&book, &path.replace('_', " ")));
        let is_shown = |(index, shown): (usize, f64)| {
            number(index + 2).is_some_and(|count| (count - shown).abs() <= 2.0 + shown / 50.0)
        };
        if !shown.is_some_and(|shown| shown.into_iter().enumerate().all(is_shown)) {
            return Err(Failure::new(
                format!("{COSTS} does not show what the kernel counts: {line}"),
                format!("edit the row in {COSTS}"),
            ));
        }
    }
    print!("{said}");
    Ok(())
}

/// The page of the book with the counts on bare metal.
const COSTS: &str = "docs/cost.md";

/// The counts of a path on bare metal, in the book: of the engine alone, and with the processor's
/// half. The table for the host has more columns.
fn counts_in_book(book: &str, path: &str) -> Option<[f64; 2]> {
    book.lines().find_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        match cells[..] {
            [name, alone, with, _] if name == path => {
                Some([alone.parse().ok()?, with.parse().ok()?])
            }
            _ => None,
        }
    })
}

/// How fast the simulator, replays and the checker are on this host. Nothing fails: hosts differ.
fn throughput() -> Result<(), Failure> {
    cargo("bench -p shootdown-sim --bench throughput").run()?;
    cargo("bench -p shootdown-run --bench recordings").run()?;
    cargo("bench -p shootdown-check --bench states").run()
}

/// Budgets are checked wherever valgrind can be had; elsewhere a line says that they were not.
pub(crate) fn counts_if_possible() -> Result<(), Failure> {
    match setup::instruction_counter() {
        Ok(()) => counts(),
        Err(failure) => {
            println!("skipped: {}", failure.cause());
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_come_from_the_table_of_four_columns() {
        let book = "| answer | 125 | 125 | 125 | 75 | 190 |\n| answer | 122 | 164 | 190 |\n";
        assert_eq!(counts_in_book(book, "answer"), Some([122.0, 164.0]));
        assert_eq!(counts_in_book(book, "enter lazy"), None);
    }
}
