//! A mix of stress-ng's stressors with fixed operations, counted on both kernels.

use std::path::Path;
use std::sync::LazyLock;

use serde::Deserialize;

use super::believe::stress;
use super::believe::suite::{self, Runs};
use super::configuration::Configuration;
use super::kernel::Kernel;
use super::plugin::{self, Marks};
use super::{BOOK, WORDS, has_emulator, paths, table};
use crate::boots::golden;
use crate::command::Failure;
use crate::parallel;
use crate::port::machine::Clock;
use crate::port::row::{self, Row};
use crate::port::source::{Arch, Variant};

/// The golden file.
pub(super) const COUNTS: &str = "ports/linux/stress.csv";

/// The contents of `mix.toml`: a stressor, its instances, the numbers of operations of all of them
/// together, one for each run, and more options.
#[derive(Deserialize)]
struct Mix {
    stressors: Vec<(String, u32, Vec<u64>, String)>,
}

static MIX: LazyLock<Mix> =
    LazyLock::new(|| toml::from_str(include_str!("mix.toml")).expect("a test reads the file"));

/// For each stressor, of the guest's clock. No stressor takes so long.
const SECONDS: u32 = 600;
const CPUS: u32 = BOOK.1;

/// Compares both kernels, and updates the golden file and the book.
pub(super) fn compare() -> Result<(), Failure> {
    has_emulator(Arch::X86_64)?;
    let (program, kernels) = stress::ready(Configuration::Small)?;
    let list = runs().map(|(_, _, line)| line + "\n").collect::<String>();
    let archive = suite::archive("mix", &list, &stress::members(program)?)?;
    let plugin = plugin::compile(paths::PLUGIN)?;
    let found = parallel::map(&kernels, |kernel| counted(kernel, &archive, &plugin));
    let rows = found.into_iter().collect::<Result<Vec<_>, _>>()?.concat();
    golden::check_file(COUNTS, &row::csv(&rows, table::COLUMNS))?;
    println!("{}", of_mix(&rows));
    check_book(&rows)
}

/// All runs: the stressor, the number of operations, and the line of the guest's list.
fn runs() -> impl Iterator<Item = (&'static str, u64, String)> {
    MIX.stressors.iter().flat_map(|(name, instances, numbers, more)| {
        numbers.iter().map(move |operations| {
            let words = format!("{instances} --{name}-ops {operations} {more}");
            (name.as_str(), *operations, stress::line(name, words.trim_end(), SECONDS))
        })
    })
}

/// Boots a kernel, and returns a row for each stressor.
fn counted(kernel: &Kernel, archive: &Path, plugin: &Path) -> Result<Vec<Row>, Failure> {
    let boot = kernel.boot(archive, (CPUS, Clock::Instructions), WORDS, "");
    let (output, marks) = plugin::output(&boot, plugin, &paths::arguments(kernel)?)?;
    rows(&suite::parse(&output), &marks, kernel.variant)
}

fn rows(verdicts: &Runs, marks: &Marks, variant: Variant) -> Result<Vec<Row>, Failure> {
    let row = |((name, operations, line), marks): ((&str, u64, String), &[String; 2])| {
        let run = verdicts.get(&line).filter(|run| run.end == "exit 0")?;
        let [calls, flushes, instructions] = run.took[..] else { return None };
        let flushing = paths::flushing(&marks[1])?;
        let counts = vec![operations, calls, flushes, flushing, instructions, 0];
        let is_good = run.count("not ok") + run.count("skip") == 0;
        is_good.then(|| Row::new(name, CPUS, variant, paths::RUN_COLUMNS, counts)).flatten()
    };
    let found = runs().zip(marks).map(|(run, marks)| {
        let cause = format!("{} does not succeed on {}", run.0, variant.name());
        row((run, marks)).ok_or_else(|| Failure::new(cause, "boot it by hand"))
    });
    let found = found.collect::<Result<Vec<_>, _>>()?;
    if found.len() != runs().count() {
        return Err(Failure::new("the guest ended before its list", "boot it by hand"));
    }
    Ok(table::summed(&found))
}

/// Compares the table in the book with the rows, or updates it outside of CI.
pub(super) fn check_book(rows: &[Row]) -> Result<(), Failure> {
    golden::check_part(BOOK.0, "stress", &of_mix(rows))
}

/// Returns a table in Markdown of all stressors, and their sums.
fn of_mix(rows: &[Row]) -> String {
    let of = |variant| rows.iter().filter(move |row| row.variant == variant);
    let all = [Variant::Stock, Variant::Shootdown].map(|variant| {
        let sum = |column| of(variant).map(|row| row.count(column)).sum();
        let counts = table::COLUMNS.iter().copied().map(sum).collect();
        Row::new("all", CPUS, variant, table::COLUMNS, counts)
    });
    table::of_machine(
        &rows.iter().cloned().chain(all.into_iter().flatten()).collect::<Vec<_>>(),
        CPUS,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stressor_that_fails_is_not_counted() {
        let run = |(_, _, line)| format!("enter {line}\ntook 9 7 5000\nleave exit 0\n");
        let output = runs().map(run).collect::<String>();
        let marks: Marks = runs().map(|_| ["0 ".repeat(32), "3 2 1 4 ".repeat(8)]).collect();
        let of = |output: &str, variant| rows(&suite::parse(output), &marks, variant);
        let found = [Variant::Stock, Variant::Shootdown].map(|it| of(&output, it).expect("rows"));
        let table = of_mix(&found.concat());
        assert!(table.contains("| `munmap` | 40 | 2 | 7 | 9 | 16 | 5 | 5 |\n"), "{table}");
        assert!(table.ends_with(" | 60 | 210 | 270 | 480 | 150 | 150 |\n"), "{table}");
        let bad = "stress-ng: fail:  [71] mmap: wrong byte at 0x12\ntook 9 7";
        for output in [output.replacen("exit 0", "exit 2", 1), output.replacen("took 9 7", bad, 1)]
        {
            let failure = of(&output, Variant::Stock).unwrap_err();
            assert_eq!(failure.cause(), "bad-altstack does not succeed on stock");
        }
        let short = rows(&suite::parse(&output), &marks[1..].to_vec(), Variant::Stock);
        assert_eq!(short.unwrap_err().cause(), "the guest ended before its list");
    }
}
