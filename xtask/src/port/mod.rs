//! Ports: kernel frameworks of others, with the engine instead of their own TLB shootdown.
//!
//! A port is a folder under `ports`: files of ours, and edits of the framework's that contain only
//! inserted text. The framework itself comes from the package registry.

mod boot;
mod build;
mod edits;
mod row;
mod source;

use std::fs;
use std::path::{Path, PathBuf};

use boot::Clock;
use build::Kernel;
use row::Row;
use source::Variant;

use crate::boots::golden;
use crate::command::Failure;
use crate::parallel;
use crate::setup::emulators;

/// The machines of the comparison.
const CPUS: [u32; 4] = [1, 2, 4, 8];

const BOTH: [Variant; 2] = [Variant::Stock, Variant::Shootdown];

/// The golden file: the rows of both variants.
const GOLDEN: &str = "ports/ostd/counts.csv";

/// The chapter of the book with the table of one machine.
const BOOK: (&str, u32) = ("docs/ostd.md", 4);

/// Stale reads that must appear when no CPU is notified. There are tens of thousands.
const STALE_MIN: u64 = 1000;

/// How a result is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Text,
    Json,
}

/// Runs `cargo xtask port` with these arguments.
pub(crate) fn command(arguments: &[&str]) -> Result<(), Failure> {
    match *arguments {
        ["ostd"] | ["ostd", "--format", "text"] => compare(Format::Text),
        ["ostd", "--format", "json"] => compare(Format::Json),
        ["ostd", "--tests"] => tests(),
        ["ostd", "--boots", count] => count.parse().map_or_else(
            |_| Err(Failure::new(format!("`{count}` is not a number"), "--boots 100")),
            soak,
        ),
        ["ostd", ..] => Err(Failure::new(
            "the port has no such option",
            "cargo xtask port ostd, with --format json, --tests or --boots COUNT",
        )),
        _ => Err(Failure::new("there is no such port", "cargo xtask port ostd")),
    }
}

/// Compares stock and ours on all machines, and updates the golden file.
fn compare(format: Format) -> Result<(), Failure> {
    has_emulator()?;
    let kernels = build::kernels(Kernel::Comparison, &BOTH)?;
    let rows = count(&kernels, &BOTH)?;
    for (kernel, variant) in kernels.iter().zip(BOTH) {
        let stale = unnotified(kernel, variant)?;
        eprintln!("{}: {stale} stale reads if no CPU is notified", variant.name());
    }
    match format {
        Format::Json => println!("{}", row::json(&rows)),
        Format::Text => print_tables(&rows),
    }
    check(&rows)?;
    if format == Format::Json {
        return Ok(());
    }
    golden::check_file(GOLDEN, &row::csv(&rows))?;
    check_book(&rows)
}

/// Installs QEMU if it is missing.
fn has_emulator() -> Result<(), Failure> {
    if emulators::for_boots()?.contains(&"x86_64") {
        return Ok(());
    }
    Err(Failure::new(
        "there is no QEMU for x86-64",
        "install qemu-system-x86_64, version 9 or newer",
    ))
}

/// Boots kernels on all machines, and counts instructions. The kernels are of these variants.
fn count(kernels: &[PathBuf], variants: &[Variant]) -> Result<Vec<Row>, Failure> {
    // The machines that take longest start first.
    let boots: Vec<(u32, &PathBuf, Variant)> = CPUS
        .iter()
        .rev()
        .flat_map(|&cpus| {
            kernels.iter().zip(variants).map(move |(kernel, &variant)| (cpus, kernel, variant))
        })
        .collect();
    let found = parallel::map(&boots, |&(cpus, kernel, variant)| {
        boot::rows(kernel, variant, cpus, "all", Clock::Instructions)
    });
    let mut rows = Vec::new();
    for found in found {
        rows.extend(found?);
    }
    rows.sort_by_key(|row| (row.cpus, row.variant));
    Ok(rows)
}

/// Boots ours alone, and compares its rows with the golden rows of stock and of ours.
pub(crate) fn test() -> Result<(), Failure> {
    if let Err(failure) = has_emulator() {
        println!("skipped: {}", failure.cause());
        return Ok(());
    }
    let golden = fs::read_to_string(crate::root().join(GOLDEN)).map_err(|error| {
        Failure::new(format!("{GOLDEN}: {error}"), format!("git checkout {GOLDEN}"))
    })?;
    let golden = row::of_csv(&golden);
    check_book(&golden)?;
    let (stock, golden): (Vec<_>, Vec<_>) =
        golden.into_iter().partition(|row| row.variant == Variant::Stock);
    let kernel = ours()?;
    let found = count(std::slice::from_ref(&kernel), &[Variant::Shootdown])?;
    let changed = row::changes(&golden, &found);
    if !changed.is_empty() {
        return Err(Failure::new(
            format!("other counts than in {GOLDEN}: {}", changed.join("; ")),
            "cargo xtask port ostd, and commit the file if the change is intended",
        ));
    }
    let rows = [stock, found].concat();
    check(&rows)?;
    let (stock, ours, mean) = row::summary(&row::pairs(&rows));
    println!("{ours} interrupts, stock {stock}; {mean:.3} of stock's instructions");
    let rows = boot::rows(&kernel, Variant::Shootdown, 4, "all", Clock::Host)?;
    check(&rows)?;
    println!("{} rows with a thread for each CPU have no stale read", rows.len());
    let stale = unnotified(&kernel, Variant::Shootdown)?;
    println!("{stale} stale reads if no CPU is notified");
    Ok(())
}

/// Compares the table in the book with the rows, or updates it outside of CI.
fn check_book(rows: &[Row]) -> Result<(), Failure> {
    golden::check_part(BOOK.0, "counts", &row::table(rows, BOOK.1))
}

fn print_tables(rows: &[Row]) {
    for cpus in CPUS {
        println!("{cpus} CPUs, per operation:\n\n{}", row::table(rows, cpus));
    }
    let (stock, ours, mean) = row::summary(&row::pairs(rows));
    println!("interrupts: {stock} in stock, {ours} in ours");
    println!("instructions: {mean:.3} of stock's, as the geometric mean of all rows");
}

/// Checks that no row has a stale read, and that none of ours has more work than stock.
fn check(rows: &[Row]) -> Result<(), Failure> {
    let mut findings = Vec::new();
    for row in rows.iter().filter(|row| row.stale_reads > 0) {
        findings.push(format!("{} CPUs, `{}`: stale reads", row.cpus, row.scenario));
    }
    for (stock, ours) in row::pairs(rows) {
        let mut exceeds = |what: &str, ours_count: u64, stock_count: u64| {
            if ours_count > stock_count {
                let place = format!("{} CPUs, `{}`", ours.cpus, ours.scenario);
                findings.push(format!("{place}: {ours_count} {what}, stock {stock_count}"));
            }
        };
        exceeds("interrupts", ours.interrupts, stock.interrupts);
        exceeds("instructions", ours.instructions, stock.instructions);
    }
    if findings.is_empty() {
        return Ok(());
    }
    Err(Failure::new(findings.join("; "), "find the cause in ports/ostd/shootdown"))
}

/// Boots with notification switched off. Returns the number of stale reads, of which there must be
/// many.
fn unnotified(kernel: &Path, variant: Variant) -> Result<u64, Failure> {
    let rows = boot::rows(kernel, variant, 4, "unnotified replaces", Clock::Host)?;
    let stale = rows.iter().map(|row| row.stale_reads).sum();
    if stale >= STALE_MIN {
        return Ok(stale);
    }
    Err(Failure::new(
        format!("{}: only {stale} stale reads if no CPU is notified", variant.name()),
        "find out why the scenario `replaces` does not detect them",
    ))
}

/// Boots ours again and again on four CPUs, with a thread of the host for each.
fn soak(boots: usize) -> Result<(), Failure> {
    let kernel = ours()?;
    for boot in 1..=boots {
        let rows = boot::rows(&kernel, Variant::Shootdown, 4, "all", Clock::Host)?;
        check(&rows)?;
        eprintln!("boot {boot} of {boots}: {} rows without a stale read", rows.len());
    }
    Ok(())
}

/// Runs the framework's own unit tests as published and with the engine. The same tests must pass.
fn tests() -> Result<(), Failure> {
    has_emulator()?;
    let programs = build::kernels(Kernel::Tests, &BOTH)?;
    let [stock, ours] = [boot::test_results(&programs[0])?, boot::test_results(&programs[1])?];
    let passed = |results: &[String]| results.iter().filter(|line| line.ends_with(" ok")).count();
    println!("stock: {} of {} tests pass", passed(&stock), stock.len());
    println!("shootdown: {} of {} tests pass", passed(&ours), ours.len());
    let differs =
        ours.iter().chain(&stock).find(|line| !(ours.contains(line) && stock.contains(line)));
    match differs {
        None if !ours.is_empty() => Ok(()),
        None => {
            Err(Failure::new("no test has run", "boot the kernel in target/ports/ostd by hand"))
        }
        Some(line) => Err(Failure::new(
            format!("not in both: {line}"),
            "find the cause in ports/ostd/shootdown",
        )),
    }
}

fn ours() -> Result<PathBuf, Failure> {
    Ok(build::kernels(Kernel::Comparison, &[Variant::Shootdown])?.remove(0))
}
