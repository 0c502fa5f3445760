//! The results for programs. The schema is stable: fields may be added at the end, none changes.
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

use serde::{Serialize, Serializer};

use crate::studies::{Pair, Row, Simulated};

#[derive(Serialize)]
struct JsonRow<'a> {
    seed: &'a str,
    workload: &'a str,
    machine: &'a str,
    metric: &'a str,
    unit: &'a str,
    better: &'a str,
    published: Option<Pair<f64>>,
    predicted: Pair<f64>,
    shootdown: f64,
    calibrated_on: Option<&'a str>,
    violations: u64,
    hazards: Hazards,
    designs: &'a [Simulated],
    note: Option<&'a str>,
}

#[derive(Serialize)]
struct Hazards {
    before: u64,
    after: u64,
    shootdown: u64,
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (experiment, before, after) = (&self.experiment, self.before(), self.after());
        let shootdown = self.shootdown();
        let row = JsonRow {
            seed: experiment.study.number(),
            workload: experiment.workload,
            machine: &self.machine,
            metric: experiment.metric,
            unit: experiment.unit,
            better: experiment.better.name(),
            published: experiment.published,
            predicted: Pair { before: before.value, after: after.value },
            shootdown: shootdown.value,
            calibrated_on: experiment.calibrated_on,
            violations: self.violations(),
            hazards: Hazards {
                before: before.hazards,
                after: after.hazards,
                shootdown: shootdown.hazards,
            },
            designs: &self.designs,
            note: experiment.note,
        };
        row.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use crate::render::{Format, Printed as _};
    use crate::studies::tests as example;

    #[test]
    fn the_schema_is_as_documented() {
        insta::assert_snapshot!(example::results().in_format(Format::Json));
    }
}
