//! Linux with the engine, as the distribution configures it for virtual machines.

use std::fmt::Write as _;
use std::fs;

use super::configuration::Configuration;
use super::guest;
use super::kernel::Kernel;
use super::{ISOLATED, NOT_ISOLATED, check_contents, expect_none, has_emulator, kernel, table};
use crate::command::{Failure, unwritable};
use crate::experiments;
use crate::port::machine::Clock;
use crate::port::row::Row;
use crate::port::source::{Arch, Variant};

/// The programs of the comparison, with fewer operations.
const PROGRAMS: &str = "purge,50:purge-moving,20:purge-idle,50:tables-idle,50:protect-idle,50:\
                        alone-moving,50:exec,5:exec-threads,5:exit,5:turns-idle,50:\
                        turns-purge,30:turns-processes,100:mmap,80-81:mprotect,60-63:reclaim,2";

/// Builds the kernel, runs all programs and checks on it, and prints a table.
///
/// CPUs run at the same time, so the counts vary from boot to boot.
pub(super) fn check() -> Result<(), Failure> {
    has_emulator(Arch::X86_64)?;
    let kernel = build()?;
    let archive = guest::archive(&kernel)?;
    let rows = |words| {
        let boot = kernel.boot(&archive, (4, Clock::Host), words, PROGRAMS);
        boot.rows().map(|(runs, _)| table::summed(&runs))
    };
    let (shared, isolated) = (rows(NOT_ISOLATED)?, rows(ISOLATED)?);
    println!("4 CPUs:\n\n{}", of_boots(&shared, &isolated));
    let wrong = shared.iter().chain(&isolated).map(|row| row.count("wrong")).sum();
    expect_none("QEMU, by the programs", wrong)?;
    check_contents(&kernel, &archive)
}

/// Builds the kernel, and runs the programs of the corpus on it and on the distribution's own.
pub(super) fn programs() -> Result<(), Failure> {
    has_emulator(Arch::X86_64)?;
    build()?;
    experiments::port::compare()
}

/// Builds the kernel, and gives it to `shootdown guest --kernel shootdown`.
fn build() -> Result<Kernel, Failure> {
    let kernel = kernel::build_with(Configuration::Cloud, Variant::Shootdown)?;
    let place = kernel::cache().with_file_name("vmlinuz-shootdown");
    fs::copy(&kernel.image, &place).map_err(unwritable(&place))?;
    Ok(kernel)
}

/// Returns a table in Markdown of the same programs in two boots.
fn of_boots(shared: &[Row], isolated: &[Row]) -> String {
    let mut text = format!(
        "| program | operations | interrupts, `{NOT_ISOLATED}` | `{ISOLATED}` |\n\
         |---|---:|---:|---:|\n"
    );
    for (row, isolated) in shared.iter().zip(isolated) {
        let [operations, interrupts] = ["operations", "interrupts"].map(|name| row.count(name));
        let (name, other) = (&row.scenario, isolated.count("interrupts"));
        let _ = writeln!(text, "| `{name}` | {operations} | {interrupts} | {other} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::linux::guest::COLUMNS;

    #[test]
    fn table_has_the_interrupts_of_both_boots() {
        let of = |line| Row::of_boot(line, Variant::Shootdown, 4, COLUMNS).expect("a row");
        let shared = table::summed(&[of("row purge 50 3 4 1000 0"), of("row exit 5 2 0 1000 0")]);
        let isolated = table::summed(&[of("row purge 50 6 7 1000 0"), of("row exit 5 1 1 9 0")]);
        let text = of_boots(&shared, &isolated);
        let rows: Vec<_> = text.lines().skip(2).collect();
        assert_eq!(rows, ["| `purge` | 50 | 7 | 13 |", "| `exit` | 5 | 2 | 2 |"]);
    }
}
