//! Results for programs. The schema is stable: fields may be added at the end, none changes.
//!
//! ```json
//! {"rows": [{
//!   "seed": "000",                                the document
//!   "workload": "…", "machine": "…",              what ran, and on what
//!   "metric": "…", "unit": "us",                  what was measured, and in what
//!   "better": "lower" | "higher",
//!   "published": {"before": 21.6, "after": 13.4} | null, as the document says
//!   "predicted": {"before": …, "after": …},       as the simulator says
//!   "shootdown": …,                               the metric with this engine
//!   "calibrated_on": "…" | null,                  the published figure it was fitted to
//!   "violations": 0,                              dead translations used, under any design
//!   "hazards": {"before": …, "after": …, "shootdown": …},
//!                        freed page tables that a CPU's speculation could still have walked
//!   "designs": [{"design", "value", "interrupts_sent", "interrupts_to_lazy", "flushes_full",
//!                "flushes_ranged", "violations", "hazards", "interrupts_to_absent",
//!                "held_tables_peak", "held_tables_overflows", "broadcasts", "broadcast_wait_ns",
//!                "tags_taken", "rollovers"}],
//!   "note": "…" | null                            what to know of the figures
//! }],
//! "scaling": {                                    a workload with more and fewer CPUs, or null
//!   "workload": "…", "machine": "…", "unit": "…",
//!   "curves": [{"design": "…",
//!               "points": [{"cpus": 2, "value": …}, …],
//!               "linear_percent": …,    the least per CPU, of that with the fewest CPUs
//!               "violations": 0}]
//! },
//! "choice": {               interrupt or broadcast, on machines that have both; or null
//!   "cells": [{"machine": "…", "workload": "…",
//!              "percent_worse": …,     the choice, than the better of the two ways alone
//!              "designs": [{"design", "time_us", "interrupts_sent", "broadcasts", "violations"}]}]
//! }}
//! ```

mod choice;

use serde::Serialize;

use crate::studies::{Curve, Outcome, Pair, Point, Results, Row, Scaling};

#[derive(Serialize)]
struct Document<'a> {
    rows: Vec<JsonRow<'a>>,
    scaling: Option<JsonScaling<'a>>,
    choice: Option<choice::JsonChoice<'a>>,
}

#[derive(Serialize)]
struct JsonRow<'a> {
    seed: &'a str,
    workload: &'a str,
    machine: &'a str,
    metric: &'a str,
    unit: &'a str,
    better: &'a str,
    published: Option<Change>,
    predicted: Change,
    shootdown: f64,
    calibrated_on: Option<&'a str>,
    violations: u64,
    hazards: Hazards,
    designs: Vec<Design<'a>>,
    note: Option<&'a str>,
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
    held_tables_peak: u64,
    held_tables_overflows: u64,
    broadcasts: u64,
    broadcast_wait_ns: u64,
    tags_taken: u64,
    rollovers: u64,
}

#[derive(Serialize)]
struct JsonScaling<'a> {
    workload: &'a str,
    machine: &'a str,
    unit: &'a str,
    curves: Vec<JsonCurve<'a>>,
}

#[derive(Serialize)]
struct JsonCurve<'a> {
    design: &'a str,
    points: Vec<JsonPoint>,
    linear_percent: f64,
    violations: u64,
}

#[derive(Serialize)]
struct JsonPoint {
    cpus: usize,
    value: f64,
}

/// The results as one object.
pub(crate) fn results(results: &Results) -> String {
    let document = Document {
        rows: results.rows.iter().map(json_row).collect(),
        scaling: results.scaling.as_ref().map(json_scaling),
        choice: results.choice.as_ref().map(Into::into),
    };
    // Structures of numbers and strings always serialise.
    let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
    text.push('\n');
    text
}

fn json_row(row: &Row) -> JsonRow<'_> {
    let Row { experiment, machine, predicted, shootdown, .. } = row;
    let change = |Pair { before, after }| Change { before, after };
    JsonRow {
        seed: experiment.seed,
        workload: experiment.workload,
        machine,
        metric: experiment.metric,
        unit: experiment.unit,
        better: experiment.better.name(),
        published: experiment.published.map(change),
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
        note: experiment.note,
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
        held_tables_peak: outcome.held_tables_peak,
        held_tables_overflows: outcome.held_tables_overflows,
        broadcasts: outcome.broadcasts,
        broadcast_wait_ns: outcome.broadcast_wait_ns,
        tags_taken: outcome.tags_taken,
        rollovers: outcome.rollovers,
    }
}

fn json_scaling(scaling: &Scaling) -> JsonScaling<'_> {
    let Scaling { workload, machine, unit, .. } = scaling;
    JsonScaling { workload, machine, unit, curves: scaling.curves.iter().map(json_curve).collect() }
}

fn json_curve(curve: &Curve) -> JsonCurve<'_> {
    let point = |point: &Point| JsonPoint { cpus: point.cpus, value: point.rate };
    JsonCurve {
        design: curve.design,
        points: curve.points.iter().map(point).collect(),
        linear_percent: curve.linear_percent(),
        violations: curve.violations,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::studies::example;

    #[test]
    fn the_schema_is_as_documented() {
        insta::assert_snapshot!(results(&example::results()));
    }
}
