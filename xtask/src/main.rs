//! The commands of this repository: `cargo xtask` lists them.
//!
//! Each command installs what it needs, runs other commands in order, and reports the one that
//! failed.

mod bench;
mod book;
mod boots;
mod capi_object;
mod command;
mod demo;
mod experiments;
mod mutants;
mod page;
mod parallel;
mod port;
mod publishing;
mod python;
mod setup;
mod soak;
mod test;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use command::Failure;
use test::Selection;

const HELP: &str = "\
cargo xtask demo            replay recordings, reproduce published results, write a report
cargo xtask test            run all of CI: 22 minutes on two idle cores
cargo xtask test --changed  leave out the steps that have passed with the files that they read
cargo xtask test STEP       run one step of it; a wrong name lists the steps
cargo xtask book            build the book and the API into target/book
cargo xtask tidy            check the source: house style, plain words, lines of code below their
                            ceilings, cycles of modules
cargo xtask tidy --list HABIT
                            list the places of a habit that the house style avoids, such as `say`
cargo xtask tidy --write-ceilings
                            make today's lines of code the ceilings: when branches were merged
cargo xtask boots           boot the kernel; outside of CI, write the results into
                            kernel/trials.md, counts.csv and variants.md
cargo xtask bench           count instructions of the hot paths; measure the speed of the
                            simulator, the replays and the checker
cargo xtask bench paths     only count instructions and stack of the hot paths, and what workarounds
                            of errata add: seconds
cargo xtask port ostd [--arch x86_64|riscv64]
                            build the kernel framework OSTD as published and with the engine,
                            boot both on 1, 2, 4 and 8 CPUs, and compare their work: minutes
cargo xtask port ostd --tests
                            run OSTD's own unit tests in both
cargo xtask port ostd [--arch ARCH] --boots COUNT
                            boot OSTD with the engine COUNT times, on 4 CPUs in parallel
cargo xtask port ostd --bochs
                            boot OSTD with the engine on Bochs, which has PCIDs
cargo xtask port linux [--linux 7.2] [--cpus COUNT]
                            build Linux 6.12, or 7.2, as published and with the engine, boot both on
                            up to 64 CPUs, and compare them: half an hour, minutes from then on
cargo xtask port linux --arm64 [--cpus COUNT]
                            the same on AArch64, and count their broadcasts: half an hour
cargo xtask port linux --isolated
                            only compare with a CPU that the kernel shall not interrupt: minutes
cargo xtask port linux --cloud
                            run and check Linux on the engine as the distribution configures it
cargo xtask port linux --believe [faults] [stress] [selftests] [debug]
                            leave out rules of the port, one at a time; run stress-ng and Linux's
                            selftests on both; run a kernel with lockdep and KASAN: an hour
cargo xtask port linux --kernel-only
                            only build them, and print the files that boot
cargo xtask port linux --storm SECONDS
                            all programs of the comparison at once, while CPUs come and go
cargo xtask capi-object FILE [FEATURES]
                            build the C interface for x86-64 as one object, which a kernel links
                            that has no global offset table (Linux): seconds
cargo xtask python          build the Python package, and test it, a cluster of processes, and job
                            files: a minute after a build of the command
cargo xtask python --all    also run the notebook, and 100,000 cells on the cluster: minutes
cargo xtask soak [MINUTES]  search for long: unbounded interleavings, many seeds, a long stress,
                            damaged recordings, the contents of memory, the checker, and boots
                            for MINUTES on each machine (default 10)
cargo xtask soak boots [MINUTES [MACHINE]]
                            only boot, for MINUTES (default 30) on each machine, or on one of
                            x86_64, aarch64, riscv64, loongarch64, bochs
cargo xtask soak culprits   explain programs whose cause of shootdowns is known, as root, and
                            compare what a change removes with the prediction: a minute
cargo xtask soak fidelity   record 30 programs on this machine, as root, and write the verdicts on
                            the model into docs/data/fidelity.csv: minutes; continues after an
                            interruption
cargo xtask soak guests     record 17 programs on two versions of Linux with 2 to 64 CPUs, which
                            QEMU emulates, and write the verdicts on the model into
                            docs/data/guests.csv: hours; continues after an interruption
cargo xtask soak guests known
                            only write the table of the recordings that there are
cargo xtask soak guests loops
                            run the loops on Linux, on its model, and on the engine, simulated and
                            booted, and write docs/data/loops.csv: minutes
cargo xtask soak guests [PROGRAM] [KERNEL] [CPUS]
                            record these cells, and write the table
cargo xtask soak sanitize [MINUTES]
                            break Linux in ten ways, each of which the sanitizer must find, and run
                            Linux and ours beside it for MINUTES (default 60): it must find nothing
cargo xtask dist            pack the command for x86-64 and AArch64 Linux into target/dist: static
                            executable, completions, man pages, licences, archive, Debian package
cargo xtask semver [--baseline-rev REV]
                            compare the published crates with the last release, or with REV:
                            does a change break their users? builds a tool first: minutes
cargo xtask mutants [PART]  does a test detect each change of the engine? takes hours; continues
                            after an interruption; PART: 0/8 to 7/8, or a part of mutants' names,
                            such as `replace`

Each command installs what it needs: rustup targets and components, emulators, valgrind, Python.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let start = Instant::now();
    let result = match arguments[..] {
        ["demo"] => demo::run(demo::Studies::Full),
        ["test"] => test::all(Selection::All),
        ["test", "--changed"] => test::all(Selection::Changed),
        ["test", step] => test::step(step),
        ["book"] => book::build(),
        ["tidy"] => tidy::check(),
        ["tidy", "--list", habit] => tidy::list(habit),
        ["tidy", "--write-ceilings"] => tidy::write_ceilings(),
        ["boots"] => boots::run(boots::Part::All),
        ["bench"] => bench::all(),
        ["bench", "paths"] => bench::paths(),
        ["soak"] => soak::all(10),
        ["soak", "boots"] => soak::boots(30, None),
        ["soak", "boots", minutes, ref only @ ..] if only.len() <= 1 => {
            soak::parse_minutes(minutes, "cargo xtask soak boots 30")
                .and_then(|minutes| soak::boots(minutes, only.first().copied()))
        }
        ["soak", "culprits"] => experiments::culprits::soak(),
        ["soak", "fidelity"] => experiments::fidelity(),
        ["soak", "guests", "loops"] => experiments::loops::compare(),
        ["soak", "guests", ref words @ ..] => experiments::guests(words),
        ["soak", "sanitize"] => port::linux::soak(60),
        ["soak", "sanitize", minutes] => {
            soak::parse_minutes(minutes, "cargo xtask soak sanitize 60").and_then(port::linux::soak)
        }
        ["soak", minutes] => {
            soak::parse_minutes(minutes, "cargo xtask soak 60").and_then(soak::all)
        }
        ["dist"] => publishing::dist::pack(),
        ["semver"] => publishing::semver::check(None),
        ["semver", "--baseline-rev", revision] => publishing::semver::check(Some(revision)),
        ["mutants"] => mutants::campaign(None),
        ["mutants", part] => mutants::campaign(Some(part)),
        ["python"] => python::test(python::Part::Short),
        ["python", "--all"] => python::test(python::Part::All),
        ["capi-object", output] => capi_object::build_to(output, capi_object::FEATURES),
        ["capi-object", output, features] => capi_object::build_to(output, features),
        ["port", ref rest @ ..] => port::command(rest),
        [] | ["help" | "--help" | "-h"] => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        _ => Err(Failure::usage("there is no such command", "cargo xtask help")),
    };
    match result {
        Ok(()) => {
            let cpu_time = command::cpu_time();
            eprintln!("\nxtask: done in {:.0?}, with {cpu_time:.0?} of CPU time", start.elapsed());
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("\n{failure}");
            ExitCode::from(failure.status())
        }
    }
}

/// Returns the root of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// Returns the folder for results.
fn output() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}
