//! The counts of the comparison, and their tables.

use std::fmt::Write as _;

use crate::port::row::{Columns, Pair, Row, pairs};
use crate::port::source::Variant;

/// The sums over all runs of a program. `flushing` are the interrupts in which a flush ran, `least`
/// and `most` the interrupts of one run.
pub(super) const COLUMNS: Columns =
    &["operations", "runs", "interrupts", "flushing", "least", "most", "instructions", "wrong"];

/// Returns the sums over the runs of each program, in the order of the programs.
pub(super) fn summed(runs: &[Row]) -> Vec<Row> {
    let mut sums = Vec::new();
    let key = |row: &Row| (row.scenario.clone(), row.cpus, row.variant);
    for runs in runs.chunk_by(|one, other| key(one) == key(other)) {
        let sum = |column| runs.iter().map(|row| row.count(column)).sum::<u64>();
        let (least, most) = (runs.iter().map(interrupts).min(), runs.iter().map(interrupts).max());
        let counts = vec![
            sum("operations"),
            runs.len() as u64,
            runs.iter().map(interrupts).sum(),
            runs.iter().map(flushing).sum(),
            least.unwrap_or(0),
            most.unwrap_or(0),
            sum("instructions"),
            sum("wrong"),
        ];
        let Row { scenario, cpus, variant, .. } = &runs[0];
        sums.extend(Row::new(scenario, *cpus, *variant, COLUMNS, counts));
    }
    sums
}

/// The interrupts between CPUs. Stock flushes by function calls, which it counts; ours has a vector
/// of its own.
fn interrupts(row: &Row) -> u64 {
    let own = if row.variant == Variant::Shootdown { row.count("flushes") } else { 0 };
    row.count("calls") + own
}

/// The interrupts in which a flush ran: in stock, the [plugin](super::paths) counts them.
fn flushing(row: &Row) -> u64 {
    match row.variant {
        Variant::Stock => row.count("flushing"),
        Variant::Shootdown => row.count("flushes"),
    }
}

/// Returns a table in Markdown of the programs on a machine.
pub(super) fn of_machine(rows: &[Row], cpus: u32) -> String {
    let head = "| program | operations | interrupts that flush, stock | ours | all interrupts, \
                stock | ours | 1000 instructions, stock | ours |\n\
                |---|---:|---:|---:|---:|---:|---:|---:|\n";
    let columns = [("flushing", 1), ("interrupts", 1), ("instructions", 1000)];
    of_columns(rows, cpus, head, &columns)
}

/// Returns a table in Markdown of some columns of the programs on a machine, each in a unit.
pub(super) fn of_columns(rows: &[Row], cpus: u32, head: &str, columns: &[(&str, u64)]) -> String {
    let mut text = head.to_owned();
    for (stock, ours) in pairs(rows).iter().filter(|(stock, _)| stock.cpus == cpus) {
        let _ = write!(text, "| `{}` | {} |", stock.scenario, stock.count("operations"));
        for (column, unit) in columns {
            let (theirs, found) = (stock.count(column) / unit, ours.count(column) / unit);
            let _ = write!(text, " {theirs} | {found} |");
        }
        text.push('\n');
    }
    text
}

/// Returns a table in Markdown of the sums over the programs, for each machine. Programs with
/// several runs, whose counts vary, are apart.
pub(super) fn of_machines(rows: &[Row]) -> String {
    let mut text = "| CPUs | interrupts that flush, stock | ours | under a lock, stock | ours | \
                    programs with more in ours | all interrupts, ours of stock | instructions |\n\
                    |---:|---:|---:|---:|---:|---|---:|---:|\n"
        .to_owned();
    let pairs = pairs(rows);
    for pairs in pairs.chunk_by(|one, other| one.0.cpus == other.0.cpus) {
        let varies = |row: &Row| row.count("runs") > 1;
        let sum = |column, several: Option<bool>| {
            let is_counted = |(row, _): &&Pair<'_>| several.is_none_or(|is| varies(row) == is);
            sums(pairs.iter().filter(is_counted), column)
        };
        let more = more(pairs, |row| row.count("flushing"));
        let (once, several) = (sum("flushing", Some(false)), sum("flushing", Some(true)));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {more} | {} | {} |",
            pairs[0].0.cpus,
            once.0,
            once.1,
            several.0,
            several.1,
            percent(sum("interrupts", Some(false))),
            percent(sum("instructions", None)),
        );
    }
    text
}

/// The sums of a column, of stock and of ours.
pub(super) fn sums<'p>(pairs: impl Iterator<Item = &'p Pair<'p>>, column: &str) -> (u64, u64) {
    pairs.fold((0, 0), |sums, (stock, ours)| {
        (sums.0 + stock.count(column), sums.1 + ours.count(column))
    })
}

/// The programs of which ours has more, with the counts.
pub(super) fn more(pairs: &[Pair<'_>], count: impl Fn(&Row) -> u64) -> String {
    let more = pairs.iter().filter_map(|(stock, ours)| {
        let (theirs, found) = (count(stock), count(ours));
        (found > theirs).then(|| format!("`{}` ({found} to {theirs})", stock.scenario))
    });
    let more = more.collect::<Vec<_>>().join(", ");
    if more.is_empty() { "none".to_owned() } else { more }
}

/// The second number as a part of the first.
fn percent((stock, ours): (u64, u64)) -> String {
    if stock == 0 {
        return "–".to_owned();
    }
    format!("{:.1} %", ours as f64 * 100.0 / stock as f64)
}

/// What a program does on one CPU, where nothing but its paths differs.
const PATHS: [(&str, &str); 6] = [
    ("mprotect", "write a page, protect and allow it: two flushes"),
    ("purge", "write 8 pages, and drop them: a flush"),
    ("tables-idle", "map and unmap a page: a flush that frees page tables"),
    ("turns-processes", "one turn each: two switches of spaces"),
    ("exit", "fork and exit"),
    ("exec", "fork, exec and exit"),
];

/// Returns a table in Markdown of the instructions for each operation on one CPU.
pub(super) fn of_paths(rows: &[Row]) -> String {
    let mut text =
        "| an operation of | stock | ours | difference |\n|---|---:|---:|---:|\n".to_owned();
    let pairs = pairs(rows);
    for (program, what) in PATHS {
        let found = pairs.iter().find(|(row, _)| row.cpus == 1 && row.scenario == program);
        let Some((stock, ours)) = found else { continue };
        let per = |row: &Row| row.count("instructions") as f64 / row.count("operations") as f64;
        let (stock, ours) = (per(stock), per(ours));
        let _ = writeln!(
            text,
            "| `{program}`: {what} | {stock:.0} | {ours:.0} | {:+.1} % |",
            (ours / stock - 1.0) * 100.0
        );
    }
    text
}

/// Returns a table in Markdown of the programs that run several times: the interrupts of the runs
/// with the fewest and the most.
pub(super) fn of_spreads(rows: &[Row]) -> String {
    let mut text =
        "| program | CPUs | runs | stock, least to most | ours |\n|---|---:|---:|---|---|\n"
            .to_owned();
    let spread = |row: &Row| format!("{} to {}", row.count("least"), row.count("most"));
    for (stock, ours) in pairs(rows).iter().filter(|(stock, _)| stock.count("runs") > 1) {
        let (name, runs) = (&stock.scenario, stock.count("runs"));
        let (theirs, found) = (spread(stock), spread(ours));
        let _ = writeln!(text, "| `{name}` | {} | {runs} | {theirs} | {found} |", stock.cpus);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::linux::paths;

    fn runs(variant: Variant) -> Vec<Row> {
        let line = |line| Row::of_boot(line, variant, 4, paths::RUN_COLUMNS).expect("a row");
        vec![
            line("row mmap 9 30 7 7 2000 0"),
            line("row mmap 10 10 3 2 4000 0"),
            line("row exit 5 1 0 0 9000 0\r"),
        ]
    }

    #[test]
    fn runs_are_summed_with_their_spread() {
        let [stock, ours] = [Variant::Stock, Variant::Shootdown].map(|of| summed(&runs(of)));
        let of = |row: &Row| COLUMNS.iter().map(|column| row.count(column)).collect::<Vec<_>>();
        assert_eq!(of(&stock[0]), [19, 2, 40, 9, 10, 30, 6000, 0]);
        assert_eq!(of(&ours[0]), [19, 2, 50, 10, 13, 37, 6000, 0]);
        assert_eq!(stock.len(), 2);
        let rows = [stock, ours].concat();
        assert!(of_machine(&rows, 4).contains("| `mmap` | 19 | 9 | 10 | 40 | 50 | 6 | 6 |\n"));
        let machines = of_machines(&rows);
        assert!(
            machines.contains("| 4 | 0 | 0 | 9 | 10 | `mmap` (10 to 9) | 100.0 % | 100.0 % |\n"),
            "{machines}"
        );
        assert!(of_spreads(&rows).contains("| `mmap` | 4 | 2 | 10 to 30 | 13 to 37 |\n"));
    }
}
