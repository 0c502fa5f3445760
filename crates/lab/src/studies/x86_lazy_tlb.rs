//! `x86-lazy-tlb`: lazy CPUs compare flush generations instead of being interrupted.

use shootdown_designs::Design;
use shootdown_run::programs::{MadviseMigrate, PthreadMmap};

use super::experiment::{Better, Experiment, Measure, Pair, Study};
use crate::machines::Embedded;

/// A quick run does one part of this many equal parts of the work.
const QUICK: u64 = 20;

const PTHREAD_NOTE: &str = "The source of this benchmark is not public, so the accesses between \
    its calls are assumed. The threads wait mostly for the lock of the address space. A writer \
    that waits spins, as in Linux since 3.16 (4fc828e24cd9); with a lock whose waiters all sleep, \
    the model predicts a gain of 1.86 times. The published machine is a guest, and the model \
    charges nothing for spinning on a virtual CPU that shares its core.";

const MIGRATE: Experiment = Experiment {
    study: Study::X86LazyTlb,
    workload: "madvise-touch-migrate",
    machine: Embedded::SKYLAKE_LAPTOP_KVM,
    metric: "time of an iteration",
    unit: "us",
    better: Better::Lower,
    published: Some(Pair { before: 21.6, after: 13.4 }),
    designs: Pair { before: Design::LINUX_4_12, after: Design::LINUX_4_14 },
    peers: &[Design::NAIVE, Design::LINUX_7_0, Design::SHOOTDOWN_ALONE],
    calibrated_on: Some("x86-lazy-tlb before: 21.6 us"),
    note: None,
    measure: |on| {
        let iterations = on.scale.of(4000, QUICK);
        Ok(Measure::us(MadviseMigrate { cpus: on.cpus, iterations }))
    },
};

pub(super) const EXPERIMENTS: &[Experiment] = &[
    MIGRATE,
    Experiment {
        workload: "pthread-mmap",
        metric: "time of a run",
        unit: "s",
        published: Some(Pair { before: 1.9, after: 1.1 }),
        calibrated_on: Some("x86-lazy-tlb before: 1.9 s (number of mappings)"),
        measure: |on| {
            let (published, parts) = (PthreadMmap::published(), on.scale.parts(QUICK));
            let rounds = published.rounds / parts;
            Ok(Measure::run(PthreadMmap { rounds, seed: on.seed, ..published }, parts))
        },
        note: Some(PTHREAD_NOTE),
        ..MIGRATE
    },
];
