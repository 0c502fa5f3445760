//! The results as tables for reading.

use super::tables;
use crate::render::table::Medium;
use crate::render::unit;
use crate::studies::{Prediction, Results, Row, Scaling};

/// A limit of the Linux models that decides the result of the scaling experiment.
pub(super) const UNCOUNTED: &str = "Of these Linux models, only powerpc-counted counts the CPUs \
that are lazy on an address space. Linux does so on all architectures except powerpc.";

/// The meaning of the columns of predictions.
pub(super) const PREDICTIONS: &str = "published results that were simulated once, and frozen; and \
the same figures of today's model. Errors are in percentage points of the published figure.";

/// Returns the published and predicted figures, and then a table of designs for each experiment.
pub(super) fn results(results: &Results) -> String {
    let mut text = if results.rows.is_empty() { String::new() } else { summary(&results.rows) };
    for row in &results.rows {
        let Row { experiment, machine, .. } = row;
        text += &format!(
            "\n{} {} on {machine}: {}, {} is better\n\n{}",
            experiment.study.name(),
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
    text += &predictions(&results.predictions);
    text.trim_start().to_owned()
}

/// Returns a table of all predictions, and the origin of each.
fn predictions(predictions: &[Prediction]) -> String {
    if predictions.is_empty() {
        return String::new();
    }
    let table = tables::predictions(predictions);
    let mut text = format!("\nPredictions: {PREDICTIONS}\n\n{table}");
    for Prediction { name, about, publication, source, machine, cpus, frozen, learnt, .. } in
        predictions
    {
        text += &format!(
            "\n{name}: {about}\n  on {machine}, {cpus} CPUs\n  published: {publication}; {source}\n\
             \x20 frozen: {}; model: {}\n  learnt: {learnt}\n",
            frozen.recorded, frozen.model
        );
    }
    text
}

/// Returns the published and predicted figures, and the published figures that parameters were
/// fitted to.
pub(crate) fn summary(rows: &[Row]) -> String {
    let mut text = tables::summary(rows, Medium::Text).to_string();
    for measurement in rows.iter().filter_map(|row| row.experiment.calibrated_on) {
        text += &format!("* fitted to this figure: {measurement}\n");
    }
    text
}

fn scaling(scaling: &Scaling) -> String {
    format!(
        "\n{} on {} with more and fewer CPUs: {}, and the rate per CPU relative to the fewest \
         CPUs\n\
         \n{}{UNCOUNTED}\n",
        scaling.workload,
        scaling.machine,
        unit(scaling.unit),
        tables::curves(scaling)
    )
}

#[cfg(test)]
mod tests {
    use crate::studies::tests as example;

    #[test]
    fn tables_are_as_reviewed() {
        insta::assert_snapshot!(super::results(&example::results()));
    }
}
