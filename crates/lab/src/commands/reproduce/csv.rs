//! The rows for spreadsheets: one line each, the numbers of the JSON without those of peers.

use crate::render::table::{Cell, Table};
use crate::studies::{Measurement, Row};

const COLUMNS: &str = "seed,workload,machine,metric,unit,better,published_before,published_after,\
    predicted_before,predicted_after,shootdown,calibrated_on,violations,\
    hazards_before,hazards_after,hazards_shootdown,\
    interrupts_before,interrupts_after,interrupts_shootdown,\
    held_tables_peak_shootdown,\
    broadcasts_before,broadcasts_after,broadcasts_shootdown,\
    broadcast_wait_ns_before,broadcast_wait_ns_after,broadcast_wait_ns_shootdown,\
    tags_taken_before,tags_taken_after,tags_taken_shootdown,\
    rollovers_before,rollovers_after,rollovers_shootdown";

/// The rows under a line of names.
pub(super) fn rows(rows: &[Row]) -> String {
    let mut table = Table::default().left(COLUMNS.split(','));
    for row in rows {
        let experiment = &row.experiment;
        let designs = [row.before(), row.after(), row.shootdown()];
        let words = [
            experiment.study.number(),
            experiment.workload,
            &row.machine,
            experiment.metric,
            experiment.unit,
            experiment.better.name(),
        ];
        let published = experiment.published;
        // Empty, if nothing was published.
        let published = [published.map(|pair| pair.before), published.map(|pair| pair.after)]
            .map(|value| value.map_or_else(String::new, |value| value.to_string()));
        let counts = |count: fn(&Measurement) -> u64| designs.map(count).map(Cell::Count);
        let cells = words
            .map(Cell::from)
            .into_iter()
            .chain(published.map(Cell::from))
            .chain(designs.map(|measurement| measurement.value.to_string().into()))
            .chain([experiment.calibrated_on.unwrap_or_default().into()])
            .chain([Cell::Count(row.violations())])
            .chain(counts(|it| it.hazards))
            .chain(counts(|it| it.interrupts_sent))
            .chain([Cell::Count(row.shootdown().held_tables_peak)])
            .chain(counts(|it| it.broadcasts))
            .chain(counts(|it| it.broadcast_wait_ns))
            .chain(counts(|it| it.tags_taken))
            .chain(counts(|it| it.rollovers));
        table.row(cells);
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
        assert_eq!(columns, [32; 5]);
        insta::assert_snapshot!(text);
    }
}
