//! The rows of the comparison.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::source::Variant;

/// The names of counts, in the order of the columns.
pub(super) type Columns = &'static [&'static str];

/// The work of one scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) scenario: String,
    pub(super) cpus: u32,
    pub(super) variant: Variant,
    columns: Columns,
    counts: Vec<u64>,
}

impl Row {
    /// Returns a row; `None` if the numbers of counts and of columns differ.
    pub(super) fn new(
        scenario: &str,
        cpus: u32,
        variant: Variant,
        columns: Columns,
        counts: Vec<u64>,
    ) -> Option<Self> {
        let is_complete = counts.len() == columns.len();
        let scenario = scenario.to_owned();
        is_complete.then_some(Self { scenario, cpus, variant, columns, counts })
    }

    /// Parses a line of the kernel's output; `None` if it is not a row.
    pub(super) fn of_boot(
        line: &str,
        variant: Variant,
        cpus: u32,
        columns: Columns,
    ) -> Option<Self> {
        let mut words = line.trim_end().strip_prefix("row ")?.split(' ');
        let scenario = words.next()?;
        Self::new(scenario, cpus, variant, columns, numbers(words))
    }

    /// Parses a line of the golden file; `None` if it is not a row.
    fn of_csv(line: &str, columns: Columns) -> Option<Self> {
        let mut cells = line.split(',');
        let (scenario, cpus, name) = (cells.next()?, cells.next()?.parse().ok()?, cells.next()?);
        let variant =
            [Variant::Stock, Variant::Shootdown].into_iter().find(|v| v.name() == name)?;
        Self::new(scenario, cpus, variant, columns, numbers(cells))
    }

    fn csv(&self) -> String {
        let counts = self.counts.iter().map(|count| format!(",{count}")).collect::<String>();
        format!("{},{},{}{counts}", self.scenario, self.cpus, self.variant.name())
    }

    /// Returns the count in a column.
    ///
    /// # Panics
    ///
    /// If there is no such column.
    pub(super) fn count(&self, column: &str) -> u64 {
        let at = self.columns.iter().position(|name| *name == column);
        self.counts[at.unwrap_or_else(|| panic!("no column {column}"))]
    }
}

/// Parses numbers up to the first word that is none.
fn numbers<'t>(words: impl Iterator<Item = &'t str>) -> Vec<u64> {
    words.map_while(|word| word.parse().ok()).collect()
}

/// Returns the rows as the golden file.
pub(super) fn csv(rows: &[Row], columns: Columns) -> String {
    let lines = rows.iter().map(|row| row.csv() + "\n");
    format!("scenario,cpus,variant,{}\n{}", columns.join(","), lines.collect::<String>())
}

/// Parses the golden file.
pub(super) fn of_csv(text: &str, columns: Columns) -> Vec<Row> {
    text.lines().filter_map(|line| Row::of_csv(line, columns)).collect()
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
    let logarithms = pairs.iter().map(|(stock, ours)| {
        (ours.count("instructions") as f64 / stock.count("instructions").max(1) as f64).ln()
    });
    let mean = (logarithms.sum::<f64>() / pairs.len().max(1) as f64).exp();
    (
        interrupts(|pair| pair.0.count("interrupts")),
        interrupts(|pair| pair.1.count("interrupts")),
        mean,
    )
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
        } else if differs(
            was.count("instructions"),
            is.count("instructions"),
            tolerance.instructions_percent,
        ) || differs(
            was.count("interrupts"),
            is.count("interrupts"),
            tolerance.interrupts_percent,
        ) {
            changes.push(format!(
                "{} CPUs, `{}`: {} instructions instead of {}, {} interrupts instead of {}",
                is.cpus,
                is.scenario,
                is.count("instructions"),
                was.count("instructions"),
                is.count("interrupts"),
                was.count("interrupts")
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
        let per =
            |of: fn(&Row) -> u64, row: &Row| of(row) as f64 / row.count("operations").max(1) as f64;
        let interrupts = |row| per(|row| row.count("interrupts"), row);
        let instructions = |row| per(|row| row.count("instructions"), row);
        let invalidations =
            |row| per(|row| row.count("pages_invalidated") + row.count("flushes_full"), row);
        let _ = writeln!(
            text,
            "| `{}` | {} | {:.2} | {:.2} | {:.0} | {:.0} | {:.2} | {:.2} |",
            stock.scenario,
            stock.count("operations"),
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

    const COLUMNS: Columns = super::super::COLUMNS;

    fn row(line: &str, variant: Variant) -> Row {
        Row::of_boot(line, variant, 4, COLUMNS).expect("it is a row")
    }

    #[test]
    fn row_survives_the_golden_file() {
        let rows = [row("row idle 200 0 1103866 200 3 0\r", Variant::Shootdown)];
        assert_eq!(rows[0].count("instructions"), 1_103_866);
        assert_eq!(of_csv(&csv(&rows, COLUMNS), COLUMNS), rows);
        assert_eq!(Row::of_boot("row idle 200", Variant::Stock, 4, COLUMNS), None);
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
