//! Replays a recording under each design, as many at a time as the host has CPUs.

use std::cell::Cell;
use std::fs::File;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rayon::prelude::*;
use shootdown_designs::Design;
use shootdown_recording::Reader;
use shootdown_run::replay::{ReplayError, Survey, Threads, replay};
use shootdown_run::{Limits, Outcome};
use shootdown_sim::Machine;

use super::Schedule;
use super::verdict::{DesignRow, Fidelity, Kernel, Recording, Verdict};
use crate::error::{Failure, shown};
use crate::machines;

/// What is to be replayed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) trace: &'a Path,
    pub(crate) machine: &'a Machine,
    pub(crate) designs: &'a [Design],
    pub(crate) schedule: Schedule,
    pub(crate) seed: u64,
    /// How many, of a simulated schedule: a recorded one leaves nothing to chance.
    pub(crate) runs: u32,
}

impl Request<'_> {
    const fn runs(&self) -> u32 {
        match self.schedule {
            Schedule::Recorded => 1,
            Schedule::Simulated => self.runs,
        }
    }
}

/// Replays a recording, and shows progress meanwhile.
pub(crate) fn run(request: &Request<'_>) -> Result<Verdict, Failure> {
    let bar = progress();
    let survey = survey(request, &bar)?;
    let replays = request.designs.len() as u64 * u64::from(request.runs());
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
        runs: request.runs(),
        fidelity: Fidelity::new(request.schedule, &designs, &kernel),
        designs,
        kernel,
        schedule: request.schedule.name(),
        recording: recording(&survey),
    })
}

fn survey(request: &Request<'_>, bar: &ProgressBar) -> Result<Survey, Failure> {
    bar.set_message(format!("reading {}", shown(request.trace)));
    let reader = open(request.trace)?;
    Survey::of(reader, |records| bar.set_position(records))
        .map_err(|error| Failure::bad_recording(request.trace, error))
}

fn open(trace: &Path) -> Result<Reader<File>, Failure> {
    let file = File::open(trace).map_err(|error| Failure::no_recording(trace, error))?;
    Reader::open(file).map_err(|error| Failure::bad_recording(trace, error))
}

/// Each design's row, in the order in which they were asked for.
fn all(
    request: &Request<'_>,
    survey: &Survey,
    bar: &ProgressBar,
) -> Result<Vec<DesignRow>, Failure> {
    let runs = request.runs() as usize;
    let row = |(number, &design): (usize, &Design)| {
        let seed = request.seed.wrapping_add((number % runs) as u64);
        one(request, design, seed, survey, bar)
    };
    let designs: Vec<_> =
        request.designs.iter().flat_map(|design| std::iter::repeat_n(design, runs)).collect();
    let outcomes: Result<Vec<_>, Failure> =
        designs.par_iter().enumerate().map(|(number, design)| row((number, design))).collect();
    let outcomes = outcomes?;
    let rows = request.designs.iter().zip(outcomes.chunks(runs));
    Ok(rows.map(|(&design, outcomes)| DesignRow::mean(design, outcomes)).collect())
}

fn one(
    request: &Request<'_>,
    design: Design,
    seed: u64,
    survey: &Survey,
    bar: &ProgressBar,
) -> Result<Outcome, Failure> {
    let (reader, machine) = (open(request.trace)?, request.machine.clone());
    bar.set_message(format!("{} under {design}", shown(request.trace)));
    let told = Cell::new(0);
    let progress = {
        let bar = bar.clone();
        move |records: u64| bar.inc(records - told.replace(records))
    };
    let result = match request.schedule {
        Schedule::Recorded => {
            replay(machine, Limits::DEFAULT.frames, reader, survey, progress, |sim| design.on(sim))
        }
        Schedule::Simulated => {
            let threads = Threads::of(reader, survey, seed, progress);
            threads.map_err(ReplayError::Read).and_then(|threads| {
                let limits = Limits { threads: threads.count() + 1, ..Limits::default() };
                shootdown_run::run(machine, limits, Rc::new(threads), |sim| design.on(sim))
                    .map_err(ReplayError::Run)
            })
        }
    };
    result.map_err(|error| match error {
        ReplayError::Read(error) => Failure::bad_recording(request.trace, error),
        ReplayError::TooFewCpus { recorded, machine } => Failure::TooFewCpus {
            recorded,
            machine,
            name: request.machine.name.clone(),
            known: machines::with_cpus(recorded),
        },
        error => Failure::Simulation {
            workload: request.trace.display().to_string(),
            design: design.to_string(),
            cause: error.to_string(),
        },
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

/// On standard error, and only if someone can see it there.
fn progress() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let template = "{human_pos} of {human_len} records, {elapsed}: {msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}
