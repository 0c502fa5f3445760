//! The experiments of `experiments.toml`, each with its workload and metric.

use std::ffi::OsStr;
use std::sync::LazyLock;

use serde::Deserialize;
use shootdown_designs::Design;

use super::experiment::{Better, Experiment, MeasureOf, Pair, Study};
use super::{
    arc_asid_range, arm64_skip_broadcast, powerpc_shoot_lazies, x86_batched_unmap, x86_lazy_tlb,
};
use crate::machines::Embedded;

static EXPERIMENTS: LazyLock<Vec<Experiment>> = LazyLock::new(|| {
    let file: File =
        toml::from_str(include_str!("../../experiments.toml")).expect("a test reads the file");
    file.experiment.into_iter().map(Entry::experiment).collect()
});

/// The workloads and metrics of all experiments, by the names in the file.
const MEASURES: [&[(&str, MeasureOf)]; 5] = [
    x86_lazy_tlb::MEASURES,
    powerpc_shoot_lazies::MEASURES,
    arc_asid_range::MEASURES,
    arm64_skip_broadcast::MEASURES,
    x86_batched_unmap::MEASURES,
];

/// All experiments, in the order of their studies.
pub(crate) fn experiments() -> impl Iterator<Item = &'static Experiment> {
    EXPERIMENTS.iter()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    experiment: Vec<Entry>,
}

/// An entry of the file, which describes the fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    study: Study,
    workload: String,
    measure: Option<String>,
    machine: String,
    metric: String,
    unit: String,
    better: Better,
    published: Option<Pair<f64>>,
    designs: Pair<String>,
    #[serde(default)]
    peers: Vec<String>,
    calibrated_on: Option<String>,
    note: Option<String>,
}

impl Entry {
    /// Returns the experiment, whose texts live as long as the process.
    fn experiment(self) -> Experiment {
        let design =
            |name: &String| name.parse::<Design>().unwrap_or_else(|error| panic!("{error}"));
        let name = self.measure.as_ref().unwrap_or(&self.workload);
        let measure = MEASURES.iter().copied().flatten().find(|(it, _)| it == name);
        let Pair { before, after } = &self.designs;
        let leaked = |text: String| -> &'static str { text.leak() };
        Experiment {
            measure: measure.unwrap_or_else(|| panic!("there is no workload {name}")).1,
            study: self.study,
            machine: Embedded::named(OsStr::new(&self.machine)).expect("a machine"),
            better: self.better,
            published: self.published,
            designs: Pair { before: design(before), after: design(after) },
            peers: self.peers.iter().map(design).collect::<Vec<_>>().leak(),
            workload: leaked(self.workload),
            metric: leaked(self.metric),
            unit: leaked(self.unit),
            calibrated_on: self.calibrated_on.map(leaked),
            note: self.note.map(leaked),
        }
    }
}
