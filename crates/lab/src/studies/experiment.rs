//! What an experiment consists of: two designs that are compared, on a machine, by a measure.

use std::rc::Rc;

use shootdown_designs::Design;
use shootdown_program::Workload;
use shootdown_run::{Limits, Outcome};

use crate::machines::Embedded;

/// A published change to a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Study {
    X86LazyTlb,
    PowerpcShootLazies,
    ArcAsidRange,
    Arm64SkipBroadcast,
    X86BatchedUnmap,
}

impl Study {
    pub(crate) const ALL: [Self; 5] = [
        Self::X86LazyTlb,
        Self::PowerpcShootLazies,
        Self::ArcAsidRange,
        Self::Arm64SkipBroadcast,
        Self::X86BatchedUnmap,
    ];

    /// The number of its document.
    pub(crate) const fn number(self) -> &'static str {
        ["000", "001", "002", "003", "004"][self as usize]
    }
}

/// A comparison of two designs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Experiment {
    pub(crate) study: Study,
    /// The name of the workload.
    pub(crate) workload: &'static str,
    pub(crate) machine: Embedded,
    /// The quantity that was measured.
    pub(crate) metric: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) better: Better,
    /// The published figures, if there are any.
    pub(crate) published: Option<Pair<f64>>,
    /// The designs that were compared.
    pub(crate) designs: Pair<Design>,
    /// Other designs, to set beside them.
    pub(crate) peers: &'static [Design],
    /// The published figure that the machine file or the workload was fitted to: the simulation
    /// does not predict that figure.
    pub(crate) calibrated_on: Option<&'static str>,
    /// What a reader must know of the figures, above all the cause of an error.
    pub(crate) note: Option<&'static str>,
    /// Returns what is run and read, or one line, without a full stop, that gives the reason why
    /// the setup is not sufficient.
    pub(super) measure: fn(&Setup) -> Result<Measure, &'static str>,
}

impl Experiment {
    /// All designs to simulate, this engine last.
    pub(crate) fn all_designs(&self) -> Vec<Design> {
        let Pair { before, after } = self.designs;
        [&[before, after], self.peers, &[Design::SHOOTDOWN]].concat()
    }

    /// How many times better `to` is than `from`. Not finite, if one of them is 0.
    pub(crate) fn gain(&self, from: f64, to: f64) -> f64 {
        match self.better {
            Better::Lower => from / to,
            Better::Higher => to / from,
        }
    }
}

/// Which way a metric gets better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// Something of the design before the change, and of the one after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Pair<T> {
    pub(crate) before: T,
    pub(crate) after: T,
}

/// How much is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// As much as was measured.
    Full,
    /// Enough to see the sign of a difference.
    Quick,
}

impl Scale {
    /// Of how many equal parts of the full work one is run.
    pub(super) const fn parts(self, quick: u64) -> u64 {
        match self {
            Self::Full => 1,
            Self::Quick => quick,
        }
    }

    /// One of those parts.
    pub(super) const fn of(self, full: u64, quick: u64) -> u64 {
        full / self.parts(quick)
    }
}

/// What a workload is made for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) cpus: usize,
    pub(super) scale: Scale,
    /// The seed of random numbers.
    pub(super) seed: u64,
}

/// What is run, and what is read from the run.
pub(super) struct Measure {
    pub(super) workload: Rc<dyn Workload>,
    pub(super) limits: Limits,
    pub(super) read: Box<dyn Fn(&Outcome) -> f64>,
    /// How many times as much was published as is run.
    pub(super) scale: f64,
    /// A part of the figure that the run does not contain.
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
            limits: Limits::DEFAULT,
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
    fn gain_is_above_one_in_either_direction() {
        let lower = super::super::x86_lazy_tlb::EXPERIMENTS[0];
        assert!((lower.gain(20.0, 10.0) - 2.0).abs() < 1e-12);
        let higher = Experiment { better: Better::Higher, ..lower };
        assert!((higher.gain(1.0, 118.0) - 118.0).abs() < 1e-12);
    }
}
