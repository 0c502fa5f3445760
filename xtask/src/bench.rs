//! Instructions and stack of the hot paths, with their budgets, and the speed of the simulator, the
//! replays and the checker.

use std::ops::RangeInclusive;
use std::path::Path;

use crate::command::{Command, Failure, cargo, read_tracked};
use crate::setup;
use crate::test::{builds, c};

/// Counts on this host and on bare metal, then measures speed.
pub(crate) fn all() -> Result<(), Failure> {
    counts()?;
    throughput()
}

/// Counts the hot paths on this host, in Rust and in C, and what workarounds of errata add to the
/// processors' paths.
pub(crate) fn paths() -> Result<(), Failure> {
    hot_paths()?;
    hot_paths_in_c()?;
    println!("\ninstructions of the processors' paths, as recorded on this host:");
    cargo("test --quiet -p shootdown-hw --lib book_has_the_costs -- --nocapture").run()
}

/// The compiler for which the budgets were measured.
const BUDGETS_FOR: &str = "rustc 1.95.";

/// Counts on this host and, if the budgets are for this compiler, on bare metal.
fn counts() -> Result<(), Failure> {
    if hot_paths()? { hot_paths_boot() } else { Ok(()) }
}

/// Counts the hot paths on this host. Returns `true` if the budgets are for this compiler. If they
/// are, a path above its budget is a failure.
fn hot_paths() -> Result<bool, Failure> {
    setup::instruction_counter()?;
    let counted = cargo("bench --quiet -p shootdown-hot-paths")
        // A kernel aborts on panic. Cargo ignores a profile's `panic` setting for benchmarks.
        .env("RUSTFLAGS", "-Cpanic=abort")
        .run();
    let compiler = Command::new("rustc").args("--version").output()?;
    if compiler.starts_with(BUDGETS_FOR) {
        return counted.map(|()| true);
    }
    println!("budgets not enforced: they are for {BUDGETS_FOR}x, and this is {}", compiler.trim());
    Ok(false)
}

/// The paths of `crates/capi/tests/cost.c`, and their budgets of instructions, 2 % above the counts
/// with gcc 12: with the checks of each call and the counters; and without both, with the variables
/// of a CPU relative to GS.
const PATHS_IN_C: [(&str, [u64; 2]); 9] = [
    ("flush-alone", [242, 178]),
    ("flush-one", [708, 639]),
    ("switch", [256, 176]),
    ("switch-untagged", [248, 161]),
    ("lazy", [94, 44]),
    ("alone-and-wait", [185, 129]),
    ("tables-and-wait", [181, 128]),
    ("lazy-and-wait", [334, 274]),
    ("one-and-wait", [697, 633]),
];

/// The features of both libraries, and the options with which C is compiled.
const LIBRARIES_IN_C: [(&str, &str); 2] =
    [("panic-handler,checks,statistics", ""), ("panic-handler,percpu-gs", "-DPERCPU_GS")];

/// Counts the paths of the C interface on this host. One above its budget is a failure.
fn hot_paths_in_c() -> Result<(), Failure> {
    let Some(target) = c::target() else { return Ok(()) };
    setup::c_compiler()?;
    println!("\ninstructions of paths in C, with all checks; and as a kernel like Linux links it:");
    let mut programs = Vec::new();
    for (features, options) in LIBRARIES_IN_C {
        let features = format!("{features} --no-default-features");
        let library = c::build_library(target, "release", &features)?;
        let name = format!("capi-cost{options}");
        programs.push(c::compile_with(options, "crates/capi/tests/cost.c", &library, &name)?);
    }
    for (path, budgets) in PATHS_IN_C {
        for (program, budget) in programs.iter().zip(budgets) {
            let cost = cost_in_c(program, path)?;
            println!("{path:16} {cost:5}, budget {budget}");
            if cost > budget {
                return Err(Failure::new(
                    format!("{path} in C is above its budget"),
                    "find the check that is new, and make it shorter",
                ));
            }
        }
    }
    Ok(())
}

/// Counts the instructions of one turn of a path.
fn cost_in_c(program: &Path, path: &str) -> Result<u64, Failure> {
    const TURNS: u64 = 1000;
    let count = |turns: u64| {
        let output = Command::new("valgrind")
            .args("--tool=callgrind --callgrind-out-file=/dev/null --log-fd=1")
            .arg(program)
            .arg(path)
            .arg(turns.to_string())
            .output()?;
        let collected = output.split("Collected : ").nth(1).and_then(|it| it.split('\n').next());
        collected
            .and_then(|it| it.trim().parse::<u64>().ok())
            .ok_or_else(|| Failure::new("callgrind printed no count", "valgrind --version"))
    };
    Ok((count(2 * TURNS)? - count(TURNS)?).div_ceil(TURNS))
}

/// Checks that paths on bare metal are as long as on the host and as in the book.
fn hot_paths_boot() -> Result<(), Failure> {
    /// Ratio of a budget to the count on the host.
    const BUDGET_ABOVE_HOST: f64 = 1.02;
    /// The kernel's code uses no vector registers, so counts differ by up to 7 %.
    const NEAR: RangeInclusive<f64> = 0.94..=1.07;
    /// Absolute tolerance for short paths, where a few instructions exceed the relative one.
    const NEAR_INSTRUCTIONS: f64 = 5.0;
    if !setup::emulators::for_boots()?.contains(&"x86_64") {
        println!("skipped on bare metal: no emulator");
        return Ok(());
    }
    let printed = Command::new(builds::lab()?).args("boot --paths --format csv").output()?;
    if printed.lines().count() < 2 {
        return Err(Failure::new(
            "the kernel printed no count",
            "shootdown boot --paths --console",
        ));
    }
    let book = read_tracked(COSTS)?;
    for line in printed.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let number = |cell: usize| cells.get(cell)?.parse::<f64>().ok();
        let is_near = |count: f64, budget: f64| {
            let host = budget / BUDGET_ABOVE_HOST;
            NEAR.contains(&(count / host)) || (count - host).abs() <= NEAR_INSTRUCTIONS
        };
        if !number(2).zip(number(4)).is_some_and(|(count, budget)| is_near(count, budget)) {
            return Err(Failure::new(
                format!("bare metal and host differ in the instructions of a path: {line}"),
                "shootdown boot --paths",
            ));
        }
        let shown = cells.get(1).and_then(|path| counts_in_book(&book, &path.replace('_', " ")));
        let is_shown = |(index, shown): (usize, f64)| {
            number(index + 2).is_some_and(|count| (count - shown).abs() <= 2.0 + shown / 50.0)
        };
        if !shown.is_some_and(|shown| shown.into_iter().enumerate().all(is_shown)) {
            return Err(Failure::new(
                format!("{COSTS} does not show these counts of the kernel: {line}"),
                format!("edit the row in {COSTS}"),
            ));
        }
    }
    print!("{printed}");
    Ok(())
}

/// The page of the book with the counts on bare metal.
const COSTS: &str = "docs/cost.md";

/// Returns the counts of a path on bare metal from the book: of the engine alone, and with the
/// processor's part. (The book's table for the host has more columns.)
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

/// Measures the speed of the simulator, the replays and the checker on this host. There is no limit
/// to fail, because hosts differ.
fn throughput() -> Result<(), Failure> {
    cargo("bench -p shootdown-sim --bench throughput").run()?;
    cargo("bench -p shootdown-run --bench recordings").run()?;
    cargo("bench -p shootdown-check --bench states").run()
}

/// Checks the budgets if valgrind can be installed. Otherwise prints that they were skipped.
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
