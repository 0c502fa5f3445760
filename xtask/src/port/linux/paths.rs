//! Paths of both kernels, counted in the boots of the comparison: the instructions of single calls,
//! and the interrupts of stock in which a flush ran.

use std::fmt::Write as _;
use std::sync::LazyLock;

use serde::Deserialize;

use super::guest::Boot;
use super::kernel::Kernel;
use super::plugin;
use crate::command::Failure;
use crate::port::row::{Columns, Row, pairs};
use crate::port::source::Variant;

/// The plugin of QEMU that counts.
pub(super) const PLUGIN: &str = "paths";

/// The counts of a run: those of the guest, and stock's interrupts in which a flush ran.
pub(super) const RUN_COLUMNS: Columns =
    &["operations", "calls", "flushes", "flushing", "instructions", "wrong"];

/// The golden file's columns.
pub(super) const COLUMNS: Columns = &["instructions"];

/// A path of a kernel, as a row of the table. `paths.toml` describes the fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Path {
    name: String,
    functions: [String; 2],
    program: (String, u32),
    #[serde(default)]
    only_flushing: bool,
}

/// The contents of `paths.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Paths {
    counted: Vec<String>,
    flushes: Vec<String>,
    paths: Vec<Path>,
}

static PATHS: LazyLock<Paths> =
    LazyLock::new(|| toml::from_str(include_str!("paths.toml")).expect("a test reads the file"));

/// The handlers of stock: of a function that several CPUs were asked to call, and of one CPU.
const HANDLERS: [&str; 2] = ["sysvec_call_function", "sysvec_call_function_single"];

/// The counts of a program's calls of one function: all, and those in which a flush ran. Of each,
/// the calls, and their most frequent number of instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    all: (u64, u64),
    flushing: (u64, u64),
}

/// A run of a program: its row, and the counts of the functions that are counted.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) row: Row,
    counts: Vec<Counts>,
}

/// Boots with the plugin. Returns the runs of programs, and all output of the guest.
pub(super) fn counted(
    boot: &Boot<'_>,
    plugin: &std::path::Path,
) -> Result<(Vec<Run>, String), Failure> {
    let (runs, output) = plugin::counted(boot, plugin, &arguments(boot.kernel)?)?;
    let run = |(row, [_, after]): plugin::Marked| of_line(&row, &after);
    let runs: Option<Vec<Run>> = runs.into_iter().map(run).collect();
    let cause = "the plugin of QEMU writes other counts than were asked for";
    Ok((runs.ok_or_else(|| Failure::new(cause, "compare paths.c with paths.rs"))?, output))
}

/// The plugin's arguments. A function that a kernel does not have is at an address that none has.
///
/// # Errors
///
/// If stock lacks a function without which no interrupt would count as one that flushes.
pub(super) fn arguments(kernel: &Kernel) -> Result<String, Failure> {
    if kernel.variant == Variant::Stock {
        for function in HANDLERS.into_iter().chain([PATHS.flushes[0].as_str()]) {
            kernel.address(function)?;
        }
    }
    let argument = |kind: &str, function: &String| {
        format!(",{kind}={:x}", kernel.address(function).unwrap_or(1))
    };
    let paths = PATHS.counted.iter().map(|function| argument("path", function));
    Ok(paths.chain(PATHS.flushes.iter().map(|function| argument("flush", function))).collect())
}

/// Parses what the plugin wrote; `None` if that has another form.
fn counts(line: &str) -> Option<Vec<Counts>> {
    let numbers: Vec<u64> =
        line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<_>>()?;
    let (chunks, []) = numbers.as_chunks::<4>() else { return None };
    let of = |&[calls, mode, flushing, mode_of_flushing]: &[u64; 4]| Counts {
        all: (calls, mode),
        flushing: (flushing, mode_of_flushing),
    };
    (chunks.len() == PATHS.counted.len()).then(|| chunks.iter().map(of).collect())
}

/// Stock's interrupts in which a flush ran, of what the plugin wrote after a program.
pub(super) fn flushing(line: &str) -> Option<u64> {
    let counts = counts(line)?;
    let of_handlers =
        PATHS.counted.iter().zip(counts).filter(|(it, _)| HANDLERS.contains(&it.as_str()));
    Some(of_handlers.map(|(_, counts)| counts.flushing.0).sum())
}

/// Adds what the plugin wrote to a row of the guest; `None` if that has another form.
fn of_line(row: &Row, line: &str) -> Option<Run> {
    let (counts, flushing) = (counts(line)?, flushing(line)?);
    let value = |column: &&str| if *column == "flushing" { flushing } else { row.count(column) };
    let values = RUN_COLUMNS.iter().map(value).collect();
    let row = Row::new(&row.scenario, row.cpus, row.variant, RUN_COLUMNS, values)?;
    Some(Run { row, counts })
}

/// The instructions of each path, of both kernels, as far as its machine was booted.
pub(super) fn of_runs(runs: &[Run]) -> Vec<Row> {
    let row = |path: &Path, variant: Variant| {
        let (program, cpus) = (path.program.0.as_str(), path.program.1);
        let function = &path.functions[usize::from(variant == Variant::Shootdown)];
        let at = PATHS.counted.iter().position(|counted| counted == function)?;
        let taken = runs.iter().find(|run| {
            (run.row.scenario.as_str(), run.row.cpus, run.row.variant) == (program, cpus, variant)
        })?;
        let counts = taken.counts[at];
        let (calls, instructions) = if path.only_flushing { counts.flushing } else { counts.all };
        // A path that was not taken has no row, so that the golden file differs.
        (calls > 0).then(|| Row::new(&path.name, cpus, variant, COLUMNS, vec![instructions]))?
    };
    let both = |path| [Variant::Stock, Variant::Shootdown].map(|variant| row(path, variant));
    PATHS.paths.iter().flat_map(both).flatten().collect()
}

/// Returns a table in Markdown of the paths.
pub(super) fn table(rows: &[Row]) -> String {
    let mut text = "| path | stock | ours |\n|---|---:|---:|\n".to_owned();
    for (stock, ours) in pairs(rows) {
        let of = |row: &Row| row.count("instructions");
        let _ = writeln!(text, "| {} | {} | {} |", stock.scenario, of(stock), of(ours));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::linux::guest;

    /// A line of the plugin: of each function, its place, 100 more, its place, and 200 more.
    fn line() -> String {
        (0..PATHS.counted.len()).map(|at| format!("{at} {} {at} {} ", 100 + at, 200 + at)).collect()
    }

    fn run(program: &str, cpus: u32, variant: Variant) -> Run {
        let line_of_guest = format!("row {program} 9 30 7 2000 0");
        let row = Row::of_boot(&line_of_guest, variant, cpus, guest::COLUMNS).expect("a row");
        of_line(&row, &line()).expect("a line of the plugin")
    }

    #[test]
    fn interrupts_that_flush_are_those_of_both_handlers() {
        let stock = run("mmap", 4, Variant::Stock).row;
        assert_eq!(stock.count("flushing"), 5 + 6);
        assert_eq!((stock.count("calls"), stock.count("instructions")), (30, 2000));
        assert!(of_line(&stock, "1 2 3 4").is_none() && of_line(&stock, "x").is_none());
    }

    #[test]
    fn path_is_of_its_program_and_machine() {
        let runs = [
            run("tables-idle", 1, Variant::Stock),
            run("tables-idle", 1, Variant::Shootdown),
            run("tables-idle", 4, Variant::Stock),
            run("reclaim", 4, Variant::Stock),
            run("reclaim", 4, Variant::Shootdown),
        ];
        let rows = of_runs(&runs);
        let tables = "| flush a page and free page tables alone | 102 | 104 |";
        let batch = "| flush a batch of reclaim and wait for others | 103 | 103 |";
        let handler = "| handle a flush | 205 | 207 |";
        let text = table(&rows);
        assert_eq!(text.lines().skip(2).collect::<Vec<_>>(), [tables, batch, handler], "{text}");
    }

    #[test]
    fn path_that_was_not_taken_has_no_row() {
        // The plugin's line has no call of the first function, that of switches.
        let runs = [run("turns-processes", 1, Variant::Stock)];
        assert!(of_runs(&runs).is_empty());
    }

    #[test]
    fn each_path_is_of_functions_that_are_counted() {
        for path in &PATHS.paths {
            assert!(path.functions.iter().all(|it| PATHS.counted.contains(it)), "{}", path.name);
        }
    }
}
