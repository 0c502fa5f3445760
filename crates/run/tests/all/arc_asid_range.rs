//! Runs of the workloads of the study of ARC's ASIDs, and checks of their operations.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::memory_model::model::checked;
use shootdown_designs::{Engine, Linux70, Naive};
use shootdown_program::Workload;
use shootdown_program::operation::{Access, Operation, ProgramId};
use shootdown_run::programs::{
    LatMmap, LatPagefault, LatProc, LatProt, Ls, PagesRead, ProcessKind,
};
use shootdown_run::{Limits, Memory, Outcome, Settings, run};
use shootdown_sim::{Machine, Sim, Time};
use shootdown_vm::ErasedCoherence;

const SETTINGS: Settings = Settings {
    memory: Memory::of_frames(1 << 16),
    limits: Limits { threads: 16, time: Time::from_ms(60_000) },
    contents: Some(checked),
    ..Settings::DEFAULT
};
const MAIN: ProgramId = ProgramId(0);
const LS: Ls = Ls { commands: 3, libraries: 1 };
const PAGEFAULT: LatPagefault =
    LatPagefault { read: PagesRead::All, pages: 100, rounds: 3, seed: 1 };

/// Runs a workload on one CPU, as on the study's machine.
fn outcome<C: Into<ErasedCoherence>>(
    workload: Rc<dyn Workload>,
    design: impl FnOnce(Rc<Sim>) -> C,
) -> Outcome {
    let round = include_str!("../../../sim/tests/round.toml");
    let machine = Machine::from_toml(round).unwrap().with_cpus(1).unwrap();
    let name = workload.name();
    let outcome = run(machine, SETTINGS, workload, design).unwrap();
    let first = outcome.first_violations.first();
    assert_eq!((outcome.violations, outcome.hazards), (0, 0), "{name} {first:?}");
    let first = outcome.first_wrong_contents.first();
    assert_eq!(outcome.wrong_contents, 0, "{first:?}");
    assert_eq!(outcome.counts.interrupts_sent, 0, "{name}: there is only one CPU");
    outcome
}

fn all() -> Vec<(Rc<dyn Workload>, u64)> {
    let process = |kind| LatProc { kind, iterations: 3, compute_ns: 1000 };
    vec![
        (Rc::new(LS), 3),
        (Rc::new(Ls { commands: 2, libraries: 3 }), 2),
        (Rc::new(process(ProcessKind::Fork)), 3),
        (Rc::new(process(ProcessKind::Exec)), 3),
        (Rc::new(process(ProcessKind::Shell)), 3),
        (Rc::new(LatMmap::published(3)), 3),
        (Rc::new(PAGEFAULT), 300),
        (Rc::new(LatPagefault { read: PagesRead::None, ..PAGEFAULT }), 300),
        (Rc::new(LatProt { iterations: 3, signal_ns: 1000 }), 3),
    ]
}

#[test]
fn workloads_complete_and_count_iterations() {
    for (workload, iterations) in all() {
        for outcome in [
            outcome(Rc::clone(&workload), Engine::<1>::new),
            outcome(Rc::clone(&workload), Linux70::uncounted),
            outcome(Rc::clone(&workload), Naive::new),
        ] {
            assert_eq!(outcome.iterations, iterations, "{}", workload.name());
        }
    }
}

#[test]
fn iterations_flush_equally_often() {
    let long: [(Rc<dyn Workload>, u64); 2] = [
        (Rc::new(Ls { commands: 30, ..LS }), 30),
        (Rc::new(LatProc { kind: ProcessKind::Shell, iterations: 30, compute_ns: 1000 }), 30),
    ];
    for (workload, iterations) in long {
        let outcome = outcome(workload, Linux70::uncounted);
        let counts = &outcome.counts;
        // The number of flushes at switches depends on which tag is free.
        let full = counts.flushes_full - counts.flushes_full_at_switch;
        let forks = full.is_multiple_of(iterations) && full >= iterations;
        assert!(forks && counts.flushes_ranged.is_multiple_of(iterations), "{counts:?}");
    }
}

/// Counts the unmaps of areas of which a thread has used a page.
fn used_when_unmapped(steps: impl Iterator<Item = Operation>) -> u64 {
    let mut used: BTreeMap<_, BTreeSet<u64>> = BTreeMap::new();
    let mut count = 0;
    for step in steps {
        match step {
            Operation::Exec => used.clear(),
            Operation::Map { area, .. } => {
                used.remove(&area);
            }
            Operation::Touch { area, pages, .. } => used.entry(area).or_default().extend(pages),
            Operation::Unmap { area, pages } => {
                let was_used = used.get(&area).is_some_and(|it| it.range(pages).next().is_some());
                count += u64::from(was_used);
            }
            _ => {}
        }
    }
    count
}

/// The linker of uClibc reads the header of each library into a page of its own.
#[test]
fn linker_unmaps_a_used_page_per_library() {
    for libraries in 0..=Ls::LIBRARIES_MAX {
        let ls = Ls { libraries, ..LS };
        assert_eq!(used_when_unmapped(ls.steps(ProgramId(1))), u64::from(libraries));
    }
}

#[test]
fn lat_mmap_writes_every_16_kib_of_a_tenth() {
    let lat = LatMmap::published(1);
    let mut pages = Vec::new();
    let measured = lat.steps(MAIN).skip_while(|step| *step != Operation::Begin);
    for step in measured {
        if let Operation::Touch { pages: touched, access, .. } = step {
            assert_eq!((access, touched.end), (Access::Write, touched.start + 1));
            pages.push(touched.start);
        }
    }
    // 16 MiB / 10 / 16 KiB, rounded up.
    assert_eq!((pages.len(), lat.pages_written()), (103, 103));
    assert!(pages.iter().copied().eq((0..103).map(|index| 2 * index)));
}

#[test]
fn lat_pagefault_reads_every_page_once_or_none() {
    let reads = |read| -> Vec<u64> {
        let steps = LatPagefault { read, ..PAGEFAULT }.steps(MAIN);
        let measured = steps.skip_while(|step| *step != Operation::Begin);
        let page = |step| match step {
            Operation::Touch { pages, .. } => Some(pages.start),
            _ => None,
        };
        measured.filter_map(page).collect()
    };
    assert!(reads(PagesRead::None).is_empty());
    for round in reads(PagesRead::All).chunks(100) {
        let mut sorted = round.to_vec();
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(0..100) && sorted != round);
    }
}

/// A design that flushes more than `munmap` needs does not do so here.
#[test]
fn protection_fault_flushes_nothing() {
    let lat = || Rc::new(LatProt { iterations: 50, signal_ns: 0 });
    for outcome in [outcome(lat(), Linux70::uncounted), outcome(lat(), Engine::<1>::new)] {
        let counts = &outcome.counts;
        assert_eq!((counts.flushes_full, counts.flushes_ranged), (0, 0), "{counts:?}");
    }
}
