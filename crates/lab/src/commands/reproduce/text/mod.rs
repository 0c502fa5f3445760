//! Tables for people, and the results as such.

mod choice;

use std::fmt;

use crate::render::{UNCOUNTED, grouped, of_some, significant, times, unit};
use crate::studies::{Pair, Results, Row, Scaling};

pub(crate) use choice::verdict;

/// A table with aligned columns, two spaces apart.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Align {
    Left,
    Right,
}

impl Table {
    pub(crate) fn new<const N: usize>(columns: [(&'static str, Align); N]) -> Self {
        let columns = columns.map(|(name, align)| (name.to_owned(), align)).to_vec();
        Self { columns, rows: Vec::new() }
    }

    pub(crate) fn column(mut self, name: impl Into<String>, align: Align) -> Self {
        self.columns.push((name.into(), align));
        self
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        let name = &self.columns[column].0;
        cells.chain([name]).map(|cell| cell.chars().count()).max().unwrap_or(0)
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
        writeln!(f, "{}", line(&mut self.columns.iter().map(|(name, _)| name.as_str())))?;
        let rules: Vec<_> = widths.iter().map(|&width| "─".repeat(width)).collect();
        writeln!(f, "{}", line(&mut rules.iter().map(String::as_str)))?;
        self.rows
            .iter()
            .try_for_each(|row| writeln!(f, "{}", line(&mut row.iter().map(String::as_str))))
    }
}

/// What was published and what is predicted, then the designs side by side.
pub(crate) fn results(results: &Results) -> String {
    let mut text = summary(&results.rows);
    for row in &results.rows {
        let Row { experiment, machine, .. } = row;
        text += &format!(
            "\n{} {} on {machine}: {}, {} is better\n\n{}",
            experiment.seed,
            experiment.workload,
            experiment.metric,
            experiment.better.name(),
            designs(row)
        );
        if let Some(note) = experiment.note {
            text += &format!("{}\n", note.replace(" us", " µs"));
        }
    }
    if let Some(scaling) = &results.scaling {
        text += &format!(
            "\n{} on {} with more and fewer CPUs: {}, and what is left per CPU\n\n{}{UNCOUNTED}\n",
            scaling.workload,
            scaling.machine,
            unit(scaling.unit),
            curves(scaling)
        );
    }
    text += &results.choice.as_ref().map(choice::part).unwrap_or_default();
    text
}

fn curves(scaling: &Scaling) -> Table {
    let sizes = scaling.main_sizes();
    let with_size = |table: Table, cpus| table.column(format!("{cpus} CPUs"), Align::Right);
    let named = Table::new([("design", Align::Left)]);
    let mut table = sizes.iter().fold(named, with_size).column("of linear", Align::Right);
    for curve in &scaling.curves {
        let rates =
            sizes.iter().map(|&cpus| curve.rate(cpus).map_or_else(String::new, significant));
        let linear = format!("{} %", significant(curve.linear_percent()));
        table.row([curve.design.to_owned()].into_iter().chain(rates).chain([linear]));
    }
    table
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
            published.map_or_else(nothing, |Pair { before, after }| {
                change(before, "", after, row.published_gain())
            }),
            change(predicted.before.value, mark, predicted.after.value, Some(row.predicted_gain())),
            row.gain_error_percent().map_or_else(nothing, |error| format!("{error:+.1} %")),
            with_gain(row.shootdown.value, Some(row.shootdown_gain())),
            row.violations().to_string(),
        ]);
    }
    let mut text = table.to_string();
    for measurement in rows.iter().filter_map(|row| row.experiment.calibrated_on) {
        text += &format!("* fitted to this figure: {measurement}\n");
    }
    text
}

fn nothing() -> String {
    "-".to_owned()
}

fn change(before: f64, mark: &str, after: f64, gain: Option<f64>) -> String {
    format!("{}{mark} → {}", significant(before), with_gain(after, gain))
}

fn with_gain(value: f64, gain: Option<f64>) -> String {
    significant(value) + &times(gain).map(|times| format!(" ({times})")).unwrap_or_default()
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
        .column("hazards", Align::Right)
        .column("held", Align::Right);
    let of_some = of_some(row);
    for count in &of_some {
        table = table.column(count.name, Align::Right);
    }
    for (design, outcome) in row.designs() {
        let counts = [
            outcome.interrupts_sent,
            outcome.interrupts_to_lazy,
            outcome.interrupts_to_absent,
            outcome.flushes_full,
            outcome.flushes_ranged,
            outcome.violations,
            outcome.hazards,
            outcome.held_tables_peak,
        ];
        let named = [design.to_owned(), significant(outcome.value)];
        let of_some = of_some.iter().map(|count| count.cell(outcome));
        table.row(named.into_iter().chain(counts.map(grouped)).chain(of_some));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::studies::example;

    #[test]
    fn the_tables_are_as_reviewed() {
        insta::assert_snapshot!(results(&example::results()));
    }
}
