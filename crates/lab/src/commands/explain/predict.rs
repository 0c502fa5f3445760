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

use crate::commands::replay::{DEFAULT_MACHINE, Request, Schedule, TooFewCpus, Verdict, replay};
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
    /// Count the requests of the site, which takes milliseconds
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
        _ => Err(None),
    };
    let sites = explanation.sites.iter().enumerate();
    sites
        .map(|(number, site)| {
            let replays = match &replays {
                Ok(replays) if number < SITES_MAX => Ok(replays),
                Ok(_) => Err(None),
                Err(doubt) => Err(*doubt),
            };
            let mut before = None;
            let remedies = remedies.of(analysis.causes.name(site.cause), &site.frames).into_iter();
            let remedies = remedies.filter(|remedy| analysis.allows(remedy.replay));
            remedies.map(|remedy| one(remedy, site, replays, &mut before)).collect()
        })
        .collect()
}

/// The reason why requests are counted although they could be replayed; `None` if they could not.
type Doubt = Option<&'static str>;

const UNUSABLE: &str = "the replay of this recording is unusable";
const NOT_REPEATED: &str = "the replay repeats less than half of these requests";

/// Returns a remedy with its effect. Remedies of one site that change the recording alike share one
/// replay.
fn one(
    remedy: Remedy,
    site: &Site,
    replays: Result<&Replays<'_>, Doubt>,
    before: &mut Option<(Change, Option<u64>)>,
) -> Advice {
    let replayed = match (*before, replays) {
        (Some((change, saves)), _) if change == remedy.replay => saves,
        (_, Ok(replays)) if remedy.replay != Change::None => replays.saves(site, remedy.replay),
        _ => None,
    };
    *before = Some((remedy.replay, replayed));
    let doubt = if remedy.replay == Change::None { None } else { replays.err().flatten() };
    effect(remedy, site.sum.requests, replayed, doubt)
}

/// Returns a remedy for a site with this number of requests, of which the replay of a change saves
/// `replayed`. A change cannot save more of the site than it has. If it saves less than half, the
/// replay of the unchanged recording does not repeat the site's requests.
fn effect(remedy: Remedy, requests: u64, replayed: Option<u64>, doubt: Doubt) -> Advice {
    match replayed {
        Some(saves) if saves.saturating_mul(2) >= requests => {
            let saves_in_all = Some(saves);
            let saves = saves.min(requests);
            Advice { remedy, saves, saves_in_all, is_replayed: true, doubt: None }
        }
        _ => {
            let doubt = doubt.or(replayed.map(|_| NOT_REPEATED));
            Advice { remedy, saves: requests, saves_in_all: None, is_replayed: false, doubt }
        }
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
    /// Replays the unchanged recording. Fails if it cannot be replayed, or its replay cannot be
    /// believed.
    fn new(
        path: &'a Path,
        analysis: &'a Analysis,
        explanation: &'a Explanation,
    ) -> Result<Self, Doubt> {
        let machine = DEFAULT_MACHINE.machine().map_err(|_| None)?;
        if explanation.sites.is_empty() || !matches!(TooFewCpus::find(path, &machine), Ok(None)) {
            return Err(None);
        }
        let verdict = verdict(path, &machine).ok_or(None)?;
        if verdict.fidelity.is_unusable() {
            return Err(Some(UNUSABLE));
        }
        let requests = requests(&verdict).ok_or(None)?;
        let left = Cell::new(REPLAYED_MAX - analysis.records);
        Ok(Self { path, analysis, explanation, machine, requests, left })
    }

    /// Returns the number of requests that a change at a site saves: the part that it saves in the
    /// replay, of the requests of the recorded kernel.
    fn saves(&self, site: &Site, change: Change) -> Option<u64> {
        self.left.set(self.left.get().checked_sub(self.analysis.records)?);
        let file = tempfile::NamedTempFile::new().ok()?;
        self.write_changed(site, change, file.as_file()).ok()?;
        let after = requests(&verdict(file.path(), &self.machine)?)?;
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

/// Replays a recording under the closest model; `None` if it cannot be replayed.
fn verdict(path: &Path, machine: &Machine) -> Option<Verdict> {
    let closest = Design::closest_to(&open(path).ok()?.header().kernel);
    let (designs, schedule) = (&[closest], Schedule::Recorded);
    let request = Request { recording: path, machine, designs, schedule, seed: 1, runs: 1 };
    replay(&request).ok()
}

/// Returns the number of requests in the replay under the closest model.
fn requests(verdict: &Verdict) -> Option<u64> {
    Some(verdict.designs.first()?.requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prediction_is_bounded_by_site_and_fidelity() {
        let remedy = Remedies::new().of("munmap", &[]).remove(0);
        let saves = |replayed, doubt| {
            let Advice { saves, is_replayed, doubt, .. } =
                effect(remedy.clone(), 100, replayed, doubt);
            (saves, is_replayed, doubt)
        };
        assert_eq!(saves(Some(399), None), (100, true, None), "more than the site has");
        assert_eq!(saves(Some(50), None), (50, true, None));
        assert_eq!(saves(Some(49), None), (100, false, Some(NOT_REPEATED)));
        assert_eq!(saves(Some(0), None), (100, false, Some(NOT_REPEATED)));
        assert_eq!(saves(None, Some(UNUSABLE)), (100, false, Some(UNUSABLE)));
        assert_eq!(saves(None, None), (100, false, None));
    }
}
