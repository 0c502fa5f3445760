//! `x86-lazy-tlb`: lazy CPUs compare flush generations instead of being interrupted.

use shootdown_run::programs::{MadviseMigrate, PthreadMmap};

use super::experiment::{Measure, MeasureOf};

/// A quick run does one part of this many equal parts of the work.
const QUICK: u64 = 20;

pub(super) const MEASURES: &[(&str, MeasureOf)] = &[
    ("madvise-touch-migrate", |on| {
        let iterations = on.scale.of(4000, QUICK);
        Ok(Measure::us(MadviseMigrate { cpus: on.cpus, iterations }))
    }),
    ("pthread-mmap", |on| {
        let (published, parts) = (PthreadMmap::published(), on.scale.parts(QUICK));
        let rounds = published.rounds / parts;
        Ok(Measure::run(PthreadMmap { rounds, seed: on.seed, ..published }, parts))
    }),
];
