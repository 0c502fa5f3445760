//! Everything that one does in this repository: `cargo xtask` says what there is.
//!
//! Each command sets up what it needs. Nothing here is clever: it runs other commands, in an order,
//! and says which one failed.

mod boots;
mod command;
mod mutants;
mod setup;
mod tidy;

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use command::{Command, Failure, cargo};

const HELP: &str = "\
cargo xtask demo            replay recordings, reproduce published results, write a report
cargo xtask test            all that CI runs; about three quarters of an hour on two cores
cargo xtask tidy            of that, what reads the source alone
cargo xtask boots           of that, what boots: about ten minutes; outside of CI, writes down what
                            is found (docs/bare-metal.md, kernel/counts.csv)
cargo xtask bench           instructions of the hot paths; speed of simulator, replays, checker
cargo xtask bench paths     of that, instructions and stack of the hot paths on this host: seconds
cargo xtask soak [MINUTES]  long searches: unbounded interleavings, many seeds, a long stress,
                            damaged recordings, what memory holds, the checker; and kernels
                            that boot, so long on each machine (10)
cargo xtask soak boots [MINUTES]
                            of that, what boots: MINUTES on each machine (30)
cargo xtask mutants [PART]  does a test notice whatever is changed in the engine? takes hours;
                            goes on where it was interrupted; PART: 0/8 to 7/8, or a regular
                            expression of mutants' names
cargo xtask mutants deletions [PART]
                            of that, deleted statements; PART: 0/8 to 7/8, or part of their names

Set-up (rustup targets and components, emulators, valgrind) is done by the command that needs it.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let start = Instant::now();
    let result = match arguments[..] {
        ["demo"] => demo(),
        ["test"] => test(),
        ["tidy"] => tidy::check(),
        ["boots"] => boots::all(),
        ["bench"] => bench().and_then(|()| throughput()),
        ["bench", "paths"] => hot_paths().map(drop),
        ["soak"] => soak(10),
        ["soak", "boots"] => soak_boots(30),
        ["soak", "boots", minutes] => {
            parse_minutes(minutes, "cargo xtask soak boots 30").and_then(soak_boots)
        }
        ["soak", minutes] => parse_minutes(minutes, "cargo xtask soak 60").and_then(soak),
        ["mutants"] => mutants::campaign(None),
        ["mutants", "deletions"] => mutants::deletions(None),
        ["mutants", "deletions", part] => mutants::deletions(Some(part)),
        ["mutants", part] => mutants::campaign(Some(part)),
        [] | ["help" | "--help" | "-h"] => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        _ => Err(Failure::new("there is no such command", "cargo xtask help")),
    };
    match result {
        Ok(()) => {
            eprintln!("\nxtask: done in {:.0?}", start.elapsed());
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("\n{failure}");
            ExitCode::FAILURE
        }
    }
}

/// The root of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// Where results go.
fn output() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

fn demo() -> Result<(), Failure> {
    let report = output().join("demo.html");
    // Commands run in the root, so this is where it says.
    let command = cargo("run --quiet --release -p shootdown-lab -- report --output")
        .arg(report.strip_prefix(root()).unwrap_or(&report));
    recordings()?.into_iter().fold(command, Command::arg).run()
}

/// What ships in `traces/`.
fn recordings() -> Result<Vec<PathBuf>, Failure> {
    let entries = fs::read_dir(root().join("traces"))
        .map_err(|error| Failure::new(format!("traces: {error}"), "git checkout traces"))?;
    let mut files: Vec<_> = entries
        .filter_map(|entry| Some(Path::new("traces").join(entry.ok()?.file_name())))
        .filter(|path| path.extension().is_some_and(|extension| extension == "shootdown"))
        .collect();
    files.sort();
    Ok(files)
}

/// The stress example, for so long.
fn stress(seconds: u64) -> Result<(), Failure> {
    cargo("run --quiet --release -p shootdown --features soft --example stress --")
        .arg(seconds.to_string())
        .run()
}

/// Reads damaged recordings and imports damaged texts, for so long. Not in release, where
/// arithmetic that overflows is not seen.
fn fuzz(seconds: u64, seed: u64) -> Result<(), Failure> {
    cargo("run --quiet -p shootdown-recording --example fuzz -- --seconds")
        .arg(seconds.to_string())
        .arg("--seed")
        .arg(seed.to_string())
        .run()
}

fn test() -> Result<(), Failure> {
    type Step = fn() -> Result<(), Failure>;
    let steps: &[(&str, Step)] = &[
        ("set-up", || {
            setup::for_tests()?;
            // Here, and not half an hour later, it is found out what cannot be had.
            setup::emulators::for_boots().map(drop)
        }),
        ("format", || cargo("fmt --all --check").run()),
        ("tidy", tidy::check),
        ("clippy", || {
            cargo("clippy --workspace --all-targets --features shootdown/soft -- -D warnings").run()
        }),
        ("tests: unit, property, loom, shuttle, host threads, documentation", || {
            setup::say_whether_recording_is_tested();
            cargo("test --workspace --features shootdown/soft").run()
        }),
        ("damaged recordings and texts, for a minute", || fuzz(60, 1)),
        ("documentation", || {
            cargo("doc --workspace --no-deps --features shootdown/soft")
                .env("RUSTDOCFLAGS", "-D warnings")
                .run()
        }),
        ("bare targets", bare_targets),
        ("bare-metal boots", boots::all),
        ("same bytes in debug and release", same_bytes),
        ("miri", || miri(8)),
        ("instruction counts", instruction_counts_if_possible),
        ("the README's commands", readme),
    ];
    for (number, (name, step)) in (1..).zip(steps) {
        println!("\n── {number}/{} {name} ──", steps.len());
        let start = Instant::now();
        step()?;
        println!("── {name}: ok, {:.1?}", start.elapsed());
    }
    Ok(())
}

/// The engine, the memory manager and the language of workloads build without an operating system.
fn bare_targets() -> Result<(), Failure> {
    setup::BARE_TARGETS.iter().try_for_each(|target| {
        cargo("build --quiet --release -p shootdown -p shootdown-vm -p shootdown-program --target")
            .arg(target)
            .run()?;
        println!("shootdown, shootdown-vm and shootdown-program build for {target}");
        Ok(())
    })?;
    setup::emulators::ARCHITECTURES.iter().try_for_each(|(arch, target, ..)| {
        // It is built to be booted, with the profile of that.
        setup::emulators::cargo_for_kernel("clippy --quiet", target)?
            .args("-- -D warnings")
            .run()?;
        println!("nothing to say of the kernel for {arch}");
        Ok(())
    })
}

/// A simulation depends on its seed, and on nothing else of the host or the build.
fn same_bytes() -> Result<(), Failure> {
    let run = |profile| {
        cargo("run --quiet -p shootdown-lab --profile")
            .arg(profile)
            .args("-- reproduce --quick --format json")
            .output()
    };
    let (debug, again, release) = (run("dev")?, run("dev")?, run("release")?);
    if debug != again || debug != release {
        return Err(Failure::new(
            "the same simulation gave different results",
            "compare `shootdown reproduce --quick --format json` of both profiles",
        ));
    }
    println!("{} bytes, the same each time", debug.len());
    Ok(())
}

/// The engine's own tests under miri, which knows C++20's weak memory; those with threads with
/// several seeds. The word in which a CPU says what it holds is a pointer with flags: miri is told
/// that integers may become pointers.
fn miri(seeds: u32) -> Result<(), Failure> {
    let tests = |tests: &str, flags: String| {
        cargo("+nightly miri test -p shootdown --features soft")
            .args(tests)
            .env(
                "MIRIFLAGS",
                format!("-Zmiri-disable-isolation -Zmiri-permissive-provenance {flags}"),
            )
            .env("PROPTEST_CASES", "4")
            .run()
    };
    tests("--lib --test engine --test ends", String::new())?;
    tests("--test stress", format!("-Zmiri-many-seeds=0..{seeds}"))
}

/// The compiler whose code the budgets were measured on.
const BUDGETS_OF: &str = "rustc 1.95.";

fn bench() -> Result<(), Failure> {
    if hot_paths()? { hot_paths_boot() } else { Ok(()) }
}

/// Counts the hot paths on this host. Returns whether the budgets are for this compiler; if they
/// are, a path above its budget is a failure.
fn hot_paths() -> Result<bool, Failure> {
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
    let said = cargo("run --quiet -p shootdown-lab -- boot --paths --format csv").output()?;
    if said.lines().count() < 2 {
        return Err(Failure::new("the kernel counts no path", "shootdown boot --paths --console"));
    }
    let book = fs::read_to_string(root().join(COSTS))
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
fn instruction_counts_if_possible() -> Result<(), Failure> {
    match setup::instruction_counter() {
        Ok(()) => bench(),
        Err(failure) => {
            println!("skipped: {}", failure.cause());
            Ok(())
        }
    }
}

/// The commands that the README shows are commands that work.
fn readme() -> Result<(), Failure> {
    let path = root().join("README.md");
    let text = std::fs::read_to_string(&path)
        .map_err(|error| Failure::new(format!("README.md: {error}"), "git checkout README.md"))?;
    let mut commands = 0;
    for line in text.lines().filter_map(|line| line.strip_prefix("$ ")) {
        commands += 1;
        match line {
            // That is what is running.
            "cargo xtask test" => {}
            "cargo xtask demo" => demo()?,
            _ => {
                return Err(Failure::new(
                    format!("README.md shows `{line}`, which nobody tests"),
                    "add it to `readme` in xtask/src/main.rs",
                ));
            }
        }
    }
    println!("{commands} commands of the README work");
    Ok(())
}

/// A number of minutes from the command line, from 1 to a year.
fn parse_minutes(text: &str, remedy: &str) -> Result<u64, Failure> {
    const MAX: u64 = 365 * 24 * 60;
    text.parse().ok().filter(|minutes| (1..=MAX).contains(minutes)).ok_or_else(|| {
        let cause = format!("`{}` is not a number of minutes from 1 to {MAX}", text.escape_debug());
        Failure::new(cause, remedy)
    })
}

/// Another seed each time. Commands print it when they find something.
fn seed_of_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs() & u64::from(u32::MAX)
}

/// The last part of [`soak`] alone: the kernel on every machine.
fn soak_boots(minutes: u64) -> Result<(), Failure> {
    boots::soak(Duration::from_secs(minutes * 60), seed_of_now())
}

fn soak(minutes: u64) -> Result<(), Failure> {
    setup::for_tests()?;
    stress(minutes * 60 / 2)?;
    cargo("test --release -p shootdown --features soft --test rules")
        .env("SHOOTDOWN_SOAK", "1")
        .run()?;
    let seed = seed_of_now();
    fuzz(minutes * 60, seed)?;
    // About 2000 programs a minute.
    cargo("test --release -p shootdown-run --test contents memory_holds")
        .env("CONTENTS_PROGRAMS", (minutes * 2000).to_string())
        .env("CONTENTS_SEED", seed.to_string())
        .run()?;
    boots::soak(Duration::from_secs(minutes * 60), seed)?;
    // As long for short programs in every schedule, and large ones at random.
    cargo("run --quiet --release -p shootdown-lab -- check --cpus 16 --budget")
        .arg(format!("{minutes}m"))
        .arg("--seed")
        .arg(seed.to_string())
        .run()?;
    // About 16 seeds in two minutes.
    miri(u32::try_from(minutes * 4).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_are_positive_numbers() {
        assert_eq!(parse_minutes("30", "").ok(), Some(30));
        for text in ["", "0", "-1", "1.5", "ten", "525601", "99999999999999999999"] {
            let failure = parse_minutes(text, "cargo xtask soak boots 30").unwrap_err();
            assert!(failure.to_string().contains("try:   cargo xtask soak boots 30"), "{text}");
        }
    }

    #[test]
    fn counts_come_from_the_table_of_four_columns() {
        let book = "| answer | 125 | 125 | 125 | 75 | 190 |\n| answer | 122 | 164 | 190 |\n";
        assert_eq!(counts_in_book(book, "answer"), Some([122.0, 164.0]));
        assert_eq!(counts_in_book(book, "enter lazy"), None);
    }
}
