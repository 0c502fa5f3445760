//! The results for people.

use super::tables;
use crate::render::table::Medium;
use crate::render::unit;
use crate::studies::{Choice, Results, Row, Scaling};

/// What the models of Linux leave out, where that decides the result.
pub(super) const UNCOUNTED: &str = "Of the models of Linux only linux-counted counts the CPUs that \
are lazy on an address space, as Linux does on all but powerpc.";

/// The published and the predicted figures, then the designs side by side.
pub(super) fn results(results: &Results) -> String {
    let mut text = summary(&results.rows);
    for row in &results.rows {
        let Row { experiment, machine, .. } = row;
        text += &format!(
            "\n{} {} on {machine}: {}, {} is better\n\n{}",
            experiment.study.number(),
            experiment.workload,
            experiment.metric,
            experiment.better.name(),
            tables::designs(row, Medium::Text)
        );
        if let Some(note) = experiment.note {
            text += &format!("{}\n", note.replace(" us", " µs"));
        }
    }
    text += &results.scaling.as_ref().map(scaling).unwrap_or_default();
    text + &results.choice.as_ref().map(choice).unwrap_or_default()
}

/// The published and the predicted figures, and the figures that something was fitted to.
pub(crate) fn summary(rows: &[Row]) -> String {
    let mut text = tables::summary(rows, Medium::Text).to_string();
    for measurement in rows.iter().filter_map(|row| row.experiment.calibrated_on) {
        text += &format!("* fitted to this figure: {measurement}\n");
    }
    text
}

fn scaling(scaling: &Scaling) -> String {
    format!(
        "\n{} on {} with more and fewer CPUs: {}, and what is left per CPU\n\n{}{UNCOUNTED}\n",
        scaling.workload,
        scaling.machine,
        unit(scaling.unit),
        tables::curves(scaling, Medium::Text)
    )
}

/// A table for each machine, and in how many cells the choice is too much worse.
fn choice(choice: &Choice) -> String {
    let mut text = "\nInterrupt or broadcast, on machines that have both: this engine with either \
                    way alone, and choosing, in µs\n"
        .to_owned();
    for cells in choice.cells.chunk_by(|one, other| one.machine == other.machine) {
        text += &format!("\n{}\n\n{}", cells[0].machine, tables::choice(cells, Medium::Text));
    }
    text + "\n" + &verdict(choice) + "\n"
}

/// In how many cells the choice is too much worse, in a sentence.
pub(super) fn verdict(choice: &Choice) -> String {
    format!(
        "The choice is at most {} % worse than the better way in {} of {} cells.",
        Choice::PERCENT_MAX,
        choice.cells.iter().filter(|cell| !cell.is_bad()).count(),
        choice.cells.len()
    )
}

#[cfg(test)]
mod tests {
    use crate::studies::tests as example;

    #[test]
    fn the_tables_are_as_reviewed() {
        insta::assert_snapshot!(super::results(&example::results()));
    }
}
