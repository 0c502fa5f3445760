//! The workloads of seed 003, as they run: what they are said to do, they do.

use std::rc::Rc;

use shootdown_designs::{Engine, Linux70, Naive};
use shootdown_program::Workload;
use shootdown_program::operation::{Access, AreaId, Operation, Permission, ProgramId};
use shootdown_run::programs::{MprotectThreaded, SortCompute, TcmallocLargeHeap};
use shootdown_run::{Contents, Limits, Outcome, run};
use shootdown_sim::{Machine, Sim, Time};
use shootdown_vm::ErasedCoherence;

const LIMITS: Limits = Limits {
    frames: 1 << 17,
    threads: 64,
    time: Time::from_ms(60_000),
    contents: Contents::Checked,
    ..Limits::DEFAULT
};
const CPUS: usize = 8;
const MPROTECT: MprotectThreaded = MprotectThreaded { copies: 4, iterations: 20 };
const TCMALLOC: TcmallocLargeHeap = TcmallocLargeHeap { copies: 4, every: 20, compute_ns: 100 };
const SORT: SortCompute = SortCompute { shells: 12, sorts: 2, compute_ns: 50_000 };

fn outcome<C: Into<ErasedCoherence>>(
    workload: impl Workload + 'static,
    design: impl FnOnce(Rc<Sim>) -> C,
) -> Outcome {
    let round = include_str!("../../../sim/tests/round.toml");
    let machine = Machine::from_toml(round).unwrap().with_cpus(CPUS).unwrap();
    let name = workload.name();
    let outcome = run(machine, LIMITS, Rc::new(workload), design).unwrap();
    let first = outcome.first_violations.first();
    assert_eq!((outcome.violations, outcome.hazards), (0, 0), "{name} {first:?}");
    let first = outcome.first_wrong_contents.first();
    assert_eq!(outcome.wrong_contents, 0, "{first:?}");
    outcome
}

fn runs_to_its_end(workload: impl Workload + Copy + 'static, iterations: u64) {
    for outcome in [
        outcome(workload, Engine::<1>::new),
        outcome(workload, Linux70::new),
        outcome(workload, Naive::new),
    ] {
        assert_eq!(outcome.iterations, iterations, "{}", workload.name());
    }
}

#[test]
fn all_run_to_their_end_and_count_what_they_measure() {
    runs_to_its_end(MPROTECT, 80);
    runs_to_its_end(TCMALLOC, 4 * TCMALLOC.iterations());
    runs_to_its_end(SORT, 24);
}

#[test]
fn the_same_run_twice_is_the_same() {
    let run = || outcome(SORT, Engine::<1>::new);
    let (one, other) = (run(), run());
    assert_eq!((one.time, one.counts), (other.time, other.counts));
}

#[test]
fn an_iteration_is_two_changes_of_protection_and_nothing_else() {
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

/// Linux flushes twice, for the page is there both times; this engine only where a permission is
/// lost. Nobody else runs the space, so nobody is interrupted for it.
#[test]
fn each_change_of_protection_is_flushed_by_linux_and_every_other_by_this_engine() {
    let flushes = |outcome: Outcome| outcome.counts.flushes_full + outcome.counts.flushes_ranged;
    let more = MprotectThreaded { iterations: MPROTECT.iterations + 100, ..MPROTECT };
    let linux = flushes(outcome(more, Linux70::new)) - flushes(outcome(MPROTECT, Linux70::new));
    assert_eq!(linux, 4 * 2 * 100);
    let engine = |workload| outcome(workload, Engine::<1>::new);
    let ours = flushes(engine(more)) - flushes(engine(MPROTECT));
    assert_eq!(ours, 4 * 100);
    assert!(engine(more).counts.interrupts_sent <= engine(MPROTECT).counts.interrupts_sent);
}

#[test]
fn every_copy_has_a_thread_that_sleeps_until_the_end() {
    for copy in 0..MPROTECT.copies {
        let (main, sleeper) = (ProgramId(1 + 2 * copy), ProgramId(2 + 2 * copy));
        assert_eq!(MPROTECT.steps(sleeper).last(), Some(Operation::Block));
        let last: Vec<_> = MPROTECT.steps(main).collect();
        let end = [Operation::Wake(sleeper), Operation::Join(sleeper)];
        assert!(last.ends_with(&end) && last.contains(&Operation::Spawn(sleeper)));
    }
}

/// The heap's memory is grown into in order, given back where it is, and never touched.
#[test]
fn the_heap_is_grown_and_returned_and_never_touched() {
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
fn every_shell_forks_for_each_of_its_sorts_and_waits() {
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

/// Who wrote to what it may not use would fault; and so would who names another's area.
#[test]
fn a_sort_reads_its_input_and_writes_no_area_of_another() {
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
