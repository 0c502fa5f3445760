//! The replays of a recording under each design, which run on all CPUs of the host.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;

use indicatif::ProgressBar;
use rayon::prelude::*;
use shootdown_designs::Design;
use shootdown_recording::Header;
use shootdown_run::replay::{self, Survey};
use shootdown_run::{Limits, Memory, Outcome, Settings};
use shootdown_sim::Machine;

use super::fidelity::Fidelity;
use super::verdict::{DesignRow, Kernel, Recording, Schedule, Verdict};
use crate::error::{CannotRun, Failure, Help, UserError, bad_input, shown};
use crate::recordings::{RecordingError, open_intact_part, refused};
use crate::{machines, progress};

/// The default number of runs under the simulated schedule. The order of two threads is often
/// random and decides which of them waits for a timeslice, so a single run does not show a
/// difference of a few tenths of a percent.
pub(super) const DEFAULT_RUNS: u32 = 16;

/// The recorded machine had more CPUs than the machine of the replay.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the recording is of {recorded} CPUs, and {} has {machine}", shown(.name))]
pub(crate) struct TooFewCpus {
    pub(super) recorded: usize,
    pub(super) machine: usize,
    pub(super) name: String,
    /// The embedded machines that have enough CPUs.
    pub(super) known: Vec<&'static str>,
}

impl UserError for TooFewCpus {
    fn help(&self) -> Help {
        match self.known.join(" or ") {
            none if none.is_empty() => {
                bad_input("add --schedule simulated, which works with any number of CPUs")
            }
            known => bad_input(format!("add --machine {known}, or --schedule simulated")),
        }
    }
}

impl TooFewCpus {
    /// Returns the error if the machine has fewer CPUs than the recording.
    pub(crate) fn find(recording: &Path, machine: &Machine) -> Result<Option<Self>, Failure> {
        Ok(Self::of(open_intact_part(recording)?.header(), machine))
    }

    /// Returns the error if the machine has fewer CPUs than the recording with this header.
    pub(crate) fn of(header: &Header, machine: &Machine) -> Option<Self> {
        let (recorded, cpus) = (header.cpus as usize, machine.cpu_count());
        (recorded > cpus).then(|| {
            let (name, known) = (machine.name.clone(), machines::with_cpus(recorded));
            Self { recorded, machine: cpus, name, known }
        })
    }
}

/// The parameters of a replay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) recording: &'a Path,
    pub(crate) machine: &'a Machine,
    pub(crate) designs: &'a [Design],
    pub(crate) schedule: Schedule,
    pub(crate) seed: u64,
    /// The number of runs of each design.
    pub(crate) runs: u32,
}

/// Replays a recording and shows the progress.
///
/// # Errors
///
/// If the recording cannot be read or replayed. Under the recorded schedule, check
/// [`TooFewCpus::find`] first.
pub(crate) fn run(request: &Request<'_>) -> Result<Verdict, Failure> {
    let bar = progress::bar(None, "{human_pos} of {human_len} records, {elapsed}: {msg}");
    bar.enable_steady_tick(progress::PERIOD);
    let survey = survey(request, &bar)?;
    let designs = with_closest(request, &survey);
    let request = &Request { designs: &designs, ..*request };
    let replays = request.designs.len() as u64 * u64::from(request.runs);
    bar.set_length(survey.totals.records * replays);
    bar.set_position(0);
    let designs = replay_all(request, &survey, &bar);
    bar.finish_and_clear();
    let (designs, release) = (designs?, &survey.header.kernel);
    let kernel = Kernel::new(&survey.kernel);
    Ok(Verdict {
        machine: request.machine.name.clone(),
        machine_cpus: request.machine.cpu_count(),
        seed: request.seed,
        runs: request.runs,
        fidelity: Fidelity::new(request.schedule, &designs, &kernel, release),
        designs,
        kernel,
        schedule: request.schedule,
        recording: recording(request, &survey),
    })
}

/// Returns the designs to replay: those of the request, and with `linux-7.0` under the recorded
/// schedule the model that is closest to the recorded kernel, which the fidelity needs.
fn with_closest(request: &Request<'_>, survey: &Survey) -> Vec<Design> {
    let mut designs = request.designs.to_vec();
    let closest = Design::closest_to(&survey.header.kernel);
    let linux = designs.iter().position(|&design| design == Design::LINUX_7_0);
    if let (Some(linux), Schedule::Recorded) = (linux, request.schedule)
        && !designs.contains(&closest)
    {
        designs.insert(linux, closest);
    }
    designs
}

fn survey(request: &Request<'_>, bar: &ProgressBar) -> Result<Survey, RecordingError> {
    bar.set_message(format!("reading {}", shown(request.recording)));
    Survey::of(open_intact_part(request.recording)?, |records| bar.set_position(records))
        .map_err(|error| refused(request.recording, error))
}

/// Returns the row of each design, in the order of the request.
fn replay_all(
    request: &Request<'_>,
    survey: &Survey,
    bar: &ProgressBar,
) -> Result<Vec<DesignRow>, Failure> {
    let runs = request.runs as usize;
    let outcome = |number: usize| {
        let seed = request.seed.wrapping_add((number % runs) as u64);
        once(request, request.designs[number / runs], seed, survey, bar)
    };
    let numbers = (0..request.designs.len() * runs).into_par_iter();
    let outcomes = numbers.map(outcome).collect::<Result<Vec<_>, Failure>>()?;
    let rows = request.designs.iter().zip(outcomes.chunks(runs));
    Ok(rows.map(|(&design, outcomes)| DesignRow::mean(design, outcomes)).collect())
}

/// Replays a recording under one design, with one seed.
///
/// # Errors
///
/// If the recording cannot be read or replayed. Under the recorded schedule, check
/// [`TooFewCpus::of`] first.
pub(crate) fn once(
    request: &Request<'_>,
    design: Design,
    seed: u64,
    survey: &Survey,
    bar: &ProgressBar,
) -> Result<Outcome, Failure> {
    let make = |sim| design.on(sim);
    let (reader, machine) = (open_intact_part(request.recording)?, request.machine.clone());
    bar.set_message(format!("{} under {design}", shown(request.recording)));
    let reported = Cell::new(0);
    let progress = {
        let bar = bar.clone();
        move |records: u64| bar.inc(records - reported.replace(records))
    };
    let result = match request.schedule {
        Schedule::Recorded => {
            replay::replay(machine, Memory::DEFAULT.frames, reader, survey, progress, make)
        }
        Schedule::Simulated => {
            let threads = replay::threads(reader, survey, seed, progress);
            threads.map_err(replay::ReplayError::Read).and_then(|threads| {
                let settings = Settings {
                    limits: Limits { threads: threads.program_count() + 1, ..Limits::DEFAULT },
                    ..Settings::DEFAULT
                };
                shootdown_run::run(machine, settings, Rc::new(threads), make)
                    .map_err(replay::ReplayError::Run)
            })
        }
    };
    result.map_err(|error| match error {
        replay::ReplayError::Read(error) => refused(request.recording, error).into(),
        error => {
            let recording = request.recording.display().to_string();
            CannotRun::simulation(&recording, design, error).into()
        }
    })
}

fn recording(request: &Request<'_>, survey: &Survey) -> Recording {
    let Survey { header, totals, kernel, .. } = survey;
    Recording {
        file: request.recording.display().to_string(),
        header: header.clone(),
        threads: survey.threads,
        spaces: survey.spaces,
        records: totals.records,
        lost: totals.lost,
        cut: survey.cut.clone(),
        time_ns: totals.time_ns,
        faults: kernel.faults,
        calls: kernel.calls,
        ipis_by_others: kernel.interrupts_by_others,
        unattributed: survey.unattributed,
        parallel_share: survey.parallel_ns as f64 / survey.busy_ns.max(1) as f64,
        delivery_ns: survey.delivery_ns,
    }
}
