//! The effect of advice: the recording is changed as the advice would change the program, and
//! both are replayed under the model of Linux that is closest to the recorded kernel.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;

use clap::ValueEnum;
use shootdown_designs::Design;
use shootdown_explain::{Advice, Analysis, Change, Explanation, Remedies, Remedy, Site};
use shootdown_sim::Machine;

use crate::commands::replay::{DEFAULT_MACHINE, Request, Schedule, TooFewCpus, replay};
use crate::recordings::open;

/// Number of sites whose advice is replayed: those that cost most.
const SITES_MAX: usize = 3;
/// The largest recording that is replayed, in records, and the largest number of records of all its
/// replays. A replay takes about a second for a million.
const RECORDS_MAX: u64 = 1_000_000;
const REPLAYED_MAX: u64 = 4_000_000;

/// The way in which the effect of advice is predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Prediction {
    /// Replay the changed recording, for the most expensive sites of recordings that are not large
    Replay,
    /// Count the requests of the site, in milliseconds
    Count,
}

/// Returns the advice for each site, in the order of the sites.
pub(super) fn advice(
    prediction: Prediction,
    path: &Path,
    analysis: &Analysis,
    explanation: &Explanation,
) -> Vec<Vec<Advice>> {
    let remedies = Remedies::new();
    let is_small = analysis.records <= RECORDS_MAX;
    let replays = match prediction {
        Prediction::Replay if is_small => Replays::new(path, analysis, explanation),
        _ => None,
    };
    let sites = explanation.sites.iter().enumerate();
    sites
        .map(|(number, site)| {
            let replays = replays.as_ref().filter(|_| number < SITES_MAX);
            let cause = analysis.causes.name(site.cause);
            let mut before = None;
            let remedies = remedies.of(cause, &site.frames).into_iter();
            remedies.map(|remedy| one(remedy, site, replays, &mut before)).collect()
        })
        .collect()
}

/// Returns a remedy with its effect. Remedies of one site that change the recording alike share one
/// replay.
fn one(
    remedy: &Remedy,
    site: &Site,
    replays: Option<&Replays<'_>>,
    before: &mut Option<(Change, Option<u64>)>,
) -> Advice {
    let replayed = match (*before, replays) {
        (Some((change, saves)), _) if change == remedy.replay => saves,
        (_, Some(replays)) if remedy.replay != Change::None => replays.saves(site, remedy.replay),
        _ => None,
    };
    *before = Some((remedy.replay, replayed));
    Advice {
        remedy: remedy.clone(),
        saves: replayed.unwrap_or(site.sum.requests),
        is_replayed: replayed.is_some(),
    }
}

/// Replays of a recording and of its changes.
struct Replays<'a> {
    path: &'a Path,
    analysis: &'a Analysis,
    explanation: &'a Explanation,
    machine: Machine,
    /// Number of requests of the unchanged recording in its replay.
    requests: u64,
    /// Number of records that may still be replayed.
    left: Cell<u64>,
}

impl<'a> Replays<'a> {
    /// Replays the unchanged recording. Returns `None` if its replay cannot be believed.
    fn new(path: &'a Path, analysis: &'a Analysis, explanation: &'a Explanation) -> Option<Self> {
        let machine = DEFAULT_MACHINE.machine().ok()?;
        if explanation.sites.is_empty() || !matches!(TooFewCpus::find(path, &machine), Ok(None)) {
            return None;
        }
        let requests = requests(path, &machine)?;
        let left = Cell::new(REPLAYED_MAX - analysis.records);
        Some(Self { path, analysis, explanation, machine, requests, left })
    }

    /// Returns the number of requests that a change at a site saves: the part that it saves in the
    /// replay, of the requests of the recorded kernel.
    fn saves(&self, site: &Site, change: Change) -> Option<u64> {
        self.left.set(self.left.get().checked_sub(self.analysis.records)?);
        let file = tempfile::NamedTempFile::new().ok()?;
        self.write_changed(site, change, file.as_file()).ok()?;
        let after = requests(file.path(), &self.machine)?;
        let saved = self.requests.saturating_sub(after) as f64 / self.requests.max(1) as f64;
        Some((saved * self.explanation.total.requests as f64).round() as u64)
    }

    fn write_changed(&self, site: &Site, change: Change, file: &File) -> io::Result<()> {
        let reader = open(self.path).map_err(io::Error::other)?;
        let out = BufWriter::new(file);
        let out = change.apply(reader, self.analysis, self.explanation, site, out)?;
        out.into_inner().map(drop).map_err(io::IntoInnerError::into_error)
    }
}

/// Returns the number of requests in the replay of a recording under the closest model; `None` if
/// it cannot be replayed, or differs too much from the recorded kernel.
fn requests(path: &Path, machine: &Machine) -> Option<u64> {
    let closest = Design::closest_to(&open(path).ok()?.header().kernel);
    let (designs, schedule) = (&[closest], Schedule::Recorded);
    let request = Request { recording: path, machine, designs, schedule, seed: 1, runs: 1 };
    let verdict = replay(&request).ok()?;
    Some(verdict.designs.first()?.requests)
}
