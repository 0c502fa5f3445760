//! One experiment with more and fewer CPUs, which shows the designs that scale with the machine.

use rayon::prelude::*;
use serde::Serialize;
use shootdown_designs::{Design, Purpose, designs_for};

use super::experiment::{Experiment, Scale};
use super::simulate::{Conditions, simulate};
use crate::error::CannotRun;
use crate::render::displayed;

/// The rate of an experiment for each number of CPUs, under all designs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Scaling {
    pub(crate) workload: &'static str,
    /// The machine that was resized.
    pub(crate) machine: String,
    /// The number of CPUs of the machine before it was resized.
    #[serde(skip)]
    pub(crate) machine_cpus: usize,
    /// The unit of all rates.
    pub(crate) unit: &'static str,
    pub(crate) curves: Vec<Curve>,
}

/// The rates under one design.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Curve {
    #[serde(serialize_with = "displayed")]
    pub(crate) design: Design,
    /// The rates in ascending order of CPUs.
    pub(crate) points: Vec<Point>,
    /// The smallest rate per CPU, in percent of the rate per CPU with the fewest CPUs. The value
    /// 100 means linear scaling.
    pub(crate) linear_percent: f64,
    /// Number of translations that were used after their flush, summed over all numbers of CPUs.
    pub(crate) violations: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Point {
    pub(crate) cpus: usize,
    #[serde(rename = "value")]
    pub(crate) rate: f64,
}

/// Returns the designs that are compared.
fn general() -> impl Iterator<Item = Design> {
    designs_for(Purpose::General)
}

impl Scaling {
    /// Returns the number of simulations that [`Scaling::of`] runs.
    pub(crate) fn runs(conditions: &Conditions) -> usize {
        sizes(conditions).len() * general().count()
    }

    /// Simulates the experiment under all designs on resized copies of its machine. Calls `done`
    /// after each simulation.
    pub(crate) fn of(
        experiment: &Experiment,
        conditions: &Conditions,
        done: impl Fn() + Sync,
    ) -> Result<Self, CannotRun> {
        let sizes = sizes(conditions);
        let point = |&(cpus, design): &(usize, Design)| {
            let resized = conditions.machine.with_cpus(cpus);
            let machine = resized
                .map_err(|error| CannotRun::simulation(experiment.workload, design, error))?;
            let conditions = Conditions { machine, ..conditions.clone() };
            let measurement = simulate(experiment, design, &conditions)?;
            done();
            Ok((Point { cpus, rate: measurement.value }, measurement.violations))
        };
        // The largest sizes run first, because they take the longest.
        let by_size = |&cpus: &usize| general().map(move |design| (cpus, design));
        let runs: Vec<_> = sizes.iter().rev().flat_map(by_size).collect();
        let points: Result<Vec<_>, CannotRun> = runs.par_iter().map(point).collect();
        let points = points?;
        let curve = |(index, design): (usize, Design)| {
            let own = points.iter().skip(index).step_by(general().count());
            let violations = own.clone().map(|(_, violations)| violations).sum();
            Curve::new(design, own.rev().map(|(point, _)| *point).collect(), violations)
        };
        let Conditions { machine, .. } = conditions;
        Ok(Self {
            workload: experiment.workload,
            machine: machine.name.clone(),
            machine_cpus: machine.cpu_count(),
            unit: experiment.unit,
            curves: general().enumerate().map(curve).collect(),
        })
    }

    /// Returns the numbers of CPUs that tables show: the smallest, the machine's own, the largest.
    pub(crate) fn main_sizes(&self) -> Vec<usize> {
        let points = self.curves.first().map_or(&[][..], |curve| &curve.points);
        let ends = [points.first(), points.last()].into_iter().flatten();
        let mut sizes: Vec<_> = ends.map(|point| point.cpus).chain([self.machine_cpus]).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }
}

impl Curve {
    pub(super) fn new(design: Design, points: Vec<Point>, violations: u64) -> Self {
        let per_cpu = |point: &Point| point.rate / point.cpus as f64;
        let percent = |point| 100.0 * per_cpu(point) / per_cpu(&points[0]);
        let linear_percent = points.iter().map(percent).fold(100.0, f64::min);
        Self { design, points, linear_percent, violations }
    }

    /// Returns the rate with `cpus` CPUs, or `None` if that size was not simulated.
    pub(crate) fn rate(&self, cpus: usize) -> Option<f64> {
        self.points.iter().find(|point| point.cpus == cpus).map(|point| point.rate)
    }
}

/// Returns the simulated numbers of CPUs: powers of two from 2 on, and the machine's own number.
fn sizes(conditions: &Conditions) -> Vec<usize> {
    let own = conditions.machine.cpu_count();
    let mut sizes: Vec<usize> = match conditions.scale {
        Scale::Full => (1..=12).map(|power| 1 << power).collect(),
        Scale::Quick => vec![2, 16, 128],
    };
    sizes.push(own);
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

#[cfg(test)]
mod tests {
    use super::super::{CONTEXT_SWITCHES, Runs, experiments, tests as example};
    use super::*;

    #[test]
    fn linear_percent_is_smallest_rate_per_cpu() {
        let scaling = example::results().scaling.expect("an example");
        let percent: Vec<_> = scaling.curves.iter().map(|curve| curve.linear_percent).collect();
        assert!(percent[0] < 0.1, "{percent:?}");
        assert!((percent[2] - 100.0 * 2250.0 / 2252.8).abs() < 0.1, "{percent:?}");
        let sagging = [(2, 2.0), (4, 3.0), (8, 8.0)].map(|(cpus, rate)| Point { cpus, rate });
        let sagging = Curve::new(Design::NAIVE, sagging.to_vec(), 0);
        assert!((sagging.linear_percent - 75.0).abs() < 1e-9);
        assert_eq!(scaling.main_sizes(), [2, 192, 4096]);
    }

    #[test]
    fn every_design_has_ascending_point_per_size() {
        let experiment = experiments().find(|it| it.workload == CONTEXT_SWITCHES);
        let experiment = experiment.expect("an experiment");
        let machine = experiment.machine.machine().expect("an embedded machine");
        let machine = machine.with_cpus(8).expect("a machine");
        let conditions =
            Conditions { machine, seed: 1, scale: Scale::Quick, runs: Runs::default() };
        let done = std::sync::atomic::AtomicUsize::new(0);
        let count = || _ = done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let scaling = Scaling::of(experiment, &conditions, count);
        let scaling = scaling.expect("it runs");
        assert_eq!(done.into_inner(), Scaling::runs(&conditions));
        for (curve, design) in scaling.curves.iter().zip(general()) {
            assert_eq!((curve.design, curve.violations), (design, 0));
            let cpus: Vec<_> = curve.points.iter().map(|point| point.cpus).collect();
            assert_eq!(cpus, [2, 8, 16, 128]);
            assert!(curve.points.iter().all(|point| point.rate > 0.0));
        }
    }
}
