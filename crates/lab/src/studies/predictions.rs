//! Predictions: published results that were simulated once, and whose simulated figures are frozen.
//! The files in `predictions/` have the records; the workloads beside them repeat the simulation.

use std::collections::BTreeMap;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use shootdown_designs::Design;
use shootdown_run::text::{Cell, Row, Text};
use shootdown_sim::Cause;
use shootdown_sim::machine::Machine;

use crate::error::{Failure, SimulationError};
use crate::machines;

/// A record, and the workload that repeats it: the contents of their files.
struct Embedded {
    record: &'static str,
    workload: &'static str,
}

macro_rules! embedded {
    ($($name:literal),*) => {
        const EMBEDDED: &[Embedded] = &[$(Embedded {
            record: include_str!(concat!("../../../../predictions/", $name, ".toml")),
            workload: include_str!(concat!("../../../../predictions/", $name, ".workload")),
        },)*];
    };
}

embedded!("latr-munmap", "riscv-page-out");

/// The contents of a record.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    name: String,
    about: String,
    publication: String,
    source: String,
    machine: String,
    cpus: Option<usize>,
    /// Numbers of the machine that differ from its file.
    #[serde(default)]
    set: BTreeMap<String, f64>,
    frozen: Frozen,
    learnt: Learnt,
    #[serde(rename = "figure")]
    figures: Vec<RecordedFigure>,
}

/// The origin of the frozen figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Frozen {
    /// The day on which they were recorded, and by whom.
    pub(crate) recorded: String,
    /// The version of the model.
    pub(crate) model: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Learnt {
    text: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordedFigure {
    name: String,
    unit: String,
    read: Read,
    /// The designs that the figure is read from.
    designs: Vec<String>,
    published: f64,
    frozen: f64,
    /// The figure of today's model, as recorded.
    today: f64,
}

/// The way in which a figure is read from the rows of its designs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Read {
    /// The change of the time of an operation from the first design to the second, in percent.
    TimeChange,
    /// The share of the time in which the only busy thread waits for flushes, in percent.
    WaitShare,
}

/// A prediction, and its figures in today's model.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Prediction {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) publication: String,
    /// The sentence of the publication that has the figures.
    pub(crate) source: String,
    pub(crate) machine: String,
    pub(crate) cpus: usize,
    pub(crate) frozen: Frozen,
    /// The conclusions from the errors.
    pub(crate) learnt: String,
    pub(crate) figures: Vec<Figure>,
    /// Number of uses of a translation after its flush, under all designs.
    pub(crate) violations: u64,
}

/// A figure of a prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) unit: String,
    pub(crate) published: f64,
    /// The simulated figure when the prediction was made. It never changes.
    pub(crate) frozen: f64,
    /// The frozen figure less the published one.
    pub(crate) frozen_error: f64,
    /// The simulated figure of today's model.
    pub(crate) today: f64,
    /// Today's figure less the published one.
    pub(crate) today_error: f64,
}

impl Prediction {
    /// Repeats all predictions with today's model.
    pub(crate) fn all() -> Result<Vec<Self>, Failure> {
        EMBEDDED.par_iter().map(|it| it.prediction().map(|(prediction, _)| prediction)).collect()
    }
}

impl Embedded {
    /// Returns the prediction, and the recorded figures of today's model.
    fn prediction(&self) -> Result<(Prediction, Vec<f64>), Failure> {
        let record: Record = toml::from_str(self.record).expect("a test parses each record");
        let failed =
            |design: &str, cause: String| SimulationError::new(&record.name, design, cause);
        let text = Text::parse(&record.name, self.workload).expect("a test parses each workload");
        let machine = record.machine()?;
        let mut violations = 0;
        let mut row = |name: &String| -> Result<Row, SimulationError> {
            let design: Design = name.parse().map_err(|error| failed(name, format!("{error}")))?;
            let cell = Cell { workload: &text, machine: &machine, design, seed: 1 };
            let rows = cell.run().map_err(|error| failed(name, error.to_string()))?;
            let row = rows.into_iter().next();
            let row = row.ok_or_else(|| failed(name, "it measured nothing".to_owned()))?;
            violations += row.violations;
            Ok(row)
        };
        let mut figures = Vec::new();
        for figure in &record.figures {
            let rows = figure.designs.iter().map(&mut row).collect::<Result<Vec<_>, _>>()?;
            figures.push(figure.with_today(figure.read.figure(&rows)));
        }
        let recorded = record.figures.iter().map(|figure| figure.today).collect();
        let Record { name, about, publication, source, frozen, learnt, .. } = record;
        let (machine, cpus) = (machine.name.clone(), machine.cpu_count());
        let learnt = learnt.text;
        let prediction = Prediction {
            name,
            about,
            publication,
            source,
            machine,
            cpus,
            frozen,
            learnt,
            figures,
            violations,
        };
        Ok((prediction, recorded))
    }
}

impl Record {
    fn machine(&self) -> Result<Machine, Failure> {
        let failed = |cause| SimulationError::new(&self.name, &self.machine, cause);
        let mut machine = machines::find(self.machine.as_ref())?;
        for (key, value) in &self.set {
            machine = machine.with_number(key, *value).map_err(failed)?;
        }
        match self.cpus {
            Some(cpus) => Ok(machine.with_cpus(cpus).map_err(failed)?),
            None => Ok(machine),
        }
    }
}

impl RecordedFigure {
    fn with_today(&self, today: f64) -> Figure {
        let Self { published, frozen, .. } = *self;
        Figure {
            name: self.name.clone(),
            unit: self.unit.clone(),
            published,
            frozen,
            frozen_error: frozen - published,
            today,
            today_error: today - published,
        }
    }
}

impl Read {
    fn figure(self, rows: &[Row]) -> f64 {
        let each_ns = |row: &Row| row.time_ns as f64 / row.operations.max(1) as f64;
        match (self, rows) {
            (Self::TimeChange, [before, after]) => 100.0 * (each_ns(after) / each_ns(before) - 1.0),
            (Self::WaitShare, [row]) => {
                let waits_ns = row.time_by_cause[Cause::FlushWait].ns();
                100.0 * waits_ns as f64 / row.time_ns as f64
            }
            _ => f64::NAN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_figures_are_as_recorded() {
        for embedded in EMBEDDED {
            let (prediction, recorded) = embedded.prediction().unwrap_or_else(|it| panic!("{it}"));
            assert_eq!(prediction.violations, 0, "{}", prediction.name);
            assert!(!prediction.learnt.is_empty() && !prediction.figures.is_empty());
            for (figure, recorded) in prediction.figures.iter().zip(recorded) {
                let rounded = (figure.today * 10.0).round() / 10.0;
                assert_eq!(rounded, recorded, "{}: {}", prediction.name, figure.name);
            }
        }
    }

    /// A frozen figure is a record of the past. This test has the second copy of each.
    #[test]
    fn frozen_figures_never_change() {
        let frozen = |embedded: &Embedded| {
            let record: Record = toml::from_str(embedded.record).expect("a record");
            record.figures.iter().map(|it| (it.published, it.frozen)).collect::<Vec<_>>()
        };
        let frozen: Vec<_> = EMBEDDED.iter().flat_map(frozen).collect();
        assert_eq!(frozen, [(-70.8, -78.6), (68.17, 61.0), (8.64, 5.0)]);
    }

    #[test]
    fn record_with_unknown_key_is_refused() {
        let record = EMBEDDED[0].record.replace("about =", "abuot =");
        assert!(toml::from_str::<Record>(&record).is_err());
    }
}
