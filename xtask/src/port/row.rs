//! The rows of the comparison.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::source::Variant;

/// The work of one scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) scenario: String,
    pub(super) cpus: u32,
    pub(super) variant: Variant,
    pub(super) operations: u64,
    pub(super) interrupts: u64,
    /// Instructions of all CPUs; 0 if they were not counted.
    pub(super) instructions: u64,
    pub(super) pages_invalidated: u64,
    pub(super) flushes_full: u64,
    pub(super) stale_reads: u64,
}

/// The first line of the golden file.
const HEADER: &str = "scenario,cpus,variant,operations,interrupts,instructions,pages_invalidated,\
                      flushes_full,stale_reads";

impl Row {
    /// Parses a line of the kernel's output; `None` if it is not a row.
    pub(super) fn of_boot(line: &str, variant: Variant, cpus: u32) -> Option<Self> {
        let mut words = line.trim_end().strip_prefix("row ")?.split(' ');
        let scenario = words.next()?.to_owned();
        let numbers: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        Self::of_numbers(scenario, cpus, variant, &numbers)
    }

    fn of_numbers(scenario: String, cpus: u32, variant: Variant, numbers: &[u64]) -> Option<Self> {
        let &[operations, interrupts, instructions, pages_invalidated, flushes_full, stale_reads] =
            numbers
        else {
            return None;
        };
        Some(Self {
            scenario,
            cpus,
            variant,
            operations,
            interrupts,
            instructions,
            pages_invalidated,
            flushes_full,
            stale_reads,
        })
    }

    /// Parses a line of the golden file; `None` if it is not a row.
    fn of_csv(line: &str) -> Option<Self> {
        let mut cells = line.split(',');
        let (scenario, cpus) = (cells.next()?.to_owned(), cells.next()?.parse().ok()?);
        let name = cells.next()?;
        let variant =
            [Variant::Stock, Variant::Shootdown].into_iter().find(|v| v.name() == name)?;
        let numbers: Vec<u64> = cells.map_while(|cell| cell.parse().ok()).collect();
        Self::of_numbers(scenario, cpus, variant, &numbers)
    }

    fn csv(&self) -> String {
        format!(
            "{},{},{},{},{},{},{},{},{}",
            self.scenario,
            self.cpus,
            self.variant.name(),
            self.operations,
            self.interrupts,
            self.instructions,
            self.pages_invalidated,
            self.flushes_full,
            self.stale_reads
        )
    }
}

/// Returns the rows as the golden file.
pub(super) fn csv(rows: &[Row]) -> String {
    let lines = rows.iter().map(|row| row.csv() + "\n");
    format!("{HEADER}\n{}", lines.collect::<String>())
}

/// Parses the golden file.
pub(super) fn of_csv(text: &str) -> Vec<Row> {
    text.lines().filter_map(Row::of_csv).collect()
}

/// A scenario with some CPUs, in stock and with the engine.
pub(super) type Pair<'a> = (&'a Row, &'a Row);

/// Returns the rows in pairs: stock, and with the engine.
pub(super) fn pairs(rows: &[Row]) -> Vec<Pair<'_>> {
    let key = |row: &Row| (row.scenario.clone(), row.cpus);
    let of = |variant| rows.iter().filter(move |row| row.variant == variant);
    let ours: BTreeMap<_, _> = of(Variant::Shootdown).map(|row| (key(row), row)).collect();
    of(Variant::Stock).filter_map(|stock| Some((stock, *ours.get(&key(stock))?))).collect()
}

/// The interrupts of all rows, stock and ours, and the geometric mean of the ratios of
/// instructions.
pub(super) fn summary(pairs: &[Pair<'_>]) -> (u64, u64, f64) {
    let interrupts = |of: fn(&Pair<'_>) -> u64| pairs.iter().map(of).sum();
    let logarithms = pairs
        .iter()
        .map(|(stock, ours)| (ours.instructions as f64 / stock.instructions.max(1) as f64).ln());
    let mean = (logarithms.sum::<f64>() / pairs.len().max(1) as f64).exp();
    (interrupts(|pair| pair.0.interrupts), interrupts(|pair| pair.1.interrupts), mean)
}

/// The differences from the golden counts that are no change, in percent. Another version of QEMU,
/// or another layout of the kernel, gives another order of events.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tolerance {
    pub(super) instructions_percent: u64,
    pub(super) interrupts_percent: u64,
}

/// Returns a line for each row whose counts differ from the golden ones by more than is tolerated.
pub(super) fn changes(golden: &[Row], found: &[Row], tolerance: Tolerance) -> Vec<String> {
    let differs = |was: u64, is: u64, percent: u64| was.abs_diff(is) > was * percent / 100 + 16;
    let mut changes: Vec<String> = Vec::new();
    if golden.len() != found.len() {
        changes.push(format!("{} rows instead of {}", found.len(), golden.len()));
    }
    for (was, is) in golden.iter().zip(found) {
        if (was.cpus, &was.scenario) != (is.cpus, &is.scenario) {
            changes.push(format!("`{}` instead of `{}`", is.scenario, was.scenario));
        } else if differs(was.instructions, is.instructions, tolerance.instructions_percent)
            || differs(was.interrupts, is.interrupts, tolerance.interrupts_percent)
        {
            changes.push(format!(
                "{} CPUs, `{}`: {} instructions instead of {}, {} interrupts instead of {}",
                is.cpus,
                is.scenario,
                is.instructions,
                was.instructions,
                is.interrupts,
                was.interrupts
            ));
        }
    }
    changes
}

/// Returns a table in Markdown of the rows with these CPUs, per operation.
pub(super) fn table(rows: &[Row], cpus: u32) -> String {
    let mut text =
        "| scenario | operations | interrupts, stock | ours | instructions, stock | ours | \
                    invalidations, stock | ours |\n|---|---:|---:|---:|---:|---:|---:|---:|\n"
            .to_owned();
    let pairs = pairs(rows);
    for (stock, ours) in pairs.iter().filter(|(stock, _)| stock.cpus == cpus) {
        let per = |of: fn(&Row) -> u64, row: &Row| of(row) as f64 / row.operations.max(1) as f64;
        let interrupts = |row| per(|row| row.interrupts, row);
        let instructions = |row| per(|row| row.instructions, row);
        let invalidations = |row| per(|row| row.pages_invalidated + row.flushes_full, row);
        let _ = writeln!(
            text,
            "| `{}` | {} | {:.2} | {:.2} | {:.0} | {:.0} | {:.2} | {:.2} |",
            stock.scenario,
            stock.operations,
            interrupts(stock),
            interrupts(ours),
            instructions(stock),
            instructions(ours),
            invalidations(stock),
            invalidations(ours)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(line: &str, variant: Variant) -> Row {
        Row::of_boot(line, variant, 4).expect("it is a row")
    }

    #[test]
    fn row_survives_the_golden_file() {
        let rows = [row("row idle 200 0 1103866 200 3 0\r", Variant::Shootdown)];
        assert_eq!(rows[0].instructions, 1_103_866);
        assert_eq!(of_csv(&csv(&rows)), rows);
        assert_eq!(Row::of_boot("row idle 200", Variant::Stock, 4), None);
    }

    #[test]
    fn changed_counts_are_named() {
        let row = |line| row(line, Variant::Shootdown);
        let golden = [row("row idle 1 600 10000 0 0 0")];
        let tolerance = Tolerance { instructions_percent: 2, interrupts_percent: 20 };
        let changes = |golden: &[Row], found: &[Row]| changes(golden, found, tolerance);
        assert!(changes(&golden, &[row("row idle 1 610 10100 0 0 0")]).is_empty());
        assert_eq!(changes(&golden, &[row("row idle 1 800 10000 0 0 0")]).len(), 1);
        assert_eq!(changes(&golden, &[row("row idle 1 600 10300 0 0 0")]).len(), 1);
        assert_eq!(changes(&golden, &[row("row busy 1 600 10000 0 0 0")]).len(), 1);
        assert_eq!(changes(&golden, &[]).len(), 1);
    }

    #[test]
    fn pairs_are_of_one_scenario_and_machine() {
        let rows = [
            row("row idle 1 600 100 0 0 0", Variant::Stock),
            row("row idle 1 0 25 0 0 0", Variant::Shootdown),
            row("row storm 1 0 25 0 0 0", Variant::Shootdown),
        ];
        let pairs = pairs(&rows);
        assert_eq!(pairs, [(&rows[0], &rows[1])]);
        let (stock, ours, mean) = summary(&pairs);
        assert_eq!((stock, ours), (600, 0));
        assert!((mean - 0.25).abs() < 1e-9);
        assert!(table(&rows, 4).contains("| `idle` | 1 | 600.00 | 0.00 | 100 | 25 |"));
    }
}
