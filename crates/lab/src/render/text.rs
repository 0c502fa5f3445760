//! Tables for people, and the rows as such.

use std::fmt;

use super::{grouped, significant, unit};
use crate::experiment::Row;

/// A table with aligned columns, two spaces apart.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Align {
    Left,
    Right,
}

impl Table {
    pub(crate) fn new<const N: usize>(columns: [(&'static str, Align); N]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn column(mut self, name: &'static str, align: Align) -> Self {
        self.columns.push((name, align));
        self
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        let name = self.columns[column].0;
        cells.map(String::as_str).chain([name]).map(|cell| cell.chars().count()).max().unwrap_or(0)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths: Vec<_> = (0..self.columns.len()).map(|column| self.width(column)).collect();
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut line = String::new();
            for ((cell, width), (_, align)) in cells.zip(&widths).zip(&self.columns) {
                line += &match align {
                    Align::Left => format!("{cell:width$}  "),
                    Align::Right => format!("{cell:>width$}  "),
                };
            }
            line.trim_end().to_owned()
        };
        writeln!(f, "{}", line(&mut self.columns.iter().map(|(name, _)| *name)))?;
        let rules: Vec<_> = widths.iter().map(|&width| "─".repeat(width)).collect();
        writeln!(f, "{}", line(&mut rules.iter().map(String::as_str)))?;
        self.rows
            .iter()
            .try_for_each(|row| writeln!(f, "{}", line(&mut row.iter().map(String::as_str))))
    }
}

/// The rows: what was published and what is predicted, then the designs side by side.
pub(crate) fn rows(rows: &[Row]) -> String {
    let mut text = summary(rows);
    for row in rows {
        let Row { experiment, machine, .. } = row;
        text += &format!(
            "\n{} {} on {machine}: {}, {} is better\n\n{}",
            experiment.seed,
            experiment.workload,
            experiment.metric,
            experiment.better.name(),
            designs(row)
        );
    }
    text
}

/// What was published and what is predicted, and what was fitted to what.
pub(crate) fn summary(rows: &[Row]) -> String {
    let mut table = Table::new([("seed", Align::Left), ("workload", Align::Left)])
        .column("unit", Align::Left)
        .column("published", Align::Right)
        .column("predicted", Align::Right)
        .column("error", Align::Right)
        .column("shootdown", Align::Right)
        .column("violations", Align::Right);
    for row in rows {
        let experiment = &row.experiment;
        let (published, predicted) = (experiment.published, &row.predicted);
        let mark = if experiment.calibrated_on.is_some() { "*" } else { "" };
        table.row([
            experiment.seed.to_owned(),
            experiment.workload.to_owned(),
            unit(experiment.unit).to_owned(),
            change(published.before, "", published.after, row.published_gain()),
            change(predicted.before.value, mark, predicted.after.value, row.predicted_gain()),
            format!("{:+.1} %", row.gain_error_percent()),
            format!(
                "{} (×{})",
                significant(row.shootdown.value),
                significant(row.shootdown_gain())
            ),
            row.violations().to_string(),
        ]);
    }
    let mut text = table.to_string();
    for measurement in rows.iter().filter_map(|row| row.experiment.calibrated_on) {
        text += &format!("* fitted to this figure: {measurement}\n");
    }
    text
}

fn change(before: f64, mark: &str, after: f64, gained: f64) -> String {
    format!("{}{mark} → {} (×{})", significant(before), significant(after), significant(gained))
}

fn designs(row: &Row) -> Table {
    let mut table = Table::new([("design", Align::Left)])
        .column(unit(row.experiment.unit), Align::Right)
        .column("interrupts", Align::Right)
        .column("to lazy", Align::Right)
        .column("to absent", Align::Right)
        .column("full flushes", Align::Right)
        .column("ranged", Align::Right)
        .column("violations", Align::Right)
        .column("hazards", Align::Right);
    for (design, outcome) in row.designs() {
        let counts = [
            outcome.interrupts_sent,
            outcome.interrupts_to_lazy,
            outcome.interrupts_to_absent,
            outcome.flushes_full,
            outcome.flushes_ranged,
            outcome.violations,
            outcome.hazards,
        ];
        let named = [design.to_owned(), significant(outcome.value)];
        table.row(named.into_iter().chain(counts.map(grouped)));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::example;

    #[test]
    fn the_tables_are_as_reviewed() {
        insta::assert_snapshot!(rows(&example::rows()));
    }
}
