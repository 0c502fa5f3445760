//! `arc-asid-range`: flushes of ranges, and no flush at exit, instead of new tags. The experiments
//! count tags per command and run LMbench.

use std::rc::Rc;

use shootdown_program::Workload;
use shootdown_run::programs::{LatMmap, LatPagefault, LatProc, LatProt, Ls};
use shootdown_run::programs::{PagesRead, ProcessKind};

use super::experiment::{Measure, MeasureOf, Setup};

/// Times that the kernel and the programs compute in an iteration beyond what the model contains,
/// in nanoseconds. They were fitted to the published times before the change, and do not depend on
/// the design.
mod computed_ns {
    pub(super) const FORK: u64 = 3_864_600;
    pub(super) const EXEC: u64 = 10_734_600;
    pub(super) const SHELL: u64 = 27_990_700;
    pub(super) const MMAP: u64 = 1_477_400;
    pub(super) const SIGNAL: u64 = 13_907;
}

pub(super) const MEASURES: &[(&str, MeasureOf)] = &[
    ("ls-1-library", |on| Ok(ls(on, 1))),
    ("ls-3-libraries", |on| Ok(ls(on, 3))),
    ("lmbench-fork", |on| Ok(process(on, ProcessKind::Fork, computed_ns::FORK))),
    ("lmbench-exec", |on| Ok(process(on, ProcessKind::Exec, computed_ns::EXEC))),
    ("lmbench-sh", |on| Ok(process(on, ProcessKind::Shell, computed_ns::SHELL))),
    ("lmbench-mmap", |on| {
        let offset = computed_ns::MMAP as f64 / 1e3;
        Ok(Measure { offset, ..Measure::us(LatMmap::published(iterations(on))) })
    }),
    ("lmbench-protection-fault", |on| {
        let lat = LatProt { iterations: iterations(on), signal_ns: computed_ns::SIGNAL };
        Ok(Measure::us(lat))
    }),
    ("lmbench-page-fault", |on| {
        let (rounds, seed) = (iterations(on), on.seed);
        let lat = |read| LatPagefault { read, pages: 512, rounds, seed };
        let none: Rc<dyn Workload> = Rc::new(lat(PagesRead::None));
        Ok(Measure { subtract: Some(none), ..Measure::us(lat(PagesRead::All)) })
    }),
];

fn iterations(on: &Setup) -> u64 {
    on.scale.of(100, 20)
}

fn process(on: &Setup, kind: ProcessKind, compute_ns: u64) -> Measure {
    Measure::us(LatProc { kind, iterations: iterations(on), compute_ns })
}

fn ls(on: &Setup, libraries: u32) -> Measure {
    Measure::new(Ls { commands: iterations(on), libraries }, |outcome| {
        outcome.counts.tags_taken as f64 / outcome.iterations as f64
    })
}
