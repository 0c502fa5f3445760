//! Replays a recording under each design, as many at a time as the host has CPUs.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;

use indicatif::ProgressBar;
use rayon::prelude::*;
use shootdown_designs::Design;
use shootdown_run::replay::{self, Survey};
use shootdown_run::{Limits, Outcome};
use shootdown_sim::Machine;

use super::verdict::{DesignRow, Fidelity, Kernel, Recording, Schedule, Verdict};
use crate::error::{SimulationError, UserError, shown};
use crate::recordings::{RecordingError, open, refused};
use crate::{machines, progress};

/// The number of runs of a simulated schedule, unless the user chooses one. Which of two threads is
/// first is often chance, and decides which of them waits for a timeslice: a single run does not
/// show a difference of a few tenths of a percent.
pub(super) const DEFAULT_RUNS: u32 = 16;

/// A recording was not replayed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplayError {
    #[error(transparent)]
    Recording(#[from] RecordingError),
    #[error(transparent)]
    Simulation(#[from] SimulationError),
    /// The recorded schedule needs more CPUs than the machine has.
    #[error(transparent)]
    TooFewCpus(#[from] TooFewCpus),
}

/// The recorder had more CPUs than the machine has.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{recorded} CPUs were recorded, and {} has {machine}", shown(.name))]
pub(crate) struct TooFewCpus {
    pub(super) recorded: usize,
    pub(super) machine: usize,
    pub(super) name: String,
    /// The machines that have enough.
    pub(super) known: Vec<&'static str>,
}

impl UserError for ReplayError {
    fn remedy(&self) -> String {
        match self {
            Self::Recording(error) => error.remedy(),
            Self::Simulation(error) => error.remedy(),
            Self::TooFewCpus(TooFewCpus { known, .. }) if known.is_empty() => {
                "--schedule simulated, which needs no more CPUs than there are".to_owned()
            }
            Self::TooFewCpus(TooFewCpus { known, .. }) => {
                format!("--machine {}, or --schedule simulated", known.join(" or "))
            }
        }
    }
}

/// What is to be replayed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) trace: &'a Path,
    pub(super) machine: &'a Machine,
    pub(super) designs: &'a [Design],
    pub(super) schedule: Schedule,
    pub(super) seed: u64,
    /// The number of runs of each design.
    pub(super) runs: u32,
}

/// Replays a recording, and shows progress meanwhile.
pub(super) fn run(request: &Request<'_>) -> Result<Verdict, ReplayError> {
    let bar = progress::bar(None, "{human_pos} of {human_len} records, {elapsed}: {msg}");
    bar.enable_steady_tick(progress::PERIOD);
    let survey = survey(request, &bar)?;
    let replays = request.designs.len() as u64 * u64::from(request.runs);
    bar.set_length(survey.totals.records * replays);
    bar.set_position(0);
    let designs = all(request, &survey, &bar);
    bar.finish_and_clear();
    let designs = designs?;
    let kernel = Kernel::new(&survey.kernel);
    Ok(Verdict {
        trace: request.trace.display().to_string(),
        machine: request.machine.name.clone(),
        seed: request.seed,
        runs: request.runs,
        fidelity: Fidelity::new(request.schedule, &designs, &kernel),
        designs,
        kernel,
        schedule: request.schedule,
        recording: recording(&survey),
    })
}

fn survey(request: &Request<'_>, bar: &ProgressBar) -> Result<Survey, RecordingError> {
    bar.set_message(format!("reading {}", shown(request.trace)));
    Survey::of(open(request.trace)?, |records| bar.set_position(records))
        .map_err(|error| refused(request.trace, error))
}

/// Each design's row, in the order in which they were asked for.
fn all(
    request: &Request<'_>,
    survey: &Survey,
    bar: &ProgressBar,
) -> Result<Vec<DesignRow>, ReplayError> {
    let runs = request.runs as usize;
    let outcome = |number: usize| {
        let seed = request.seed.wrapping_add((number % runs) as u64);
        one(request, request.designs[number / runs], seed, survey, bar)
    };
    let numbers = (0..request.designs.len() * runs).into_par_iter();
    let outcomes = numbers.map(outcome).collect::<Result<Vec<_>, ReplayError>>()?;
    let rows = request.designs.iter().zip(outcomes.chunks(runs));
    Ok(rows.map(|(&design, outcomes)| DesignRow::mean(design, outcomes)).collect())
}

fn one(
    request: &Request<'_>,
    design: Design,
    seed: u64,
    survey: &Survey,
    bar: &ProgressBar,
) -> Result<Outcome, ReplayError> {
    let (reader, machine) = (open(request.trace)?, request.machine.clone());
    bar.set_message(format!("{} under {design}", shown(request.trace)));
    let told = Cell::new(0);
    let progress = {
        let bar = bar.clone();
        move |records: u64| bar.inc(records - told.replace(records))
    };
    let result = match request.schedule {
        Schedule::Recorded => {
            replay::replay(machine, Limits::DEFAULT.frames, reader, survey, progress, |sim| {
                design.on(sim)
            })
        }
        Schedule::Simulated => {
            let threads = replay::threads(reader, survey, seed, progress);
            threads.map_err(replay::ReplayError::Read).and_then(|threads| {
                let limits = Limits { threads: threads.program_count() + 1, ..Limits::DEFAULT };
                shootdown_run::run(machine, limits, Rc::new(threads), |sim| design.on(sim))
                    .map_err(replay::ReplayError::Run)
            })
        }
    };
    result.map_err(|error| match error {
        replay::ReplayError::Read(error) => refused(request.trace, error).into(),
        replay::ReplayError::TooFewCpus { recorded, machine } => {
            let (name, known) = (request.machine.name.clone(), machines::with_cpus(recorded));
            TooFewCpus { recorded, machine, name, known }.into()
        }
        error => {
            let trace = request.trace.display().to_string();
            SimulationError::new(&trace, design, error).into()
        }
    })
}

fn recording(survey: &Survey) -> Recording {
    let Survey { header, totals, kernel, .. } = survey;
    Recording {
        command: header.command.clone(),
        kernel: header.kernel.clone(),
        processor: header.processor.clone(),
        cpus: header.cpus,
        threads: survey.threads,
        spaces: survey.spaces,
        records: totals.records,
        lost: totals.lost,
        time_ns: totals.time_ns,
        faults: kernel.faults,
        calls: kernel.calls,
        ipis_by_others: kernel.interrupts_by_others,
    }
}
