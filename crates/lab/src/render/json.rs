//! Rows for programs. The schema is stable: fields may be added at the end, none changes.
//!
//! ```json
//! {"rows": [{
//!   "seed": "000",                                the document
//!   "workload": "…", "machine": "…",              what ran, and on what
//!   "metric": "…", "unit": "us",                  what was measured, and in what
//!   "better": "lower" | "higher",
//!   "published": {"before": 21.6, "after": 13.4}, as the document says
//!   "predicted": {"before": …, "after": …},       as the simulator says
//!   "shootdown": …,                               the metric with this engine
//!   "calibrated_on": "…" | null,                  the published figure it was fitted to
//!   "violations": 0,                              dead translations used, under any design
//!   "hazards": {"before": …, "after": …, "shootdown": …},
//!                        freed page tables that a CPU's speculation could still have walked
//!   "designs": [{"design", "value", "interrupts_sent", "interrupts_to_lazy", "flushes_full",
//!                "flushes_ranged", "violations", "hazards", "interrupts_to_absent"}]
//! }]}
//! ```

use serde::Serialize;

use crate::experiment::{Outcome, Pair, Row};

#[derive(Serialize)]
struct Document<'a> {
    rows: Vec<JsonRow<'a>>,
}

#[derive(Serialize)]
struct JsonRow<'a> {
    seed: &'a str,
    workload: &'a str,
    machine: &'a str,
    metric: &'a str,
    unit: &'a str,
    better: &'a str,
    published: Change,
    predicted: Change,
    shootdown: f64,
    calibrated_on: Option<&'a str>,
    violations: u64,
    hazards: Hazards,
    designs: Vec<Design<'a>>,
}

#[derive(Serialize)]
struct Change {
    before: f64,
    after: f64,
}

#[derive(Serialize)]
struct Hazards {
    before: u64,
    after: u64,
    shootdown: u64,
}

#[derive(Serialize)]
struct Design<'a> {
    design: &'a str,
    value: f64,
    interrupts_sent: u64,
    interrupts_to_lazy: u64,
    flushes_full: u64,
    flushes_ranged: u64,
    violations: u64,
    hazards: u64,
    interrupts_to_absent: u64,
}

/// The rows as one object.
pub(crate) fn rows(rows: &[Row]) -> String {
    let document = Document { rows: rows.iter().map(json_row).collect() };
    // Structures of numbers and strings always serialise.
    let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
    text.push('\n');
    text
}

fn json_row(row: &Row) -> JsonRow<'_> {
    let Row { experiment, machine, predicted, shootdown, .. } = row;
    let Pair { before, after } = experiment.published;
    JsonRow {
        seed: experiment.seed,
        workload: experiment.workload,
        machine,
        metric: experiment.metric,
        unit: experiment.unit,
        better: experiment.better.name(),
        published: Change { before, after },
        predicted: Change { before: predicted.before.value, after: predicted.after.value },
        shootdown: shootdown.value,
        calibrated_on: experiment.calibrated_on,
        violations: row.violations(),
        hazards: Hazards {
            before: predicted.before.hazards,
            after: predicted.after.hazards,
            shootdown: shootdown.hazards,
        },
        designs: row.designs().map(|(design, outcome)| json_design(design, outcome)).collect(),
    }
}

fn json_design<'a>(design: &'a str, outcome: &Outcome) -> Design<'a> {
    Design {
        design,
        value: outcome.value,
        interrupts_sent: outcome.interrupts_sent,
        interrupts_to_lazy: outcome.interrupts_to_lazy,
        flushes_full: outcome.flushes_full,
        flushes_ranged: outcome.flushes_ranged,
        violations: outcome.violations,
        hazards: outcome.hazards,
        interrupts_to_absent: outcome.interrupts_to_absent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::example;

    #[test]
    fn the_schema_is_as_documented() {
        insta::assert_snapshot!(rows(&example::rows()));
    }
}
