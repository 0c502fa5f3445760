//! Predictions: published results that were simulated once, and whose simulated figures are frozen.
//! The files in `predictions/` have the records; the workloads beside them repeat the simulation.

use std::collections::BTreeMap;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use shootdown_designs::Design;
use shootdown_run::text::{Cell, Row, Text};
use shootdown_sim::Cause;
use shootdown_sim::machine::{Machine, Policy};

use crate::error::{CannotRun, Failure};
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

embedded! {
    "latr-munmap", "riscv-page-out", "mm-tlb-gen", "process-madvise", "invlpgb-flush2",
    "kunpeng-page-out", "phone-page-out", "arm64-migration", "arm64-page-reuse", "rar-discards",
    "tlbi-domains", "tlbi-domains-forks", "tlbi-domains-pages", "mshare-faults", "luf-inference",
    "wasm-instances", "scavenger-ranges", "abis-discards", "preemptible-wait"
}

/// The contents of a record.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    name: String,
    about: String,
    publication: String,
    /// The place of the published figures; for an open forecast, what is published.
    source: String,
    machine: String,
    /// The scheduler, if it is not the machine's.
    scheduler: Option<Policy>,
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
    /// The knowledge of the published figures.
    pub(crate) knowledge: Knowledge,
}

/// The knowledge of the published figures when the simulated ones were frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Knowledge {
    /// Nobody who chose the workload had looked at them.
    Blind,
    /// They were known, or it is not recorded whether they were.
    Known,
    /// Nothing is published.
    Open,
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
    /// The runs that the figure is read from.
    runs: Vec<Run>,
    /// Missing if nothing is published.
    published: Option<f64>,
    frozen: f64,
    /// The error that was expected of the frozen figure, in its unit; missing if none was stated.
    error: Option<f64>,
    /// The figure of today's model, as recorded.
    today: f64,
}

/// A run of the workload.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    design: String,
    /// Parameters of the workload.
    #[serde(default)]
    parameters: BTreeMap<String, u64>,
    /// Numbers of the machine that differ for this run.
    #[serde(default)]
    set: BTreeMap<String, f64>,
    /// The interval that is read; the first if missing.
    interval: Option<String>,
}

/// The way in which a figure is read from the rows of its runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Read {
    /// The change of the time of an operation from the first run to the second, in percent.
    TimeChange,
    /// The change of the rate of operations, in percent.
    RateChange,
    /// The change of the number of interrupts, in percent.
    InterruptChange,
    /// The rate of operations, in thousands per second.
    Rate,
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
    pub(crate) published: Option<f64>,
    /// The simulated figure when the prediction was made. It never changes.
    pub(crate) frozen: f64,
    /// The error that was expected of it.
    pub(crate) error: Option<f64>,
    /// The frozen figure less the published one.
    pub(crate) frozen_error: Option<f64>,
    /// The simulated figure of today's model.
    pub(crate) today: f64,
    /// Today's figure less the published one.
    pub(crate) today_error: Option<f64>,
}

impl Figure {
    /// The part of the published figure by which a figure may differ from it.
    const SIZE: f64 = 0.25;

    /// Returns whether the direction is right and the size, in words; `open` without a published
    /// figure.
    pub(crate) fn verdict(published: Option<f64>, figure: f64) -> &'static str {
        match published {
            None => "open",
            Some(published) if published * figure <= 0.0 => "miss: direction",
            Some(published) if (figure / published - 1.0).abs() > Self::SIZE => "miss: size",
            Some(_) => "hit",
        }
    }
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
            |design: &str, cause: String| CannotRun::simulation(&record.name, design, cause);
        let text = Text::parse(&record.name, self.workload).expect("a test parses each workload");
        let machine = record.machine()?;
        let mut violations = 0;
        let mut row = |run: &Run| -> Result<Row, Failure> {
            let name = &run.design;
            let design: Design = name.parse().map_err(|error| failed(name, format!("{error}")))?;
            let mut text = text.clone();
            for (key, value) in &run.parameters {
                let set = text.set(key, &value.to_string());
                set.map_err(|error| failed(name, error.to_string()))?;
            }
            let mut machine = machine.clone();
            for (key, value) in &run.set {
                let set = machine.with_number(key, *value);
                machine = set.map_err(|error| failed(name, error.to_string()))?;
            }
            let cell = Cell { workload: &text, machine: &machine, design, seed: 1 };
            let rows = cell.run().map_err(|error| failed(name, error.to_string()))?;
            let is_wanted = |row: &Row| {
                let end = |interval: &String| row.workload.ends_with(&format!("/{interval}"));
                run.interval.as_ref().is_none_or(end)
            };
            let row = rows.into_iter().find(is_wanted);
            let row = row.ok_or_else(|| failed(name, "it measured nothing".to_owned()))?;
            violations += row.violations;
            Ok(row)
        };
        let mut figures = Vec::new();
        for figure in &record.figures {
            let rows = figure.runs.iter().map(&mut row).collect::<Result<Vec<_>, _>>()?;
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
        let failed = |cause| CannotRun::simulation(&self.name, &self.machine, cause);
        let mut machine = machines::find(self.machine.as_ref())?;
        machine.scheduler = self.scheduler.unwrap_or(machine.scheduler);
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
        let Self { published, frozen, error, .. } = *self;
        Figure {
            name: self.name.clone(),
            unit: self.unit.clone(),
            published,
            frozen,
            error,
            frozen_error: published.map(|published| frozen - published),
            today,
            today_error: published.map(|published| today - published),
        }
    }
}

impl Read {
    fn figure(self, rows: &[Row]) -> f64 {
        let each_ns = |row: &Row| row.time_ns as f64 / row.operations.max(1) as f64;
        match (self, rows) {
            (Self::TimeChange, [before, after]) => 100.0 * (each_ns(after) / each_ns(before) - 1.0),
            (Self::RateChange, [before, after]) => 100.0 * (each_ns(before) / each_ns(after) - 1.0),
            (Self::InterruptChange, [before, after]) => {
                100.0 * (after.interrupts as f64 / before.interrupts as f64 - 1.0)
            }
            (Self::Rate, [row]) => 1e6 / each_ns(row),
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

    /// The published and the frozen figure of each record, in the order of [`EMBEDDED`].
    const FROZEN: [(Option<f64>, f64); 30] = [
        (Some(-70.8), -78.6),
        (Some(68.17), 61.0),
        (Some(8.64), 5.0),
        (Some(160.0), 542.0),
        (Some(387.0), 80.0),
        (Some(-33.5), -33.0),
        (Some(-67.0), -93.5),
        (Some(58.3), 6.0),
        (Some(-12.5), -4.3),
        (Some(17.0), 45.0),
        (Some(-6.1), -4.3),
        (Some(78.0), 2.9),
        (Some(40.0), 36.5),
        (None, 20.5),
        (None, -8.7),
        (None, 0.2),
        (None, -15.0),
        (None, -2.7),
        (None, -0.1),
        (None, -85.6),
        (None, -78.0),
        (Some(-97.0), -54.9),
        (Some(-4.5), -3.1),
        (None, 871.6),
        (Some(2.2), 2.1),
        (Some(261.9), 284.4),
        (None, -59.2),
        (Some(-98.0), -100.0),
        (Some(12.0), 9.6),
        (None, -29.7),
    ];

    /// Frozen and published figures are records of the past. This test has the second copy of each.
    #[test]
    fn frozen_figures_never_change() {
        let frozen = |embedded: &Embedded| {
            let record: Record = toml::from_str(embedded.record).expect("a record");
            record.figures.iter().map(|it| (it.published, it.frozen)).collect::<Vec<_>>()
        };
        let frozen: Vec<_> = EMBEDDED.iter().flat_map(frozen).collect();
        assert_eq!(frozen, FROZEN);
    }

    /// The table of predictions follows from the records. With `UPDATE_BOOK` set, it is written.
    #[test]
    fn page_has_table_of_records() {
        let book = concat!(env!("CARGO_MANIFEST_DIR"), "/../../predictions/README.md");
        let text = std::fs::read_to_string(book).expect("the page");
        let [start, end] = ["<!-- predictions -->\n", "<!-- end of predictions -->"];
        let (before, rest) = text.split_once(start).expect("the start of the table");
        let (_, after) = rest.split_once(end).expect("the end of the table");
        let written = format!("{before}{start}{}{end}{after}", table());
        if std::env::var_os("UPDATE_BOOK").is_some() {
            std::fs::write(book, &written).expect("a page that can be written");
        } else {
            assert_eq!(text, written, "run this test with UPDATE_BOOK=1");
        }
        let chapter = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/studies.md");
        let chapter = std::fs::read_to_string(chapter).expect("the chapter");
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let hits = table().lines().last().map(words).expect("the line of hits");
        assert!(words(&chapter).contains(&hits), "docs/studies.md lacks: {hits}");
    }

    /// Returns the table of all records, and the number of hits.
    fn table() -> String {
        let mut table = "| prediction | known? | published | frozen | | today | |\n".to_owned();
        table += "|---|---|---|---|---|---|---|\n";
        let (mut hits, mut todays, mut published) = (0, 0, 0);
        for embedded in EMBEDDED {
            let record: Record = toml::from_str(embedded.record).expect("a record");
            for RecordedFigure { name, unit, published: of, frozen, error, today, .. } in
                &record.figures
            {
                let verdicts = [*frozen, *today].map(|figure| Figure::verdict(*of, figure));
                let counts = [&mut hits, &mut todays];
                counts
                    .into_iter()
                    .zip(verdicts)
                    .for_each(|(count, it)| *count += u32::from(it == "hit"));
                published += u32::from(of.is_some());
                let of = of.map_or_else(|| "none yet".to_owned(), |of| format!("{of} {unit}"));
                let error = error.map(|error| format!(" ± {error}")).unwrap_or_default();
                let knowledge = format!("{:?}", record.frozen.knowledge).to_lowercase();
                table += &format!(
                    "| `{}`: {name} | {knowledge} | {of} | {frozen}{error} {unit} | {} | \
                     {today} {unit} | {} |\n",
                    record.name, verdicts[0], verdicts[1]
                );
            }
        }
        table
            + &format!(
                "\nOf {published} published figures, the frozen ones hit {hits}, and today's \
             {todays}.\n"
            )
    }

    #[test]
    fn record_with_unknown_key_is_refused() {
        let record = EMBEDDED[0].record.replace("about =", "abuot =");
        assert!(toml::from_str::<Record>(&record).is_err());
    }
}
