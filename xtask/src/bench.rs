//! Instructions and stack of the hot paths, with their budgets, and the speed of the simulator, the
//! replays and the checker.

use std::path::Path;

use crate::command::{Command, Failure, cargo};
use crate::setup;
use crate::test::c;

/// Counts on this host, then measures speed.
pub(crate) fn all() -> Result<(), Failure> {
    hot_paths()?;
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

/// Counts the hot paths on this host. If the budgets are for this compiler, a path above its budget
/// is a failure.
fn hot_paths() -> Result<(), Failure> {
    setup::instruction_counter()?;
    let counted = cargo("bench --quiet -p shootdown-hot-paths")
        // A kernel aborts on panic. Cargo ignores a profile's `panic` setting for benchmarks.
        .env("RUSTFLAGS", "-Cpanic=abort")
        .run();
    let compiler = Command::new("rustc").args("--version").output()?;
    if compiler.starts_with(BUDGETS_FOR) {
        return counted;
    }
    println!("budgets not enforced: they are for {BUDGETS_FOR}x, and this is {}", compiler.trim());
    Ok(())
}

/// The paths of `crates/capi/tests/cost.c`, and their budgets of instructions, 2 % above the counts
/// with gcc 12: with the checks of each call and the counters; and without both, with the variables
/// of a CPU relative to GS.
const PATHS_IN_C: [(&str, [u64; 2]); 9] = [
    ("flush-alone", [225, 178]),
    ("flush-one", [694, 620]),
    ("switch", [256, 174]),
    ("switch-untagged", [246, 157]),
    ("lazy", [94, 42]),
    ("alone-and-wait", [161, 127]),
    ("tables-and-wait", [155, 128]),
    ("lazy-and-wait", [335, 269]),
    ("one-and-wait", [670, 607]),
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
        Ok(()) => hot_paths(),
        Err(failure) => {
            println!("skipped: {}", failure.cause());
            Ok(())
        }
    }
}
