//! The definition of an experiment: a workload, a machine, a metric and the compared designs.

use std::rc::Rc;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use shootdown_designs::Design;
use shootdown_program::Workload;
use shootdown_run::{Outcome, Settings};

use crate::machines::Embedded;

/// A published change to a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Study {
    /// Generations instead of interrupts to lazy CPUs (Linux 4.14)
    X86LazyTlb,
    /// Lazy address spaces without a contended reference count
    PowerpcShootLazies,
    /// Flushes of ranges instead of new tags
    ArcAsidRange,
    /// Local invalidation if no other CPU runs the address space
    Arm64SkipBroadcast,
    /// One interrupt per CPU for a batch of reclaimed pages (Linux 4.3)
    X86BatchedUnmap,
}

impl Study {
    /// Returns the name that users type and read.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::X86LazyTlb => "x86-lazy-tlb",
            Self::PowerpcShootLazies => "powerpc-shoot-lazies",
            Self::ArcAsidRange => "arc-asid-range",
            Self::Arm64SkipBroadcast => "arm64-skip-broadcast",
            Self::X86BatchedUnmap => "x86-batched-unmap",
        }
    }
}

/// A comparison of two designs.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Experiment {
    pub(crate) study: Study,
    /// The name of the workload.
    pub(crate) workload: &'static str,
    #[serde(skip)]
    pub(crate) machine: Embedded,
    /// The quantity that was measured.
    pub(crate) metric: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) better: Better,
    /// The published figures, if there are any.
    pub(crate) published: Option<Pair<f64>>,
    /// The designs that were compared.
    #[serde(skip)]
    pub(crate) designs: Pair<Design>,
    /// Other designs that are simulated for comparison.
    #[serde(skip)]
    pub(crate) peers: &'static [Design],
    /// The published figure that the machine file or the workload was fitted to, if any. The
    /// simulation does not predict that figure.
    pub(crate) calibrated_on: Option<&'static str>,
    /// A note on the figures, above all the cause of an error.
    pub(crate) note: Option<&'static str>,
    #[serde(skip)]
    pub(super) measure: MeasureOf,
}

/// Returns the workload and its metric, or the reason why the machine cannot run it: one line
/// without a full stop.
pub(super) type MeasureOf = fn(&Setup) -> Result<Measure, &'static str>;

impl Experiment {
    /// Returns all designs to simulate. Shootdown is the last.
    pub(crate) fn all_designs(&self) -> Vec<Design> {
        let Pair { before, after } = self.designs;
        [&[before, after], self.peers, &[Design::SHOOTDOWN]].concat()
    }

    /// Returns the factor by which `to` is better than `from`. It is not finite if one of them is
    /// 0.
    pub(crate) fn gain(&self, from: f64, to: f64) -> f64 {
        match self.better {
            Better::Lower => from / to,
            Better::Higher => to / from,
        }
    }
}

/// The direction in which a metric improves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Better {
    Lower,
    Higher,
}

impl Better {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Lower => "lower",
            Self::Higher => "higher",
        }
    }
}

/// A value for the design before the change, and one for the design after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pair<T> {
    pub(crate) before: T,
    pub(crate) after: T,
}

/// The amount of work that is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Scale {
    /// As much as was published.
    Full,
    /// Enough to show the sign of a difference.
    Quick,
}

impl Scale {
    /// Returns the number of equal parts of the full work, of which one is run.
    pub(super) const fn parts(self, quick: u64) -> u64 {
        match self {
            Self::Full => 1,
            Self::Quick => quick,
        }
    }

    /// Returns the size of one of these parts.
    pub(super) const fn of(self, full: u64, quick: u64) -> u64 {
        full / self.parts(quick)
    }
}

/// The conditions that a workload is made for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) cpus: usize,
    pub(super) scale: Scale,
    /// The seed of random numbers.
    pub(super) seed: u64,
}

/// A workload, and the metric that is read from its run.
pub(super) struct Measure {
    pub(super) workload: Rc<dyn Workload>,
    pub(super) settings: Settings,
    pub(super) read: Box<dyn Fn(&Outcome) -> f64>,
    /// The published amount of work, divided by the simulated amount.
    pub(super) scale: f64,
    /// A part of the figure that the run does not contain, in the unit of the metric.
    pub(super) offset: f64,
    /// A workload whose figure is subtracted.
    pub(super) subtract: Option<Rc<dyn Workload>>,
}

impl Measure {
    pub(super) fn new(
        workload: impl Workload + 'static,
        read: impl Fn(&Outcome) -> f64 + 'static,
    ) -> Self {
        Self {
            workload: Rc::new(workload),
            settings: Settings::DEFAULT,
            read: Box::new(read),
            scale: 1.0,
            offset: 0.0,
            subtract: None,
        }
    }

    /// Measures the time of an iteration, in microseconds.
    pub(super) fn us(workload: impl Workload + 'static) -> Self {
        Self::new(workload, |outcome| outcome.time.us() / outcome.iterations as f64)
    }

    /// Measures the time of a run that is one of `parts` equal parts of the published run, in
    /// seconds.
    pub(super) fn run(workload: impl Workload + 'static, parts: u64) -> Self {
        let seconds = |outcome: &Outcome| outcome.time.seconds();
        Self { scale: parts as f64, ..Self::new(workload, seconds) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn study_has_same_name_everywhere() {
        for study in Study::value_variants() {
            let value = study.to_possible_value().expect("a value of the option");
            assert_eq!(value.get_name(), study.name());
            let json = serde_json::to_value(study).expect("a value");
            assert_eq!(json, study.name());
        }
    }

    #[test]
    fn gain_exceeds_one_in_either_direction() {
        let lower = *super::super::experiments().next().expect("an experiment");
        assert!((lower.gain(20.0, 10.0) - 2.0).abs() < 1e-12);
        let higher = Experiment { better: Better::Higher, ..lower };
        assert!((higher.gain(1.0, 118.0) - 118.0).abs() < 1e-12);
    }
}
