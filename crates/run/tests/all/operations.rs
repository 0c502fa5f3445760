//! Single operations, on a machine with round times.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::memory_model::model::checked;
use shootdown_designs::Linux70;
use shootdown_program::operation::{
    Access, AreaId, Entry, FileId, Filling, LockId, Mapping, Operation, Permission, ProgramId,
    RawAddress, Start, Steps,
};
use shootdown_program::{StepError, Workload};
use shootdown_run::{Limits, Memory, Outcome, RunError, Settings, Supply, run};
use shootdown_sim::{Machine, Time};

/// Programs by number. The first one starts with the workload.
pub(crate) struct Programs(pub(crate) RefCell<HashMap<u32, Vec<Operation>>>);

impl Workload for Programs {
    fn name(&self) -> String {
        "programs".to_owned()
    }
    fn processes(&self) -> Vec<Start> {
        vec![Start { program: ProgramId(0), cpu: None }]
    }
    fn steps(&self, program: ProgramId) -> Steps {
        Box::new(self.0.borrow_mut().remove(&program.0).unwrap_or_default().into_iter())
    }
}

fn run_programs(programs: impl IntoIterator<Item = Vec<Operation>>) -> Result<Outcome, RunError> {
    run_in(Memory::of_frames(1 << 12), programs)
}

fn run_in(
    memory: Memory,
    programs: impl IntoIterator<Item = Vec<Operation>>,
) -> Result<Outcome, RunError> {
    let round = include_str!("../../../sim/tests/round.toml");
    let machine = Machine::from_toml(round).unwrap().with_cpus(4).unwrap();
    let settings = Settings {
        memory,
        limits: Limits { threads: 16, time: Time::from_ms(1000) },
        contents: Some(checked),
        ..Settings::DEFAULT
    };
    let programs = Programs(RefCell::new((0..).zip(programs).collect()));
    let outcome = run(machine, settings, Rc::new(programs), Linux70::uncounted)?;
    assert_eq!(outcome.wrong_contents, 0, "{:?}", outcome.first_wrong_contents);
    Ok(outcome)
}

const AREA: AreaId = AreaId(0);

fn map(pages: u64, mapping: Mapping) -> Operation {
    Operation::Map { area: AREA, pages, permission: Permission::ReadWrite, mapping }
}

fn touch(pages: core::ops::Range<u64>, access: Access) -> Operation {
    Operation::Touch { area: AREA, pages, access }
}

const CHILD: ProgramId = ProgramId(1);

#[test]
fn locks_exclude_and_only_holders_unlock() {
    let lock = LockId(3);
    let critical = vec![Operation::Lock(lock), Operation::Compute(50_000), Operation::Unlock(lock)];
    let parent = [Operation::Spawn(CHILD)].into_iter().chain(critical.clone());
    let parent = parent.chain([Operation::Join(CHILD)]).collect();
    let outcome = run_programs([parent, critical]).unwrap();
    assert!(outcome.time >= Time::from_ns(100_000), "{}", outcome.time);
    let stranger = run_programs([vec![Operation::Unlock(lock)]]);
    let error = StepError::NotHeld(lock);
    assert_eq!(stranger.unwrap_err(), RunError::Step { program: ProgramId(0), error });
}

#[test]
fn wake_before_or_after_block_is_not_lost() {
    for head_start in [0, 100_000] {
        let parent = vec![
            Operation::Spawn(CHILD),
            Operation::Compute(head_start),
            Operation::Block,
            Operation::Join(CHILD),
        ];
        let child = vec![Operation::Compute(50_000), Operation::Wake(ProgramId(0))];
        run_programs([parent, child]).unwrap();
    }
}

#[test]
fn block_without_a_waker_is_a_deadlock() {
    assert_eq!(run_programs([vec![Operation::Block]]).unwrap_err(), RunError::Deadlock(1));
}

#[test]
fn operations_permit_and_refuse_accesses() {
    let fault = |steps: Vec<Operation>| match run_programs([steps]) {
        Ok(_) => None,
        Err(RunError::Step { error, .. }) => Some(error),
        Err(error) => panic!("{error}"),
    };
    let write = || touch(0..4, Access::Write);
    let read_only = Operation::Protect { area: AREA, pages: 0..4, permission: Permission::Read };
    let unmap = Operation::Unmap { area: AREA, pages: 0..4 };
    let discard = Operation::Discard { area: AREA, pages: 0..4 };
    let files = [Mapping::PrivateFile(FileId(0)), Mapping::SharedFile(FileId(0))];
    for mapping in [Mapping::Anonymous].into_iter().chain(files) {
        assert_eq!(fault(vec![map(4, mapping), write(), discard.clone(), write()]), None);
        let protected = vec![map(4, mapping), write(), read_only.clone(), write()];
        assert!(matches!(fault(protected), Some(StepError::Fault(_))));
        let gone = vec![map(4, mapping), write(), unmap.clone(), touch(0..1, Access::Read)];
        assert!(matches!(fault(gone), Some(StepError::Fault(_))));
    }
    assert_eq!(fault(vec![write()]), Some(StepError::UnknownArea(AREA)));
    assert_eq!(fault(vec![map(1 << 13, Mapping::Anonymous), touch(0..1 << 13, Access::Write)]), {
        Some(StepError::Fault(shootdown_vm::FaultError::OutOfMemory))
    });
}

#[test]
fn large_pages_keep_words_when_made_and_split() {
    let raw = |operation| Operation::RawAddress(operation);
    let (pages, permission) = (0x4000..0x4200, Permission::ReadWrite);
    let (mapping, filling) = (Mapping::Anonymous, Filling::OnDemand);
    let map = RawAddress::Map { pages: pages.clone(), permission, mapping, filling };
    let touch = |page, access| raw(RawAddress::Fault { page, access, entry: Entry::Absent });
    let collapse = || raw(RawAddress::Collapse(pages.clone()));
    let steps = vec![
        raw(map),
        collapse(),
        touch(0x4007, Access::Write),
        collapse(),
        touch(0x4007, Access::Read),
        touch(0x4008, Access::Read),
        raw(RawAddress::Discard(0x4008..0x4009)),
        touch(0x4007, Access::Read),
        // There is only one node, and the memory manager does not record where pages are mapped.
        raw(RawAddress::MovePages { pages: pages.clone(), node: 0 }),
        raw(RawAddress::MovePages { pages: pages.clone(), node: 9 }),
        collapse(),
    ];
    let memory = run_programs([steps]).unwrap().memory;
    assert_eq!((memory.collapsed, memory.split, memory.migrated), (2, 1, 0));
}

#[test]
fn pages_move_only_to_nodes_of_recorded_memory() {
    let moved = |supply, node| {
        let memory = Memory { nodes: 2, supply, ..Memory::of_frames(1 << 12) };
        let move_pages = Operation::MovePages { area: AREA, pages: 0..4, node };
        run_in(memory, [vec![map(4, Mapping::Anonymous), touch(0..4, Access::Write), move_pages]])
    };
    let failed = |error| RunError::Step { program: ProgramId(0), error };
    assert_eq!(moved(Supply::Enough, 1).unwrap_err(), failed(StepError::NotRecorded));
    assert_eq!(moved(Supply::Reclaimed, 2).unwrap_err(), failed(StepError::NoNode(2)));
    assert_eq!(moved(Supply::Reclaimed, 1).unwrap().memory.migrated, 4);
}

#[test]
fn fork_copies_memory_and_exec_discards_it() {
    let parent = vec![
        map(4, Mapping::Anonymous),
        touch(0..4, Access::Write),
        Operation::Fork(CHILD),
        touch(0..4, Access::Write),
        Operation::Join(CHILD),
    ];
    let child = vec![touch(0..4, Access::Write), Operation::Exec, touch(0..1, Access::Read)];
    let error = run_programs([parent, child]).unwrap_err();
    let gone = StepError::Fault(shootdown_vm::FaultError::NoArea);
    assert!(
        matches!(error, RunError::Step { program: CHILD, error } if error == gone
            || error == StepError::UnknownArea(AREA)),
        "{error}"
    );
}

#[test]
fn segfault_must_be_refused() {
    let protect = |permission| Operation::Protect { area: AREA, pages: 0..1, permission };
    let segfault = Operation::Segfault { area: AREA, page: 0 };
    let begin = || vec![map(1, Mapping::Anonymous), touch(0..1, Access::Write)];
    let refused = [begin(), vec![protect(Permission::Read), segfault.clone(), segfault.clone()]];
    run_programs([refused.concat()]).unwrap();
    let permitted = [begin(), vec![segfault.clone()]];
    let error = StepError::NotRefused;
    let program = ProgramId(0);
    assert_eq!(run_programs([permitted.concat()]).unwrap_err(), RunError::Step { program, error });
    let nowhere = run_programs([vec![segfault]]).unwrap_err();
    assert_eq!(nowhere, RunError::Step { program, error: StepError::UnknownArea(AREA) });
}

#[test]
fn system_call_takes_time_and_flushes_nothing() {
    let calls = |count| {
        let steps = [Operation::Begin].into_iter();
        let steps = steps.chain((0..count).map(|_| Operation::SystemCall));
        run_programs([steps.chain([Operation::End { iterations: count }]).collect()]).unwrap()
    };
    let (one, ten) = (calls(1), calls(10));
    assert!(one.time > Time::ZERO);
    assert!(ten.time >= one.time + one.time, "{} and {}", one.time, ten.time);
    assert_eq!((ten.counts.flushes_full, ten.counts.flushes_ranged), (0, 0));
}
