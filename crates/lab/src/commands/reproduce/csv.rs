//! The results as CSV: one line per row, with the figures of the JSON except for those of peers.

use crate::render::table::{Cell, Table};
use crate::studies::{Measurement, Row};

const COLUMNS: &str = "study,workload,machine,metric,unit,better,published_before,published_after,\
    predicted_before,predicted_after,shootdown,calibrated_on,violations";

type Count = fn(&Measurement) -> u64;

/// The counts that are printed for the design before the change, the design after it, and
/// shootdown.
const COUNTS: [(&str, Count); 11] = [
    ("hazards", |it| it.hazards),
    ("interrupts", |it| it.interrupts_sent),
    ("deferred_tables_peak", |it| it.deferred_tables_peak),
    ("broadcasts", |it| it.broadcasts),
    ("broadcast_wait_ns", |it| it.broadcast_wait_ns),
    ("tags_allocated", |it| it.tags_allocated),
    ("rollovers", |it| it.rollovers),
    ("interrupts_useful", |it| it.classes.interrupts_useful),
    ("interrupts_early", |it| it.classes.interrupts_early),
    ("interrupts_in_vain", |it| it.classes.interrupts_in_vain),
    ("bound", |it| it.classes.bound),
];

/// Returns the rows below a line of column names. Published figures that do not exist are empty.
pub(super) fn rows(rows: &[Row]) -> String {
    let names = |(name, _)| ["before", "after", "shootdown"].map(|of| format!("{name}_{of}"));
    let mut table =
        Table::default().left(COLUMNS.split(',')).left(COUNTS.into_iter().flat_map(names));
    for row in rows {
        let experiment = &row.experiment;
        let designs = [row.before(), row.after(), row.shootdown()];
        let published = |figure: Option<f64>| figure.map_or_else(String::new, |it| it.to_string());
        let words = [
            experiment.study.name().to_owned(),
            experiment.workload.to_owned(),
            row.machine.clone(),
            experiment.metric.to_owned(),
            experiment.unit.to_owned(),
            experiment.better.name().to_owned(),
            published(experiment.published.map(|pair| pair.before)),
            published(experiment.published.map(|pair| pair.after)),
        ];
        let counts = COUNTS.iter().flat_map(|(_, count)| designs.map(count).map(Cell::Count));
        let cells = words
            .into_iter()
            .chain(designs.map(|measurement| measurement.value.to_string()))
            .chain([experiment.calibrated_on.unwrap_or_default().to_owned()])
            .map(Cell::Text);
        table.row(cells.chain([Cell::Count(row.violations())]).chain(counts));
    }
    table.csv()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::studies::tests as example;

    #[test]
    fn every_line_has_every_column() {
        let text = rows(&example::rows());
        let columns: Vec<_> = text.lines().map(|line| line.split(',').count()).collect();
        assert_eq!(columns, [13 + 3 * COUNTS.len(); 5]);
        insta::assert_snapshot!(text);
    }
}
