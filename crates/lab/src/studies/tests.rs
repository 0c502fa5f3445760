//! Results with invented measurements, for tests of the rendering.

use shootdown_designs::Design;

use super::experiment::Better;
use super::predictions::{Figure, Frozen, Knowledge};
use super::scaling::Point;
use super::{Curve, Experiment, Measurement, Pair, Results, Row, Scale, Scaling};
use super::{Prediction, Simulated, Study, experiments};
use crate::machines::Embedded;

fn measurement(value: f64, interrupts_sent: u64, interrupts_to_lazy: u64) -> Measurement {
    Measurement { value, interrupts_sent, interrupts_to_lazy, ..Measurement::default() }
}

pub(crate) fn rows() -> Vec<Row> {
    let fitted = Some("x86-lazy-tlb before: 21.6 us");
    let mut published = experiments();
    let mut next = || Experiment { peers: &[], ..*published.next().expect("an experiment") };
    let (first, second) = (Experiment { calibrated_on: fitted, ..next() }, next());
    let before =
        Measurement { flushes_full: 12_345, hazards: 7, ..measurement(21.5, 100_000, 99_000) };
    let after = Measurement { flushes_ranged: 200_000, ..measurement(13.1, 1_200, 0) };
    let rate = Experiment {
        study: Study::PowerpcShootLazies,
        workload: "<switch> & idle",
        metric: "context switches",
        unit: "M/s",
        better: Better::Higher,
        published: Some(Pair { before: 1.0, after: 118.0 }),
        peers: &[Design::NAIVE],
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
        note: Some("the figure is not <published>"),
        ..rate
    };
    let row = |experiment: Experiment, measurements: &[Measurement]| {
        let designs = experiment.all_designs().into_iter().zip(measurements);
        let simulated = |(design, &measurement)| Simulated { design, measurement };
        Row {
            machine: experiment.machine.name.to_owned(),
            experiment,
            designs: designs.map(simulated).collect(),
        }
    };
    vec![
        row(first, &[before, after, measurement(12.03, 0, 0)]),
        row(
            second,
            &[
                Measurement { broadcasts: 9, broadcast_wait_ns: 31_500, ..measurement(1.85, 9, 9) },
                Measurement { tags_allocated: 300, rollovers: 1, ..measurement(1.2, 3, 0) },
                measurement(1.0, 2, 0),
            ],
        ),
        row(
            rate,
            &[
                measurement(0.98, 0, 0),
                measurement(101.0, 5, 5),
                Measurement { interrupts_to_non_users: 4, violations: 2, ..measurement(0.5, 8, 1) },
                measurement(131.4, 0, 0),
            ],
        ),
        row(
            storm,
            &[
                Measurement {
                    deferred_tables_peak: 1200,
                    deferred_tables_overflows: 1,
                    ..measurement(0.0, 0, 0)
                },
                measurement(2.97, 297, 297),
                Measurement { deferred_tables_peak: 300, ..measurement(0.0, 0, 0) },
            ],
        ),
    ]
}

fn prediction() -> Prediction {
    let figure = Figure {
        name: "time of <call>".to_owned(),
        unit: "%".to_owned(),
        published: Some(-70.8),
        frozen: -78.6,
        error: Some(20.0),
        frozen_error: Some(-7.8),
        today: -69.12,
        today_error: Some(1.68),
    };
    let text = str::to_owned;
    Prediction {
        name: text("lazy-call"),
        about: text("a call that interrupts no CPU"),
        publication: text("Somebody, <Calls>, 2018"),
        source: text("abstract: it is faster"),
        machine: text("xeon-2s"),
        cpus: 16,
        frozen: Frozen {
            recorded: text("2026-11-23"),
            model: text("the first model"),
            knowledge: Knowledge::Blind,
        },
        learnt: text("Locks matter."),
        figures: vec![figure],
        violations: 0,
    }
}

pub(crate) fn results() -> Results {
    let curve = |design, rates: [f64; 3]| {
        let point = |(cpus, rate)| Point { cpus, rate };
        Curve::new(design, [2, 192, 4096].into_iter().zip(rates).map(point).collect(), 0)
    };
    let machine = Embedded::SKYLAKE_LAPTOP_KVM.machine().expect("an embedded machine");
    let curves = vec![
        curve(Design::LINUX_4_12, [1.0, 0.9, 1.0]),
        curve(Design::NAIVE, [1.1, 105.6, 2250.0]),
        curve(Design::SHOOTDOWN, [1.1, 105.6, 2250.0]),
    ];
    let scaling = Some(Scaling {
        workload: "<switch> & idle",
        machine: machine.name.clone(),
        machine_cpus: 192,
        unit: "M/s",
        curves,
    });
    Results {
        rows: rows(),
        scaling,
        predictions: vec![prediction()],
        seed: 1,
        scale: Scale::Full,
        machines: vec![machine],
    }
}
