//! Rows for spreadsheets: one line each, the same numbers as the JSON's without the designs' own.

use std::fmt::Write as _;

use crate::studies::Row;

const HEADER: &str = "seed,workload,machine,metric,unit,better,published_before,published_after,\
    predicted_before,predicted_after,shootdown,calibrated_on,violations,\
    hazards_before,hazards_after,hazards_shootdown,\
    interrupts_before,interrupts_after,interrupts_shootdown,\
    held_tables_peak_shootdown,\
    broadcasts_before,broadcasts_after,broadcasts_shootdown,\
    broadcast_wait_ns_before,broadcast_wait_ns_after,broadcast_wait_ns_shootdown,\
    tags_taken_before,tags_taken_after,tags_taken_shootdown,\
    rollovers_before,rollovers_after,rollovers_shootdown";

/// The rows under a line of names.
pub(crate) fn rows(rows: &[Row]) -> String {
    let mut text = format!("{HEADER}\n");
    for row in rows {
        let Row { experiment, machine, predicted, shootdown, .. } = row;
        let words = [
            experiment.seed,
            experiment.workload,
            machine,
            experiment.metric,
            experiment.unit,
            experiment.better.name(),
        ];
        let published = experiment.published;
        // Empty, if nothing was published.
        let published = [published.map(|pair| pair.before), published.map(|pair| pair.after)];
        let values = [predicted.before.value, predicted.after.value, shootdown.value];
        let outcomes = [predicted.before, predicted.after, *shootdown];
        let fields: Vec<String> = words
            .map(quoted)
            .into_iter()
            .chain(published.map(|value| value.map_or_else(String::new, |it| it.to_string())))
            .chain(values.map(|value| value.to_string()))
            .chain([quoted(experiment.calibrated_on.unwrap_or_default())])
            .chain([row.violations().to_string()])
            .chain(outcomes.map(|outcome| outcome.hazards.to_string()))
            .chain(outcomes.map(|outcome| outcome.interrupts_sent.to_string()))
            .chain([shootdown.held_tables_peak.to_string()])
            .chain(outcomes.map(|outcome| outcome.broadcasts.to_string()))
            .chain(outcomes.map(|outcome| outcome.broadcast_wait_ns.to_string()))
            .chain(outcomes.map(|outcome| outcome.tags_taken.to_string()))
            .chain(outcomes.map(|outcome| outcome.rollovers.to_string()))
            .collect();
        let _ = writeln!(text, "{}", fields.join(","));
    }
    text
}

/// In quotes if it has to be (RFC 4180).
pub(crate) fn quoted(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::studies::example;

    #[test]
    fn every_line_has_every_column() {
        let text = rows(&example::rows());
        let columns: Vec<_> = text.lines().map(|line| line.split(',').count()).collect();
        assert_eq!(columns, [32; 5]);
        insta::assert_snapshot!(text);
    }

    #[test]
    fn commas_and_quotes_stay_within_their_field() {
        assert_eq!(quoted("a, \"b\""), "\"a, \"\"b\"\"\"");
        assert_eq!(quoted("plain"), "plain");
    }
}
