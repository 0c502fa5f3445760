//! What is simulated: published results that are reproduced, and comparisons that nobody has
//! published; what was measured, where, and under which designs.

mod choice;
mod published;
mod scaling;

use shootdown_sim::machine::Machine;

use crate::error::Failure;
use crate::simulate::{self, Runs};

pub(crate) use choice::{Cell, Choice, Told};
pub(crate) use published::EXPERIMENTS;
pub(crate) use scaling::{Curve, Point, Scaling};

/// The engine of this repository, among the designs.
pub(crate) const SHOOTDOWN: &str = "shootdown";

/// A comparison of two designs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Experiment {
    /// The seed document, such as `000`.
    pub(crate) seed: &'static str,
    /// What the threads do.
    pub(crate) workload: &'static str,
    /// The machine, as `machines/` names it.
    pub(crate) machine: &'static str,
    /// What was measured.
    pub(crate) metric: &'static str,
    /// In what.
    pub(crate) unit: &'static str,
    /// Which way is up.
    pub(crate) better: Better,
    /// What was published, if anything was.
    pub(crate) published: Option<Pair<f64>>,
    /// The designs that were compared.
    pub(crate) designs: Pair<&'static str>,
    /// Other designs, to set beside them.
    pub(crate) peers: &'static [&'static str],
    /// The published figure that the machine file was fitted to, if it was: a prediction of that
    /// figure is none.
    pub(crate) calibrated_on: Option<&'static str>,
    /// What a reader must know of the figures: above all why they are off, where they are.
    pub(crate) note: Option<&'static str>,
}

impl Experiment {
    /// All designs to simulate, ours last.
    pub(crate) fn all_designs(&self) -> Vec<&'static str> {
        let Pair { before, after } = self.designs;
        [&[before, after], self.peers, &[SHOOTDOWN]].concat()
    }

    /// How many times better `to` is than `from`. No finite number, if one of them is 0.
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

/// Of the design before the change, and of the one after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair<T> {
    pub(crate) before: T,
    pub(crate) after: T,
}

/// What a simulation found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    /// The metric, in the experiment's unit.
    pub(crate) value: f64,
    /// Flush interrupts sent.
    pub(crate) interrupts_sent: u64,
    /// Of those, to CPUs that were lazy: the space loaded, no user memory touched.
    pub(crate) interrupts_to_lazy: u64,
    /// Of those, to CPUs that did not have the space at all.
    pub(crate) interrupts_to_absent: u64,
    /// Flushes of a whole tag or of the whole TLB, on any CPU.
    pub(crate) flushes_full: u64,
    /// Flushes of single pages, on any CPU.
    pub(crate) flushes_ranged: u64,
    /// Operations by which hardware told all CPUs of a flush.
    pub(crate) broadcasts: u64,
    /// What all CPUs together waited for those to be complete.
    pub(crate) broadcast_wait_ns: u64,
    /// Tags that spaces were given.
    pub(crate) tags_taken: u64,
    /// How often tags were used up, and all were taken back.
    pub(crate) rollovers: u64,
    /// Uses of a translation after the flush that covered it was waited for.
    pub(crate) violations: u64,
    /// Freed page tables that a CPU's speculation could still have walked.
    pub(crate) hazards: u64,
    /// Page tables out of use that were held back because a CPU could still walk them: at most, at
    /// any time.
    pub(crate) held_tables_peak: u64,
    /// How often there were too many of them, and CPUs were interrupted for it.
    pub(crate) held_tables_overflows: u64,
}

/// An experiment, and what became of it under each design.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) experiment: Experiment,
    /// The machine that it ran on.
    pub(crate) machine: String,
    /// The prediction of what was published.
    pub(crate) predicted: Pair<Outcome>,
    /// Of [`Experiment::peers`], in that order.
    pub(crate) peers: Vec<Outcome>,
    /// Of this engine.
    pub(crate) shootdown: Outcome,
}

impl Row {
    /// All designs with their outcomes, ours last.
    pub(crate) fn designs(&self) -> impl Iterator<Item = (&'static str, &Outcome)> {
        let Pair { before, after } = &self.predicted;
        assert_eq!(self.peers.len(), self.experiment.peers.len(), "an outcome for each peer");
        let outcomes = [before, after].into_iter().chain(&self.peers).chain([&self.shootdown]);
        self.experiment.all_designs().into_iter().zip(outcomes)
    }

    /// Dead translations that were used, under any design.
    pub(crate) fn violations(&self) -> u64 {
        self.designs().map(|(_, outcome)| outcome.violations).sum()
    }

    /// How many times better the later design was, as published.
    pub(crate) fn published_gain(&self) -> Option<f64> {
        let Pair { before, after } = self.experiment.published?;
        Some(self.experiment.gain(before, after))
    }

    /// How many times better the later design is, as predicted.
    pub(crate) fn predicted_gain(&self) -> f64 {
        let Pair { before, after } = &self.predicted;
        self.experiment.gain(before.value, after.value)
    }

    /// How many times better this engine is than the earlier design, as predicted.
    pub(crate) fn shootdown_gain(&self) -> f64 {
        self.experiment.gain(self.predicted.before.value, self.shootdown.value)
    }

    /// By how much the predicted gain is off the published one, in percent.
    pub(crate) fn gain_error_percent(&self) -> Option<f64> {
        Some(100.0 * (self.predicted_gain() / self.published_gain()? - 1.0))
    }
}

/// What came of the experiments, and of what.
#[derive(Clone, Debug)]
pub(crate) struct Results {
    pub(crate) rows: Vec<Row>,
    /// Of the experiment that is simulated with more and fewer CPUs, if it was asked for.
    pub(crate) scaling: Option<Scaling>,
    /// Of the choice between the ways to tell other CPUs, if it was asked for.
    pub(crate) choice: Option<Choice>,
    pub(crate) seed: u64,
    pub(crate) scale: Scale,
    /// All that something ran on, each once.
    pub(crate) machines: Vec<Machine>,
}

/// How much is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// As much as was measured.
    Full,
    /// Enough to see which way it goes.
    Quick,
}

/// What a run depends on, apart from the experiment and the design.
#[derive(Clone, Debug)]
pub(crate) struct Conditions {
    /// The experiment's machine, or the one that the user chose.
    pub(crate) machine: Machine,
    /// Where random numbers start.
    pub(crate) seed: u64,
    /// How much is simulated.
    pub(crate) scale: Scale,
    /// What was simulated before, under these conditions but for the machine.
    pub(crate) runs: Runs,
}

/// Simulates one experiment under one design.
pub(crate) fn run(
    experiment: &Experiment,
    design: &str,
    conditions: &Conditions,
) -> Result<Outcome, Failure> {
    simulate::simulate(experiment, design, conditions).map_err(|cause| Failure::Simulation {
        workload: experiment.workload.to_owned(),
        design: design.to_owned(),
        cause,
    })
}

/// The experiment whose rate is simulated with more and fewer CPUs.
pub(crate) const SCALED: &str = "context-switches";

/// Rows with made-up outcomes, to render.
#[cfg(test)]
pub(crate) mod example {
    use super::*;

    fn outcome(value: f64, interrupts_sent: u64, interrupts_to_lazy: u64) -> Outcome {
        Outcome { value, interrupts_sent, interrupts_to_lazy, ..Outcome::default() }
    }

    pub(crate) fn rows() -> Vec<Row> {
        let [first, second, ..] = EXPERIMENTS;
        let fitted = Some("seed 000 before: 21.6 us");
        let first = Experiment { calibrated_on: fitted, peers: &[], ..first };
        let second = Experiment { peers: &[], ..second };
        let before = Outcome { flushes_full: 12_345, hazards: 7, ..outcome(21.5, 100_000, 99_000) };
        let after = Outcome { flushes_ranged: 200_000, ..outcome(13.1, 1_200, 0) };
        let rate = Experiment {
            seed: "001",
            workload: "<switch> & idle",
            metric: "context switches",
            unit: "M/s",
            better: Better::Higher,
            published: Some(Pair { before: 1.0, after: 118.0 }),
            peers: &["naive"],
            ..second
        };
        let storm = Experiment {
            workload: "storm",
            metric: "interrupts per exit",
            unit: "per exit",
            better: Better::Lower,
            published: None,
            peers: &[],
            calibrated_on: None,
            note: Some("nobody <published> it"),
            ..rate
        };
        let row = |experiment: Experiment, before, after, peers, shootdown| Row {
            machine: experiment.machine.to_owned(),
            experiment,
            predicted: Pair { before, after },
            peers,
            shootdown,
        };
        vec![
            row(first, before, after, vec![], outcome(12.03, 0, 0)),
            row(
                second,
                Outcome { broadcasts: 9, broadcast_wait_ns: 31_500, ..outcome(1.85, 9, 9) },
                Outcome { tags_taken: 300, rollovers: 1, ..outcome(1.2, 3, 0) },
                vec![],
                outcome(1.0, 2, 0),
            ),
            row(
                rate,
                outcome(0.98, 0, 0),
                outcome(101.0, 5, 5),
                vec![Outcome { interrupts_to_absent: 4, violations: 2, ..outcome(0.5, 8, 1) }],
                outcome(131.4, 0, 0),
            ),
            row(
                storm,
                Outcome { held_tables_peak: 1200, held_tables_overflows: 1, ..outcome(0.0, 0, 0) },
                outcome(2.97, 297, 297),
                vec![],
                Outcome { held_tables_peak: 300, ..outcome(0.0, 0, 0) },
            ),
        ]
    }

    pub(crate) fn results() -> Results {
        let curve = |design, rates: [f64; 3]| {
            let point = |(cpus, rate)| Point { cpus, rate };
            let points = [2, 192, 4096].into_iter().zip(rates).map(point).collect();
            Curve { design, points, violations: 0 }
        };
        let machine = crate::machines::find("skylake-laptop-kvm").expect("an embedded machine");
        let curves = vec![
            curve("linux-4.12", [1.0, 0.9, 1.0]),
            curve("naive", [1.1, 105.6, 2250.0]),
            curve("shootdown", [1.1, 105.6, 2250.0]),
        ];
        let scaling = Some(Scaling {
            workload: "<switch> & idle",
            machine: machine.name.clone(),
            machine_cpus: 192,
            unit: "M/s",
            curves,
        });
        let told = |time_us, interrupts_sent, broadcasts| Told {
            time_us,
            interrupts_sent,
            broadcasts,
            violations: 0,
        };
        let cell = Cell {
            machine: "arm64-2s",
            workload: "<flush> & go".to_owned(),
            interrupts: told(123.0, 1_500, 0),
            broadcasts: told(200.0, 0, 700),
            chosen: told(150.0, 30, 400),
            peers: vec![("arm64", told(1_234.0, 0, 1_400))],
        };
        let fine = Cell { workload: "fine".to_owned(), chosen: cell.interrupts, ..cell.clone() };
        Results {
            rows: rows(),
            scaling,
            choice: Some(Choice { cells: vec![cell, fine] }),
            seed: 1,
            scale: Scale::Full,
            machines: vec![machine],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_lists_its_designs_in_order_and_counts_all_their_violations() {
        let rows = example::rows();
        let names: Vec<_> = rows[2].designs().map(|(name, _)| name).collect();
        assert_eq!(names, ["linux-4.12", "linux-4.14", "naive", "shootdown"]);
        assert_eq!(rows[2].violations(), 2);
    }

    #[test]
    fn a_gain_is_above_one_whichever_way_is_up() {
        let lower = EXPERIMENTS[0];
        assert!((lower.gain(20.0, 10.0) - 2.0).abs() < 1e-12);
        let higher = Experiment { better: Better::Higher, ..lower };
        assert!((higher.gain(1.0, 118.0) - 118.0).abs() < 1e-12);
    }

    #[test]
    fn every_experiment_has_a_machine_and_designs() {
        for experiment in EXPERIMENTS {
            assert!(crate::machines::find(experiment.machine).is_ok(), "{}", experiment.machine);
            for design in experiment.all_designs() {
                assert!(design.parse::<shootdown_designs::Design>().is_ok(), "{design}");
            }
        }
        assert!(EXPERIMENTS.iter().any(|experiment| experiment.workload == SCALED));
    }

    #[test]
    fn what_was_not_published_has_neither_gain_nor_error() {
        let storm = &example::rows()[3];
        assert_eq!((storm.published_gain(), storm.gain_error_percent()), (None, None));
    }
}
