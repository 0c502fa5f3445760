//! CPUs that the command line isolates: what interrupts a thread that polls on one of them, while
//! the kernel changes its own pages.

use std::fmt::Write as _;
use std::path::Path;

use super::guest::{self, Boot};
use super::kernel::Kernel;
use crate::command::Failure;
use crate::port::boot;
use crate::port::machine::Clock;
use crate::port::row::{Columns, Row, pairs};
use crate::port::source::Variant;

/// What the guest prints of the polling thread and its CPU.
const POLLED: Columns = &[
    "operations",
    "interrupts",
    "calls",
    "flushes",
    "turns",
    "gaps_1us",
    "gaps_10us",
    "gaps_100us",
    "gaps_1ms",
    "longest_ns",
];

/// The counts of the golden file: the interrupts are those between CPUs that the polling thread's
/// takes. Its own timer varies with what ran before.
pub(super) const COLUMNS: Columns = &["operations", "interrupts", "instructions"];

const CPUS: u32 = 4;

/// CPU 3 has no timer, no callbacks, no watchdog, and no other thread. A kernel that executes what
/// is no code ends at once.
pub(super) const WORDS: &str = "mitigations=off nohz_full=3 isolcpus=domain,managed_irq,3 \
                                rcu_nocbs=3 irqaffinity=0 tsc=reliable nowatchdog oops=panic";

/// The programs whose counts repeat, for one boot each: what a program leaves behind on CPU 3 is
/// done in the time of the next one.
const COUNTED: [&str; 2] = ["entries,10000:polled-filters,200", "polled-modules,20"];

/// A minute of everything, and a while with NMIs.
const LONG: &str = "polled-seconds,60:polled-nmis,100";

/// A CPU that enters the kernel without a word keeps the old code of filters.
const FORGETFUL: &str = "forget_on_entry:filters,50";

/// Boots both kernels, and returns the rows of the golden file.
///
/// # Errors
///
/// If a flush of ours interrupts the polling thread, if a CPU runs a filter that is gone, or if one
/// that forgets to catch up does not.
pub(super) fn compare(kernels: &[Kernel; 2], archives: [&Path; 2]) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for (kernel, archive) in kernels.iter().zip(archives) {
        let boot = |clock, run| kernel.boot(archive, (CPUS, clock), WORDS, run);
        let mut all = Vec::new();
        for run in COUNTED {
            let output = boot(Clock::Instructions, run).output()?;
            rows.extend(rows_of(&output, kernel.variant)?);
            all.extend(boot::parse(&output, kernel.variant, CPUS, POLLED)?);
        }
        let long = polled(&boot(Clock::Host, LONG))?;
        println!("{}, with the host's clock:\n\n{}", kernel.variant.name(), of_gaps(&long));
        all.extend(long);
        // Stock's flushes are calls. Other interrupts also depend on how the host schedules.
        let flushes: u64 = all.iter().map(|row| row.count("flushes")).sum();
        if kernel.variant == Variant::Shootdown && flushes > 0 {
            let cause = format!("flushes interrupt an isolated CPU {flushes} times");
            return Err(Failure::new(cause, "find those that free page tables, or miss a hook"));
        }
    }
    let ours = |run| kernels[1].boot(archives[1], (CPUS, Clock::Host), WORDS, run);
    super::expect_none("QEMU, with an isolated CPU", wrong(&ours("filters,50"))?)?;
    // A CPU that executes what is no code any more stops the kernel.
    if wrong(&ours(FORGETFUL)).is_ok_and(|found| found == 0) {
        return Err(Failure::new(
            "no CPU runs old code if an isolated one forgets to catch up",
            "find out why ports/linux/guest does not detect it",
        ));
    }
    println!("an isolated CPU that forgets to catch up runs old code");
    Ok(rows)
}

fn between_cpus(row: &Row) -> u64 {
    row.count("calls") + row.count("flushes")
}

fn wrong(boot: &Boot<'_>) -> Result<u64, Failure> {
    Ok(boot.rows()?.0.iter().map(|row| row.count("wrong")).sum())
}

fn polled(boot: &Boot<'_>) -> Result<Vec<Row>, Failure> {
    boot::parse(&boot.output()?, boot.kernel.variant, CPUS, POLLED)
}

/// The golden rows of a boot: of the polling thread's CPU, and of the program without one.
fn rows_of(output: &str, variant: Variant) -> Result<Vec<Row>, Failure> {
    let polled = boot::parse(output, variant, CPUS, POLLED)?;
    let all = boot::parse(output, variant, CPUS, guest::COLUMNS)?;
    let of = |row: &Row| {
        let own = polled.iter().find(|polled| polled.scenario == row.scenario);
        let interrupts = own.map_or(0, between_cpus);
        let counts = vec![row.count("operations"), interrupts, row.count("instructions")];
        Row::new(&row.scenario, CPUS, variant, COLUMNS, counts)
    };
    Ok(all.iter().filter_map(of).collect())
}

/// Returns a table in Markdown of the golden rows.
pub(super) fn of_counts(rows: &[Row]) -> String {
    let mut text = "| program | operations | interrupts of CPU 3 by others, stock | ours |\n\
                    |---|---:|---:|---:|\n"
        .to_owned();
    for (stock, ours) in pairs(rows).iter().filter(|(stock, _)| stock.scenario != "entries") {
        let (name, operations) = (&stock.scenario, stock.count("operations"));
        let (theirs, found) = (stock.count("interrupts"), ours.count("interrupts"));
        let _ = writeln!(text, "| `{name}` | {operations} | {theirs} | {found} |");
    }
    text
}

/// Returns a sentence about the cost of a system call on an isolated CPU.
pub(super) fn of_entries(rows: &[Row]) -> String {
    let pairs = pairs(rows);
    let Some((stock, ours)) = pairs.iter().find(|(stock, _)| stock.scenario == "entries") else {
        return String::new();
    };
    let per = |row: &Row| row.count("instructions") as f64 / row.count("operations") as f64;
    let (stock, ours) = (per(stock), per(ours));
    format!("A system call there takes {stock:.0} instructions in stock, and {ours:.0} in ours.\n")
}

/// Returns a table in Markdown of the times between two turns of the poll.
fn of_gaps(rows: &[Row]) -> String {
    let mut text = "| program | operations | interrupts | turns | gaps ≥ 1 µs | ≥ 10 µs | \
                    ≥ 100 µs | ≥ 1 ms | longest, µs |\n\
                    |---|---:|---:|---:|---:|---:|---:|---:|---:|\n"
        .to_owned();
    for row in rows {
        let of = |column: &&str| row.count(column).to_string();
        let counts: Vec<_> = POLLED[..2].iter().chain(&POLLED[4..9]).map(of).collect();
        let longest = row.count("longest_ns") / 1000;
        let _ = writeln!(text, "| `{}` | {} | {longest} |", row.scenario, counts.join(" | "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "row polled-filters 9 70 66 0 5000 40 30 20 1 1234567\r\n\
                          row polled-filters 9 200 3 8000 0\r\nrow entries 10 5 0 4000 0\r\n";

    fn rows(variant: Variant) -> Vec<Row> {
        rows_of(OUTPUT, variant).expect("rows of both kinds")
    }

    #[test]
    fn interrupts_are_those_of_the_polling_cpu() {
        let rows = [rows(Variant::Stock), rows(Variant::Shootdown)].concat();
        assert!(of_counts(&rows).ends_with("---:|\n| `polled-filters` | 9 | 66 | 66 |\n"));
        assert!(of_entries(&rows).contains("takes 400 instructions in stock, and 400 in ours"));
    }

    #[test]
    fn gaps_are_shown() {
        let polled = boot::parse(OUTPUT, Variant::Stock, CPUS, POLLED).expect("a row");
        let shown = "| `polled-filters` | 9 | 70 | 5000 | 40 | 30 | 20 | 1 | 1234 |\n";
        assert!(of_gaps(&polled).ends_with(shown), "{}", of_gaps(&polled));
    }
}
