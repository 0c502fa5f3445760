//! Paths of both kernels, counted in the boots of the comparison: the instructions of single calls,
//! and the interrupts of stock in which a flush ran.

use std::fmt::Write as _;

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

/// A path of a kernel, as a row of the table.
struct Path {
    /// The name in the table.
    name: &'static str,
    /// The function in stock, and in ours.
    functions: [&'static str; 2],
    /// The program that takes the path, and its machine.
    program: (&'static str, u32),
    /// Of all calls, or of those in which a flush ran.
    calls: Calls,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Calls {
    All,
    Flushing,
}

const fn path(name: &'static str, function: &'static str, program: (&'static str, u32)) -> Path {
    Path { name, functions: [function, function], program, calls: Calls::All }
}

const SWITCH: &str = "switch_mm_irqs_off";
const LAZY: &str = "enter_lazy_tlb";
const RANGE: &str = "flush_tlb_mm_range";
/// The handlers of stock: of a function that several CPUs were asked to call, and of one CPU.
const HANDLERS: [&str; 2] = ["sysvec_call_function", "sysvec_call_function_single"];
const OUR_HANDLER: &str = "sysvec_shootdown";

/// The paths of the table.
const PATHS: [Path; 9] = [
    path("enter lazy", LAZY, ("turns-idle", 4)),
    path("return from lazy", SWITCH, ("turns-idle", 4)),
    path("switch to another space without tags", SWITCH, ("turns-processes", 1)),
    path("flush a page alone", RANGE, ("mprotect", 1)),
    path("flush 8 pages alone", RANGE, ("purge", 1)),
    Path {
        name: "flush a page and free page tables alone",
        functions: [RANGE, "shootdown_gather_flush"],
        program: ("tables-idle", 1),
        calls: Calls::All,
    },
    path("flush a page while the other three idle", RANGE, ("protect-idle", 4)),
    path("flush a batch of reclaim and wait for others", "arch_tlbbatch_flush", ("reclaim", 4)),
    Path {
        name: "handle a flush",
        functions: [HANDLERS[0], OUR_HANDLER],
        program: ("reclaim", 4),
        calls: Calls::Flushing,
    },
];

/// The functions whose calls are counted, of both kernels.
const COUNTED: [&str; 8] = [
    SWITCH,
    LAZY,
    RANGE,
    "arch_tlbbatch_flush",
    "shootdown_gather_flush",
    HANDLERS[0],
    HANDLERS[1],
    OUR_HANDLER,
];

/// The functions that flush in a handler.
const FLUSHES: [&str; 4] =
    ["flush_tlb_func", "do_flush_tlb_all", "do_kernel_range_flush", "shootdown_handle_flush_ipi"];

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
        for function in HANDLERS.iter().chain(&FLUSHES[..1]) {
            kernel.address(function)?;
        }
    }
    let argument = |kind: &str, function: &&str| {
        format!(",{kind}={:x}", kernel.address(function).unwrap_or(1))
    };
    let paths = COUNTED.iter().map(|function| argument("path", function));
    Ok(paths.chain(FLUSHES.iter().map(|function| argument("flush", function))).collect())
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
    (chunks.len() == COUNTED.len()).then(|| chunks.iter().map(of).collect())
}

/// Stock's interrupts in which a flush ran, of what the plugin wrote after a program.
pub(super) fn flushing(line: &str) -> Option<u64> {
    let counts = counts(line)?;
    let of_handlers =
        COUNTED.iter().zip(counts).filter(|(function, _)| HANDLERS.contains(function));
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
        let (program, cpus) = path.program;
        let function = path.functions[usize::from(variant == Variant::Shootdown)];
        let at = COUNTED.iter().position(|counted| *counted == function)?;
        let taken = runs.iter().find(|run| {
            (run.row.scenario.as_str(), run.row.cpus, run.row.variant) == (program, cpus, variant)
        })?;
        let counts = taken.counts[at];
        let (calls, instructions) = match path.calls {
            Calls::All => counts.all,
            Calls::Flushing => counts.flushing,
        };
        // A path that was not taken has no row, so that the golden file differs.
        (calls > 0).then(|| Row::new(path.name, cpus, variant, COLUMNS, vec![instructions]))?
    };
    let both = |path| [Variant::Stock, Variant::Shootdown].map(|variant| row(path, variant));
    PATHS.iter().flat_map(both).flatten().collect()
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
        (0..COUNTED.len()).map(|at| format!("{at} {} {at} {} ", 100 + at, 200 + at)).collect()
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
        for path in &PATHS {
            assert!(path.functions.iter().all(|it| COUNTED.contains(it)), "{}", path.name);
        }
    }
}
