//! Everything that one does in this repository: `cargo xtask` lists the commands.
//!
//! Each command sets up what it needs, then runs other commands in an order, and reports which one
//! failed.

mod bench;
mod book;
mod boots;
mod command;
mod demo;
mod mutants;
mod parallel;
mod publishing;
mod setup;
mod soak;
mod test;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use command::Failure;

const HELP: &str = "\
cargo xtask demo            replay recordings, reproduce published results, write a report
cargo xtask test            all that CI runs: a quarter of an hour on two cores
cargo xtask test STEP       one step of that; a wrong name lists the steps
cargo xtask book            build the book and the API into target/book
cargo xtask tidy            the step that reads the source: house style, lines of code, cycles of
                            modules
cargo xtask boots           the step that boots; outside of CI, it writes its results into
                            docs/bare-metal.md and kernel/counts.csv
cargo xtask bench           instructions of the hot paths; speed of simulator, replays, checker
cargo xtask bench paths     of that, instructions and stack of the hot paths on this host: seconds
cargo xtask soak [MINUTES]  long searches: unbounded interleavings, many seeds, a long stress,
                            damaged recordings, the contents of memory, the checker; and kernels
                            that boot, for MINUTES on each machine (10)
cargo xtask soak boots [MINUTES]
                            of that, kernels that boot: MINUTES on each machine (30)
cargo xtask mutants [PART]  does a test detect each change of the engine? takes hours; continues
                            where it was interrupted; PART: 0/8 to 7/8, or a regular expression
                            of mutants' names
cargo xtask mutants deletions [PART]
                            of that, deleted statements; PART: 0/8 to 7/8, or part of their names

Each command installs what it needs: rustup targets and components, emulators, valgrind.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let start = Instant::now();
    let result = match arguments[..] {
        ["demo"] => demo::run(),
        ["test"] => test::all(),
        ["test", step] => test::step(step),
        ["book"] => book::build(),
        ["tidy"] => tidy::check(),
        ["boots"] => boots::all(),
        ["bench"] => bench::all(),
        ["bench", "paths"] => bench::hot_paths().map(drop),
        ["soak"] => soak::all(10),
        ["soak", "boots"] => soak::boots(30),
        ["soak", "boots", minutes] => {
            soak::parse_minutes(minutes, "cargo xtask soak boots 30").and_then(soak::boots)
        }
        ["soak", minutes] => {
            soak::parse_minutes(minutes, "cargo xtask soak 60").and_then(soak::all)
        }
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

/// The folder for results.
fn output() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}
