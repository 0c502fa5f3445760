//! Runs of the workloads of the study of arm64's broadcasts, and checks of their operations.

use std::rc::Rc;

use crate::memory_model::model::checked;
use shootdown_designs::{Arm64, Engine, Linux70, Naive};
use shootdown_program::Workload;
use shootdown_program::operation::{Access, AreaId, Operation, Permission, ProgramId};
use shootdown_run::programs::{MprotectThreaded, SortCompute, TcmallocLargeHeap, Writes};
use shootdown_run::{Limits, Memory, Outcome, Settings, run};
use shootdown_sim::{Machine, Sim, Time};
use shootdown_vm::ErasedCoherence;

const SETTINGS: Settings = Settings {
    memory: Memory::of_frames(1 << 17),
    limits: Limits { threads: 64, time: Time::from_ms(60_000) },
    contents: Some(checked),
    ..Settings::DEFAULT
};
const CPUS: usize = 8;
const MPROTECT: MprotectThreaded = MprotectThreaded::new(4, 20);
const TCMALLOC: TcmallocLargeHeap = TcmallocLargeHeap { copies: 4, every: 20, compute_ns: 100 };
const SORT: SortCompute = SortCompute { shells: 12, sorts: 2, compute_ns: 50_000 };

fn outcome<C: Into<ErasedCoherence>>(
    workload: impl Workload + 'static,
    design: impl FnOnce(Rc<Sim>) -> C,
) -> Outcome {
    let round = include_str!("../../../sim/tests/round.toml");
    let machine = Machine::from_toml(round).unwrap().with_cpus(CPUS).unwrap();
    let name = workload.name();
    let outcome = run(machine, SETTINGS, Rc::new(workload), design).unwrap();
    let first = outcome.first_violations.first();
    assert_eq!((outcome.violations, outcome.hazards), (0, 0), "{name} {first:?}");
    let first = outcome.first_wrong_contents.first();
    assert_eq!(outcome.wrong_contents, 0, "{first:?}");
    outcome
}

fn assert_completes(workload: impl Workload + Copy + 'static, iterations: u64) {
    for outcome in [
        outcome(workload, Engine::<1>::new),
        outcome(workload, Linux70::uncounted),
        outcome(workload, Naive::new),
    ] {
        assert_eq!(outcome.iterations, iterations, "{}", workload.name());
    }
}

#[test]
fn workloads_complete_and_count_iterations() {
    assert_completes(MPROTECT, 80);
    assert_completes(TCMALLOC, 4 * TCMALLOC.iterations());
    assert_completes(SORT, 24);
}

#[test]
fn same_arguments_give_same_outcome() {
    let run = || outcome(SORT, Engine::<1>::new);
    let (one, other) = (run(), run());
    assert_eq!((one.time, one.counts), (other.time, other.counts));
}

#[test]
fn iteration_is_two_protection_changes() {
    let steps: Vec<_> = MPROTECT.steps(ProgramId(1)).collect();
    let is_turn = |pair: &[Operation]| match pair {
        [Operation::Protect { permission: first, .. }, Operation::Protect { permission, .. }] => {
            (*first, *permission) == (Permission::Read, Permission::ReadWrite)
        }
        _ => false,
    };
    let begin = steps.windows(2).position(is_turn).unwrap();
    let turns = steps[begin..].chunks(2).take_while(|pair| is_turn(pair)).count();
    assert_eq!(turns as u64, MPROTECT.iterations);
    let written = &steps[begin - 1];
    assert!(matches!(written, Operation::Touch { access: Access::Write, .. }), "{written:?}");
}

/// Linux flushes in both calls, because the page is present both times. This engine flushes only
/// where a permission is removed. No other CPU runs the space, so that none is interrupted.
#[test]
fn linux_flushes_every_protection_change_and_engine_half() {
    let flushes = |outcome: Outcome| outcome.counts.flushes_full + outcome.counts.flushes_ranged;
    let more = MprotectThreaded { iterations: MPROTECT.iterations + 100, ..MPROTECT };
    let linux =
        flushes(outcome(more, Linux70::uncounted)) - flushes(outcome(MPROTECT, Linux70::uncounted));
    assert_eq!(linux, 4 * 2 * 100);
    let engine = |workload| outcome(workload, Engine::<1>::new);
    let ours = flushes(engine(more)) - flushes(engine(MPROTECT));
    assert_eq!(ours, 4 * 100);
    assert!(engine(more).counts.interrupts_sent <= engine(MPROTECT).counts.interrupts_sent);
}

/// Until the end of 2025, Linux for arm64 made a private page writable again in a fault, after
/// `mprotect`, and flushed it there.
#[test]
fn older_arm64_flushes_page_that_is_written_again() {
    let emag = include_str!("../../../../machines/ampere-emag-32.toml");
    let machine = Machine::from_toml(emag).unwrap().with_cpus(CPUS).unwrap();
    let broadcasts = |writes, design: fn(Rc<Sim>) -> Arm64| {
        let workload = Rc::new(MprotectThreaded { writes, ..MPROTECT });
        run(machine.clone(), SETTINGS, workload, design).unwrap().counts.broadcasts
    };
    let more = |design| broadcasts(Writes::Always, design) - broadcasts(Writes::Once, design);
    assert_eq!(more(Arm64::stock), 0);
    assert_eq!(more(Arm64::reusing), 4 * MPROTECT.iterations);
    assert!(broadcasts(Writes::Once, Arm64::reusing) > broadcasts(Writes::Once, Arm64::stock));
}

#[test]
fn every_copy_has_a_sleeping_thread() {
    for copy in 0..MPROTECT.copies {
        let (main, sleeper) = (ProgramId(1 + 2 * copy), ProgramId(2 + 2 * copy));
        assert_eq!(MPROTECT.steps(sleeper).last(), Some(Operation::Block));
        let last: Vec<_> = MPROTECT.steps(main).collect();
        let end = [Operation::Wake(sleeper), Operation::Join(sleeper)];
        assert!(last.ends_with(&end) && last.contains(&Operation::Spawn(sleeper)));
    }
}

/// The heap grows in order, is returned in place, and is never touched.
#[test]
fn heap_grows_and_is_returned_untouched() {
    let published = TcmallocLargeHeap { copies: 32, every: 1, compute_ns: 1 };
    assert_eq!(published.iterations(), 62_916);
    let steps: Vec<_> = published.steps(ProgramId(1)).collect();
    let is_room = |step: &&Operation| {
        matches!(step, Operation::Map { permission: Permission::None, pages: 262_144, .. })
    };
    let Some(Operation::Map { area: room, .. }) = steps.iter().rfind(is_room) else {
        panic!("no room for a heap")
    };
    let (mut size, mut growths, mut returns) = (0, 0, 0);
    let begin = steps.iter().rposition(|step| is_room(&step)).unwrap();
    for step in &steps[begin..] {
        match step {
            Operation::Protect { area, pages, permission } if area == room => {
                assert_eq!((pages.start, *permission), (size, Permission::ReadWrite));
                (size, growths) = (pages.end, growths + 1);
            }
            Operation::Discard { area, pages } if area == room => {
                assert!(pages.start < pages.end && pages.end <= size, "{pages:?}");
                returns += 1;
            }
            Operation::Touch { area, .. } => assert!(area != room),
            _ => {}
        }
    }
    assert!(growths > 0 && returns > 0 && size <= 262_144, "{growths} {returns} {size}");
    let computed = |step: &Operation| match step {
        Operation::Compute(ns) => *ns,
        _ => 0,
    };
    assert_eq!(steps.iter().map(computed).sum::<u64>(), 62_916, "each iteration computes");
}

#[test]
fn shells_fork_and_join_each_sort() {
    let forks = |program| {
        let of_child = |step: &Operation| matches!(step, Operation::Fork(_) | Operation::Join(_));
        SORT.steps(program).filter(of_child).collect::<Vec<_>>()
    };
    let child = ProgramId(4);
    let pair = [Operation::Fork(child), Operation::Join(child)];
    assert_eq!(forks(ProgramId(3)), [pair.clone(), pair].concat());
    assert_eq!(forks(child), []);
    let shells = forks(ProgramId(0));
    assert_eq!(shells.len(), 24, "all shells are forked before any is waited for");
    assert!(shells[..12].iter().all(|step| matches!(step, Operation::Fork(_))));
}

/// A write to another process's area, or to one that permits no writes, would fault.
#[test]
fn sort_touches_only_its_own_areas() {
    let touched: Vec<AreaId> = SORT
        .steps(ProgramId(4))
        .skip_while(|step| *step != Operation::Exec)
        .filter_map(|step| match step {
            Operation::Touch { area, .. } => Some(area),
            _ => None,
        })
        .collect();
    let mapped: Vec<AreaId> = SORT
        .steps(ProgramId(4))
        .filter_map(|step| match step {
            Operation::Map { area, .. } => Some(area),
            _ => None,
        })
        .collect();
    assert!(touched.iter().all(|area| mapped.contains(area)));
}
