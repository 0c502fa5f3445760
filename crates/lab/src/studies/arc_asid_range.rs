//! The rows of seed 002: tags per command, and LMbench.

use std::rc::Rc;

use shootdown_workload::programs::{LatMmap, LatPagefault, LatProc, LatProt, Ls};
use shootdown_workload::programs::{PagesRead, ProcessKind};

use super::measure::Measured;
use crate::studies::Scale;

/// What the kernel and the programs compute in an iteration, besides what the model has. Fitted to
/// the published times before the change, and the same under every design.
mod computed_ns {
    pub(super) const FORK: u64 = 3_872_600;
    pub(super) const EXEC: u64 = 10_742_900;
    pub(super) const SHELL: u64 = 28_015_600;
    pub(super) const MMAP: u64 = 1_477_400;
    pub(super) const SIGNAL: u64 = 13_642;
}

/// What LMbench subtracts from a protection fault: a signal that a process sends to itself, as
/// published before the change.
const SIGNAL_US: f64 = 31.6;

pub(super) fn measured(workload: &str, scale: Scale, seed: u64) -> Option<Measured> {
    let iterations = if scale == Scale::Quick { 5 } else { 100 };
    let process = |kind, compute_ns| -> Option<Measured> {
        Some(Measured::us(Rc::new(LatProc { kind, iterations, compute_ns })))
    };
    match workload {
        "ls-1-library" => Some(ls(iterations, 1)),
        "ls-3-libraries" => Some(ls(iterations, 3)),
        "lmbench-fork" => process(ProcessKind::Fork, computed_ns::FORK),
        "lmbench-exec" => process(ProcessKind::Exec, computed_ns::EXEC),
        "lmbench-sh" => process(ProcessKind::Shell, computed_ns::SHELL),
        "lmbench-mmap" => {
            let computed_us = computed_ns::MMAP as f64 / 1e3;
            let lat = Measured::us(Rc::new(LatMmap::published(iterations)));
            Some(Measured { add: computed_us, ..lat })
        }
        "lmbench-protection-fault" => {
            let lat = LatProt { iterations, signal_ns: computed_ns::SIGNAL };
            Some(Measured { add: -SIGNAL_US, ..Measured::us(Rc::new(lat)) })
        }
        "lmbench-page-fault" => {
            let of = |read| LatPagefault { read, pages: 512, rounds: iterations, seed };
            let lat = Measured::us(Rc::new(of(PagesRead::All)));
            Some(Measured { less: Some(Rc::new(of(PagesRead::None))), ..lat })
        }
        _ => None,
    }
}

fn ls(commands: u64, libraries: u32) -> Measured {
    Measured::of(Rc::new(Ls { commands, libraries }), |found| {
        found.counts.tags_taken as f64 / found.iterations as f64
    })
}
