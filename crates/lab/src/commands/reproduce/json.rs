//! The results as JSON. The schema is stable: fields may be added, and no field changes.
//!
//! ```json
//! {"rows": [{
//!   "study": "x86-lazy-tlb",                      the published change
//!   "workload": "…", "machine": "…",              the workload and the simulated machine
//!   "metric": "…", "unit": "us",                  the measured quantity and its unit
//!   "better": "lower" | "higher",
//!   "published": {"before": 21.6, "after": 13.4} | null,
//!   "predicted": {"before": …, "after": …},       the simulator's predictions
//!   "shootdown": …,                               the predicted metric under shootdown
//!   "calibrated_on": "…" | null,                  the published figure that was fitted
//!   "violations": 0,                              translations used after their flush, all designs
//!   "hazards": {"before": …, "after": …, "shootdown": …},
//!                                                 page tables freed while a CPU could walk them
//!   "designs": [{"design", "value", "interrupts_sent", "interrupts_to_lazy", "flushes_full",
//!                "flushes_ranged", "violations", "hazards", "interrupts_to_non_users",
//!                "deferred_tables_peak", "deferred_tables_overflows", "broadcasts",
//!                "broadcast_wait_ns", "tags_allocated", "rollovers"}],
//!   "note": "…" | null                            a note on the figures
//! }],
//! "scaling": {                                    a workload with more and fewer CPUs, or null
//!   "workload": "…", "machine": "…", "unit": "…",
//!   "curves": [{"design": "…",
//!               "points": [{"cpus": 2, "value": …}, …],
//!               "linear_percent": …,    smallest rate per CPU, of that with the fewest CPUs
//!               "violations": 0}]
//! },
//! "choice": {               interrupt or broadcast, on machines that have both; or null
//!   "cells": [{"machine": "…", "workload": "…",
//!              "percent_worse": …,     the choice, compared with the better method alone
//!              "designs": [{"design", "time_us", "interrupts_sent", "broadcasts", "violations"}]}]
//! }}
//! ```

use serde::{Serialize, Serializer};

use crate::studies::{Pair, Row, Simulated};

#[derive(Serialize)]
struct JsonRow<'a> {
    study: &'a str,
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
            study: experiment.study.name(),
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
    fn schema_is_as_documented() {
        insta::assert_snapshot!(example::results().in_format(Format::Json));
    }
}
