//! The fidelity of a replay: the counts of the closest model of Linux compared with those of the
//! recorded kernel.

use serde::Serialize;
use shootdown_designs::Design;

use super::verdict::{DesignRow, Kernel, Schedule};

/// The largest relative error of a count that is close.
const CLOSE: f64 = 0.10;
/// The largest absolute error of a count that is close: it is many percent of a small number.
const CLOSE_COUNT: u64 = 10;
/// The largest factor between two counts, above which a replay is not believed.
const UNUSABLE: u64 = 2;

/// The counts of [the model of Linux that is closest](Design::closest_to) to the recorded kernel,
/// divided by those of the kernel.
///
/// A ratio is `None` if the model was not replayed under the recorded schedule, or if only the
/// kernel's count is 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Fidelity {
    /// The name of the model.
    pub(crate) model: &'static str,
    /// The same as `interrupts_ratio`, under its first name.
    pub(crate) ipis_ratio: Option<f64>,
    pub(crate) flushes_ratio: Option<f64>,
    /// `None` also if the recording has no requests.
    pub(crate) requests_ratio: Option<f64>,
    pub(crate) interrupts_ratio: Option<f64>,
    pub(crate) full_ratio: Option<f64>,
    pub(crate) ranged_ratio: Option<f64>,
    /// `None` if there is nothing to compare.
    pub(crate) verdict: Option<Judgement>,
}

/// The judgement of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Judgement {
    /// Requests, full flushes and ranged flushes are each within 10 %, or within 10. If the
    /// recording has no requests, interrupts replace them.
    Close,
    /// One of them is not.
    Off,
    /// Requests (or interrupts), or flushes of both kinds together, are less than half or more
    /// than twice the kernel's.
    Unusable,
}

impl Fidelity {
    /// Returns the ratios of a replay under the recorded schedule. Only such a replay can be
    /// compared with the recorded kernel, which has this release.
    pub(crate) fn new(
        schedule: Schedule,
        designs: &[DesignRow],
        kernel: &Kernel,
        release: &str,
    ) -> Self {
        let model = Design::closest_to(release);
        let linux = designs.iter().find(|row| row.design == model);
        let linux = linux.filter(|_| schedule == Schedule::Recorded);
        let compare = |of: fn(&DesignRow) -> u64, real| linux.and_then(|row| ratio(of(row), real));
        let interrupts_ratio = compare(|row| row.ipis_sent, kernel.ipis_sent);
        Self {
            model: model.name(),
            ipis_ratio: interrupts_ratio,
            flushes_ratio: compare(DesignRow::flushes, kernel.flushes()),
            requests_ratio: kernel.requests.and_then(|real| compare(|row| row.requests, real)),
            interrupts_ratio,
            full_ratio: compare(|row| row.flushes_full, kernel.flushes_full),
            ranged_ratio: compare(|row| row.flushes_ranged, kernel.flushes_ranged),
            verdict: linux.map(|linux| Judgement::of(linux, kernel)),
        }
    }

    pub(crate) fn is_unusable(&self) -> bool {
        self.verdict == Some(Judgement::Unusable)
    }
}

impl Judgement {
    fn of(linux: &DesignRow, kernel: &Kernel) -> Self {
        // The number of interrupts depends on how fast the targets handle them: a request coalesces
        // with an interrupt that is on its way.
        let asked = match kernel.requests {
            Some(requests) => (linux.requests, requests),
            None => (linux.ipis_sent, kernel.ipis_sent),
        };
        let full = (linux.flushes_full, kernel.flushes_full);
        let ranged = (linux.flushes_ranged, kernel.flushes_ranged);
        if [asked, (linux.flushes(), kernel.flushes())].into_iter().any(is_unusable) {
            Self::Unusable
        } else if [asked, full, ranged].into_iter().all(is_close) {
            Self::Close
        } else {
            Self::Off
        }
    }
}

/// Returns `true` if a predicted count is close to the real count.
pub(super) fn is_close((predicted, real): (u64, u64)) -> bool {
    let off = predicted.abs_diff(real);
    off <= CLOSE_COUNT || off as f64 <= CLOSE * real as f64
}

fn is_unusable((predicted, real): (u64, u64)) -> bool {
    let (less, more) = (predicted.min(real), predicted.max(real));
    !is_close((predicted, real)) && less.saturating_mul(UNUSABLE) < more
}

/// Returns a predicted count divided by the real count, or `None` if only the real count is 0.
pub(crate) fn ratio(predicted: u64, real: u64) -> Option<f64> {
    match (predicted, real) {
        (0, 0) => Some(1.0),
        (_, 0) => None,
        _ => Some(predicted as f64 / real as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_differences_are_close() {
        assert!(is_close((0, 10)) && is_close((110, 100)) && is_close((900, 1000)));
        assert!(!is_close((0, 11)) && !is_close((1101, 1000)));
    }

    #[test]
    fn factor_above_two_is_unusable() {
        assert!(is_unusable((43, 2888)) && is_unusable((30, 12)) && is_unusable((12, 125)));
        assert!(!is_unusable((12, 3)) && !is_unusable((60, 100)) && !is_unusable((0, 0)));
    }
}
