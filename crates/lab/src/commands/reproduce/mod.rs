//! `shootdown reproduce`: simulates the studies, and compares published measurements with
//! predictions.

mod json;
pub(crate) mod page;
mod tables;
pub(crate) mod text;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use rayon::prelude::*;
use shootdown_designs::Design;
use shootdown_sim::machine::Machine;

use crate::error::{Failure, Violations, shown};
use crate::output::{Output, print};
use crate::render::Readable;
use crate::studies::{
    CONTEXT_SWITCHES, Conditions, Experiment, Prediction, Results, Row, Runs, Scale, Scaling,
    Simulated, Study, experiments, simulate,
};
use crate::{machines, progress};

pub(crate) const EXAMPLES: &str = include_str!("../../../help/reproduce.txt").trim_ascii_end();

#[derive(Args, Clone, Debug)]
pub(crate) struct Reproduce {
    /// The seed of the simulator's random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The format of the output
    #[arg(long, value_enum, default_value_t = Readable::Text)]
    format: Readable,
    /// Run only the experiments of this study, or only the predictions
    #[arg(long, value_name = "STUDY", value_enum)]
    only: Option<Only>,
    /// Write a page with plots to this file
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Run every experiment on this machine instead of its own: a name, or a .toml file
    #[arg(long, value_name = "MACHINE")]
    machine: Option<OsString>,
    /// Simulate less, in seconds instead of minutes, with larger errors
    #[arg(long)]
    quick: bool,
}

/// The part of the results that is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Only {
    /// The experiments of a study.
    Study(Study),
    /// The predictions.
    Predictions,
}

impl ValueEnum for Only {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self::Study(Study::X86LazyTlb),
            Self::Study(Study::PowerpcShootLazies),
            Self::Study(Study::ArcAsidRange),
            Self::Study(Study::Arm64SkipBroadcast),
            Self::Study(Study::X86BatchedUnmap),
            Self::Predictions,
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::Study(study) => study.to_possible_value(),
            Self::Predictions => Some(
                PossibleValue::new("predictions")
                    .help("Published results that were simulated once, and repeated today"),
            ),
        }
    }
}

impl Reproduce {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let page =
            self.report.as_ref().map(|path| Output::page(path, "--report", &[])).transpose()?;
        let results = self.request()?.results()?;
        if let Some(page) = &page {
            page.write(&page::page_of(&results, &page::Others::default()))?;
        }
        print(&self.format.of(&results, text::results))?;
        if let Some(page) = &page {
            eprintln!("\nreport: {}", shown(page.path()));
        }
        Ok(violated(&results)?)
    }

    fn request(&self) -> Result<Request, Failure> {
        Ok(Request {
            seed: self.seed,
            scale: if self.quick { Scale::Quick } else { Scale::Full },
            only: self.only,
            machine: self.machine.as_deref().map(machines::find).transpose()?,
        })
    }
}

/// The experiments to run, and their conditions.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The seed of random numbers.
    pub(crate) seed: u64,
    pub(crate) scale: Scale,
    /// The part to run, or `None` for all studies and the predictions.
    pub(crate) only: Option<Only>,
    /// The machine of all experiments, or `None` for each experiment's own machine.
    pub(crate) machine: Option<Machine>,
}

/// The requested experiments, each with its conditions.
type Chosen = Vec<(Experiment, Conditions)>;

impl Request {
    /// Runs the experiments and shows the progress.
    pub(crate) fn results(&self) -> Result<Results, Failure> {
        let chosen = self.chosen()?;
        let bar = self.progress(&chosen);
        let results = self.run(&chosen, &bar);
        bar.finish_and_clear();
        results
    }

    fn run(&self, chosen: &Chosen, bar: &ProgressBar) -> Result<Results, Failure> {
        let row = |(experiment, conditions): &_| row(experiment, conditions, bar);
        let rows = chosen.iter().map(row).collect::<Result<_, _>>()?;
        bar.set_message("more and fewer CPUs");
        let scaling = scaled(chosen)
            .map(|(experiment, conditions)| Scaling::of(experiment, conditions, || bar.inc(1)));
        let scaling = scaling.transpose()?;
        let mut machines: Vec<Machine> = Vec::new();
        for (_, Conditions { machine, .. }) in chosen {
            if machines.iter().all(|known| known.name != machine.name) {
                machines.push(machine.clone());
            }
        }
        bar.set_message("predictions");
        let predictions = if self.has_predictions() { Prediction::all()? } else { Vec::new() };
        let (seed, scale) = (self.seed, self.scale);
        Ok(Results { rows, scaling, predictions, seed, scale, machines })
    }

    fn chosen(&self) -> Result<Chosen, Failure> {
        let runs = Runs::default();
        let is_wanted =
            |it: &&Experiment| self.only.is_none_or(|only| only == Only::Study(it.study));
        let chosen = |experiment: &Experiment| {
            let machine = match &self.machine {
                Some(machine) => machine.clone(),
                None => experiment.machine.machine()?,
            };
            let conditions =
                Conditions { machine, seed: self.seed, scale: self.scale, runs: runs.clone() };
            let mut experiment = *experiment;
            if self.machine.is_some() {
                // The parameters were fitted on the experiment's own machine only.
                experiment.calibrated_on = None;
            }
            Ok((experiment, conditions))
        };
        experiments().filter(is_wanted).map(chosen).collect()
    }

    /// Returns `true` if the predictions are repeated. They have their own machines.
    fn has_predictions(&self) -> bool {
        matches!(self.only, None | Some(Only::Predictions)) && self.machine.is_none()
    }

    fn progress(&self, chosen: &Chosen) -> ProgressBar {
        let designs = chosen.iter().map(|(experiment, _)| experiment.all_designs().len());
        let sizes = scaled(chosen).into_iter().map(|(_, conditions)| Scaling::runs(conditions));
        let runs = designs.chain(sizes).sum::<usize>() as u64;
        let bar = progress::bar(Some(runs), "{pos} of {len} runs, {elapsed}: {msg}");
        bar.enable_steady_tick(progress::PERIOD);
        bar
    }
}

/// Fails if a translation was used after its flush under shootdown.
pub(crate) fn violated(results: &Results) -> Result<(), Violations> {
    let curves = results.scaling.iter().flat_map(|scaling| &scaling.curves);
    let curves = curves.filter(|curve| curve.design == Design::SHOOTDOWN);
    let rows = results.rows.iter().map(|row| row.shootdown().violations);
    Violations::none_in(rows.chain(curves.map(|curve| curve.violations)))
}

fn row(
    experiment: &Experiment,
    conditions: &Conditions,
    bar: &ProgressBar,
) -> Result<Row, Failure> {
    bar.set_message(experiment.workload);
    let simulated = |design| -> Result<_, Failure> {
        let measurement = simulate(experiment, design, conditions)?;
        bar.inc(1);
        Ok(Simulated { design, measurement })
    };
    let designs: Result<_, _> = experiment.all_designs().into_par_iter().map(simulated).collect();
    let machine = conditions.machine.name.clone();
    Ok(Row { experiment: *experiment, machine, designs: designs? })
}

/// Returns the experiment that is simulated with more and fewer CPUs, if it was requested.
fn scaled(chosen: &Chosen) -> Option<&(Experiment, Conditions)> {
    chosen.iter().find(|(experiment, _)| experiment.workload == CONTEXT_SWITCHES)
}
