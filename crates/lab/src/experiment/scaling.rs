//! One experiment with more and fewer CPUs: who grows with the machine, and who does not.

use rayon::prelude::*;
use shootdown_designs::{Design, Purpose, designs_for};

use super::{Conditions, Experiment, Scale, run};
use crate::error::Failure;

/// The rate of an experiment by the number of CPUs, under all designs.
#[derive(Clone, Debug)]
pub(crate) struct Scaling {
    pub(crate) workload: &'static str,
    /// The machine that was resized.
    pub(crate) machine: String,
    /// How many CPUs it has by itself.
    pub(crate) machine_cpus: usize,
    /// Of all rates.
    pub(crate) unit: &'static str,
    pub(crate) curves: Vec<Curve>,
}

/// The rates under one design.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    pub(crate) design: &'static str,
    /// By CPUs, the fewest first.
    pub(crate) points: Vec<Point>,
    /// Dead translations that were used, with any number of CPUs.
    pub(crate) violations: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) cpus: usize,
    pub(crate) rate: f64,
}

/// The designs that are compared.
fn general() -> impl Iterator<Item = Design> {
    designs_for(Purpose::General)
}

impl Scaling {
    /// How many simulations it takes.
    pub(crate) fn runs(conditions: &Conditions) -> usize {
        sizes(conditions).len() * general().count()
    }

    /// Simulates the experiment on its machine, resized, under all designs; `done` is called after
    /// each simulation.
    pub(crate) fn of(
        experiment: &Experiment,
        conditions: &Conditions,
        done: impl Fn() + Sync,
    ) -> Result<Self, Failure> {
        let sizes = sizes(conditions);
        let simulate = |(design, cpus): (&'static str, usize)| {
            let resized = conditions.machine.with_cpus(cpus);
            let machine = resized.map_err(|error| Failure::Simulation {
                workload: experiment.workload.to_owned(),
                design: design.to_owned(),
                cause: error.to_string(),
            })?;
            let outcome = run(experiment, design, &Conditions { machine, ..conditions.clone() })?;
            done();
            Ok((Point { cpus, rate: outcome.value }, outcome.violations))
        };
        // The largest first: they take the longest.
        let by_size = |&cpus: &usize| general().map(move |design| (design.name(), cpus));
        let runs: Vec<_> = sizes.iter().rev().flat_map(by_size).collect();
        let found: Result<Vec<_>, Failure> = runs.into_par_iter().map(simulate).collect();
        let found = found?;
        let curve = |(index, design): (usize, Design)| {
            let own = found.iter().skip(index).step_by(general().count());
            Curve {
                design: design.name(),
                points: own.clone().rev().map(|(point, _)| *point).collect(),
                violations: own.map(|(_, violations)| violations).sum(),
            }
        };
        let curves = general().enumerate().map(curve).collect();
        let Conditions { machine, .. } = conditions;
        Ok(Self {
            workload: experiment.workload,
            machine: machine.name.clone(),
            machine_cpus: machine.cpu_count(),
            unit: experiment.unit,
            curves,
        })
    }

    /// The numbers of CPUs to speak of where not all can be spoken of: the fewest, those of the
    /// machine itself, and the most.
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
    /// The rate with so many CPUs.
    pub(crate) fn rate(&self, cpus: usize) -> Option<f64> {
        self.points.iter().find(|point| point.cpus == cpus).map(|point| point.rate)
    }

    /// The rate per CPU in percent of that with the fewest CPUs, where it is least: 100 is linear.
    pub(crate) fn linear_percent(&self) -> f64 {
        let per_cpu = |point: &Point| point.rate / point.cpus as f64;
        let Some(first) = self.points.first() else { return 100.0 };
        let percent = |point| 100.0 * per_cpu(point) / per_cpu(first);
        self.points.iter().map(percent).fold(100.0, f64::min)
    }
}

/// By twos, from a pair on, and that of the machine itself.
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
    use super::super::{EXPERIMENTS, SCALED, example};
    use super::*;
    use crate::simulate::Runs;

    #[test]
    fn linear_is_as_much_per_cpu_everywhere_as_with_the_fewest() {
        let scaling = example::results().scaling.expect("an example");
        let percent: Vec<_> = scaling.curves.iter().map(Curve::linear_percent).collect();
        assert!(percent[0] < 0.1, "{percent:?}");
        assert!((percent[2] - 100.0 * 2250.0 / 2252.8).abs() < 0.1, "{percent:?}");
        let sagging = [(2, 2.0), (4, 3.0), (8, 8.0)].map(|(cpus, rate)| Point { cpus, rate });
        let sagging = Curve { design: "", points: sagging.to_vec(), violations: 0 };
        assert!((sagging.linear_percent() - 75.0).abs() < 1e-9);
        assert_eq!(scaling.main_sizes(), [2, 192, 4096]);
    }

    #[test]
    fn every_design_has_a_point_for_every_size_in_order() {
        let machine = crate::machines::find("power8-16s").expect("an embedded machine");
        let machine = machine.with_cpus(8).expect("a machine");
        let conditions =
            Conditions { machine, seed: 1, scale: Scale::Quick, runs: Runs::default() };
        let experiment = EXPERIMENTS.iter().find(|experiment| experiment.workload == SCALED);
        let done = std::sync::atomic::AtomicUsize::new(0);
        let count = || _ = done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let scaling = Scaling::of(experiment.expect("it is there"), &conditions, count);
        let scaling = scaling.expect("it runs");
        assert_eq!(done.into_inner(), Scaling::runs(&conditions));
        for (curve, design) in scaling.curves.iter().zip(general()) {
            assert_eq!((curve.design, curve.violations), (design.name(), 0));
            let cpus: Vec<_> = curve.points.iter().map(|point| point.cpus).collect();
            assert_eq!(cpus, [2, 8, 16, 128]);
            assert!(curve.points.iter().all(|point| point.rate > 0.0));
        }
    }
}
