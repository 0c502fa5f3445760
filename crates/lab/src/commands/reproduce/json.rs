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
//!                "broadcast_wait_ns", "tags_allocated", "rollovers", "requests",
//!                "time_by_cause": {"user_ns": …, …}, "lock_waits", "lock_sleep_ns",
//!                "pages_discarded_in_place", "pages_reclaimable_max", "late_page_ns",
//!                "pages_predicted", "pages_predicted_in_vain", "replica_tables",
//!                "replica_links", "replica_link_faults",
//!                "interrupts_useful", "interrupts_early", "interrupts_in_vain", "bound",
//!                "interrupts_touched_2mib", "interrupts_touched_1gib",
//!                "interrupts_touched_512gib"}],
//!   "note": "…" | null                            a note on the figures
//! }],
//! "scaling": {                                    a workload with more and fewer CPUs, or null
//!   "workload": "…", "machine": "…", "unit": "…",
//!   "curves": [{"design": "…",
//!               "points": [{"cpus": 2, "value": …}, …],
//!               "linear_percent": …,    smallest rate per CPU, of that with the fewest CPUs
//!               "violations": 0}]
//! },
//! "predictions": [{         published results that were simulated once, and frozen
//!   "name", "about", "publication", "source", "machine", "cpus", "learnt", "violations",
//!   "frozen": {"recorded", "model"},
//!   "figures": [{"name", "unit", "published", "frozen", "frozen_error", "today", "today_error"}]
//! }]}
//! ```

use serde::{Serialize, Serializer};

use crate::studies::{Experiment, Pair, Row, Simulated};

#[derive(Serialize)]
struct JsonRow<'a> {
    #[serde(flatten)]
    experiment: &'a Experiment,
    machine: &'a str,
    predicted: Pair<f64>,
    shootdown: f64,
    violations: u64,
    hazards: Hazards,
    designs: &'a [Simulated],
}

#[derive(Serialize)]
struct Hazards {
    before: u64,
    after: u64,
    shootdown: u64,
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let [before, after, shootdown] = [self.before(), self.after(), self.shootdown()];
        let row = JsonRow {
            experiment: &self.experiment,
            machine: &self.machine,
            predicted: Pair { before: before.value, after: after.value },
            shootdown: shootdown.value,
            violations: self.violations(),
            hazards: Hazards {
                before: before.hazards,
                after: after.hazards,
                shootdown: shootdown.hazards,
            },
            designs: &self.designs,
        };
        row.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use crate::render::json;
    use crate::studies::tests as example;

    #[test]
    fn schema_is_as_documented() {
        insta::assert_snapshot!(json(&example::results()));
    }
}
