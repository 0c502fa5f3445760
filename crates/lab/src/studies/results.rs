//! The results of the requested experiments.

use serde::Serialize;
use shootdown_designs::Design;
use shootdown_sim::machine::Machine;

use super::experiment::{Experiment, Scale};
use super::predictions::Prediction;
use super::scaling::Scaling;
use super::simulate::Measurement;
use crate::render::displayed;

/// A design and its measurement.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Simulated {
    #[serde(serialize_with = "displayed")]
    pub(crate) design: Design,
    #[serde(flatten)]
    pub(crate) measurement: Measurement,
}

/// An experiment and its measurements.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) experiment: Experiment,
    /// The machine that was simulated.
    pub(crate) machine: String,
    /// The measurements in the order of [`Experiment::all_designs`].
    pub(crate) designs: Vec<Simulated>,
}

impl Row {
    /// Returns the measurement of the design before the change.
    pub(crate) fn before(&self) -> &Measurement {
        &self.designs[0].measurement
    }

    /// Returns the measurement of the design after the change.
    pub(crate) fn after(&self) -> &Measurement {
        &self.designs[1].measurement
    }

    /// Returns the measurement of shootdown.
    pub(crate) fn shootdown(&self) -> &Measurement {
        &self.designs[self.designs.len() - 1].measurement
    }

    /// Returns the number of translations that were used after their flush, under any design.
    pub(crate) fn violations(&self) -> u64 {
        self.designs.iter().map(|simulated| simulated.measurement.violations).sum()
    }

    /// Returns the published factor by which the design after the change was better.
    pub(crate) fn published_gain(&self) -> Option<f64> {
        let published = self.experiment.published?;
        Some(self.experiment.gain(published.before, published.after))
    }

    /// Returns the predicted factor by which the design after the change is better.
    pub(crate) fn predicted_gain(&self) -> f64 {
        self.experiment.gain(self.before().value, self.after().value)
    }

    /// Returns the predicted factor by which shootdown is better than the design before the change.
    pub(crate) fn shootdown_gain(&self) -> f64 {
        self.experiment.gain(self.before().value, self.shootdown().value)
    }

    /// Returns the error of the predicted gain, in percent of the published gain.
    pub(crate) fn gain_error_percent(&self) -> Option<f64> {
        Some(100.0 * (self.predicted_gain() / self.published_gain()? - 1.0))
    }
}

/// The results of all requested experiments.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Results {
    pub(crate) rows: Vec<Row>,
    /// The result for more and fewer CPUs, if it was requested.
    pub(crate) scaling: Option<Scaling>,
    /// The predictions, if they were requested.
    pub(crate) predictions: Vec<Prediction>,
    #[serde(skip)]
    pub(crate) seed: u64,
    #[serde(skip)]
    pub(crate) scale: Scale,
    /// The machines that were simulated, each once.
    #[serde(skip)]
    pub(crate) machines: Vec<Machine>,
}

impl Results {
    /// Returns the results of no experiment.
    pub(crate) fn none(seed: u64) -> Self {
        Self {
            rows: Vec::new(),
            scaling: None,
            predictions: Vec::new(),
            seed,
            scale: Scale::Quick,
            machines: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests as example;

    #[test]
    fn row_sums_violations_of_all_designs() {
        assert_eq!(example::rows()[2].violations(), 2);
    }

    #[test]
    fn unpublished_row_has_no_gain() {
        let storm = &example::rows()[3];
        assert_eq!((storm.published_gain(), storm.gain_error_percent()), (None, None));
    }
}
