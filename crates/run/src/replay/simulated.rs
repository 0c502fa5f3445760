//! A recording by a schedule of the simulated machine's own.
//!
//! What each thread did is kept, and in which order; and who waited for whom. A thread that was
//! woken by another waits until that one has come as far; one that was woken by a timer or a device
//! sleeps for as long as it did. When a thread runs, and where, the machine decides, which may have
//! other CPUs than the one that recorded.
//!
//! Kept in memory, at one or two words for most operations.

use std::collections::HashMap;
use std::io::Read;
use std::rc::Rc;

use shootdown_sim::Rng;

use shootdown_program::operation::{
    Access, ByAddress, Entry, FileId, Filling, Mapping, Operation, Permission, ProgramId, Start,
    Steps as ThreadSteps, Workload,
};
use shootdown_recording::record::{Left, Owner, SpaceId, TaskId, Waker};
use shootdown_recording::{ReadError, Reader};

use super::steps::{Action, Step, Steps};
use super::survey::{PROGRESS_RECORDS, Survey};

/// A recording, as the programs of its threads.
#[derive(Clone, Debug)]
pub struct Threads {
    name: String,
    starts: Vec<Start>,
    programs: HashMap<ProgramId, Rc<[u64]>>,
}

impl Threads {
    /// Of a recording, of which `survey` was made. Threads begin up to a microsecond later, and
    /// what they compute and sleep takes up to 1.6 % more or less, by random numbers from `seed`:
    /// which of two was first is often chance. `progress` is told now and then how many records
    /// were read.
    ///
    /// # Errors
    ///
    /// If the recording cannot be read.
    pub fn of(
        reader: Reader<impl Read>,
        survey: &Survey,
        seed: u64,
        progress: impl Fn(u64),
    ) -> Result<Self, ReadError> {
        let mut steps = Steps::new(reader, survey);
        let mut sorter = Sorter::new(seed);
        let mut told = 0;
        while let Some(step) = steps.next_step()? {
            sorter.step(&step);
            let read = steps.records_read();
            if read / PROGRESS_RECORDS > told {
                told = read / PROGRESS_RECORDS;
                progress(read);
            }
        }
        Ok(Self {
            name: survey.header.command.join(" "),
            starts: sorter.starts,
            programs: sorter.programs.into_iter().map(|(at, words)| (at, words.into())).collect(),
        })
    }

    /// How many threads there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.programs.len()
    }
}

impl Workload for Threads {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn processes(&self) -> Vec<Start> {
        self.starts.clone()
    }

    fn steps(&self, program: ProgramId) -> ThreadSteps {
        let words = self.programs.get(&program).cloned().unwrap_or_default();
        Box::new(Words { words, at: 0 })
    }
}

/// One part in so many is by how much times vary.
const VARIATION: u64 = 64;

/// By how much threads begin later than recorded, at most.
const LATE_NS_MAX: u64 = 1000;

/// Sorts steps by thread.
#[derive(Debug)]
struct Sorter {
    starts: Vec<Start>,
    programs: HashMap<ProgramId, Vec<u64>>,
    /// The thread that began in each space.
    first_in: HashMap<SpaceId, ProgramId>,
    spaces: HashMap<TaskId, SpaceId>,
    rng: Rng,
    /// Since when threads are blocked.
    blocked_at_ns: HashMap<TaskId, u64>,
}

impl Sorter {
    fn new(seed: u64) -> Self {
        Self {
            starts: Vec::new(),
            programs: HashMap::new(),
            first_in: HashMap::new(),
            spaces: HashMap::new(),
            rng: Rng::new(seed),
            blocked_at_ns: HashMap::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        let is_recorded = self.spaces.contains_key(&step.task);
        if is_recorded && step.computed_ns > 0 {
            let computed_ns = self.varied(step.computed_ns);
            self.push(step.task, Operation::Compute(computed_ns));
        }
        match &step.action {
            Action::Meet { task, owner: Owner::Recorded, space } => self.meet(*task, *space),
            Action::Switch { next, left } => {
                if is_recorded && *left == Left::Blocked {
                    self.blocked_at_ns.insert(step.task, step.at_ns);
                }
                // Woken by nobody whom the recording shows.
                self.slept(*next, step.at_ns);
            }
            Action::Wake { task, by: Waker::Running }
                if is_recorded && self.blocked_at_ns.remove(task).is_some() =>
            {
                self.push(*task, Operation::Block);
                self.push(step.task, Operation::Wake(program(*task)));
            }
            Action::Wake { task, .. } => self.slept(*task, step.at_ns),
            Action::Memory(operation) if is_recorded => {
                self.push(step.task, Operation::ByAddress(operation.clone()));
            }
            Action::Spawn { task, space } if is_recorded => {
                let shares = self.spaces.get(&step.task) == Some(space);
                self.begin(*task, *space);
                let child = program(*task);
                let make = if shares { Operation::Spawn(child) } else { Operation::Fork(child) };
                self.push(step.task, make);
            }
            Action::Exec { space } if is_recorded => {
                self.spaces.insert(step.task, *space);
                self.push(step.task, Operation::Exec);
            }
            _ => {}
        }
    }

    /// A thread that was there from the beginning.
    fn meet(&mut self, task: TaskId, space: SpaceId) {
        self.begin(task, space);
        match self.first_in.get(&space) {
            Some(&first) => self.push(TaskId(first.0), Operation::Spawn(program(task))),
            None => {
                self.first_in.insert(space, program(task));
                self.starts.push(Start { program: program(task), cpu: None });
            }
        }
    }

    fn begin(&mut self, task: TaskId, space: SpaceId) {
        self.spaces.insert(task, space);
        self.programs.insert(program(task), Vec::new());
        let late_ns = self.rng.below(LATE_NS_MAX);
        self.push(task, Operation::Compute(late_ns));
    }

    fn slept(&mut self, task: TaskId, to_ns: u64) {
        if let Some(from_ns) = self.blocked_at_ns.remove(&task) {
            let slept_ns = self.varied(to_ns - from_ns);
            self.push(task, Operation::Sleep(slept_ns));
        }
    }

    /// A time, more or less.
    fn varied(&mut self, ns: u64) -> u64 {
        let most = ns / VARIATION;
        (ns - most).saturating_add(self.rng.below(2 * most + 1)).min(VALUE_MAX)
    }

    fn push(&mut self, task: TaskId, operation: Operation) {
        if let Some(words) = self.programs.get_mut(&program(task)) {
            pack(operation, words);
        }
    }
}

const fn program(task: TaskId) -> ProgramId {
    ProgramId(task.0)
}

/// Operations in words: kind in the lowest 4 bits, how in the next 8, how many or where above.
/// Operations on ranges take a word more for the end.
struct Words {
    words: Rc<[u64]>,
    at: usize,
}

const COMPUTE: u64 = 0;
const BLOCK: u64 = 1;
const WAKE: u64 = 2;
const SLEEP: u64 = 3;
const SPAWN: u64 = 4;
const FORK: u64 = 5;
const EXEC: u64 = 6;
const FAULT: u64 = 7;
const MAP: u64 = 8;
const UNMAP: u64 = 9;
const PROTECT: u64 = 10;
const DISCARD: u64 = 11;
const OFFER: u64 = 12;
const MOVE: u64 = 13;

const VALUE_SHIFT: u32 = 12;
/// What fits above, and two months in nanoseconds.
const VALUE_MAX: u64 = u64::MAX >> VALUE_SHIFT;
const HOW_SHIFT: u32 = 4;
const HOW_MASK: u64 = 0xff;
const KIND_MASK: u64 = 0xf;

fn pack(operation: Operation, words: &mut Vec<u64>) {
    let mut word = |kind: u64, how: u64, value: u64| {
        words.push(kind | how << HOW_SHIFT | value << VALUE_SHIFT);
    };
    match operation {
        Operation::Compute(ns) => word(COMPUTE, 0, ns),
        Operation::Block => word(BLOCK, 0, 0),
        Operation::Wake(other) => word(WAKE, 0, other.0.into()),
        Operation::Sleep(ns) => word(SLEEP, 0, ns),
        Operation::Spawn(thread) => word(SPAWN, 0, thread.0.into()),
        Operation::Fork(child) => word(FORK, 0, child.0.into()),
        Operation::Exec => word(EXEC, 0, 0),
        Operation::ByAddress(ByAddress::Fault { page, access, entry }) => {
            let how = u64::from(access == Access::Write) | u64::from(entry == Entry::Refusing) << 1;
            word(FAULT, how, page);
        }
        Operation::ByAddress(ByAddress::Map { pages, permission, mapping, filling }) => {
            let mapping = match mapping {
                Mapping::Anonymous => 0,
                Mapping::PrivateFile(_) => 1,
                Mapping::SharedFile(_) => 2,
            };
            let fill = u64::from(filling == Filling::AtOnce);
            word(MAP, permission_number(permission) | mapping << 2 | fill << 4, pages.start);
            words.push(pages.end);
        }
        Operation::ByAddress(ByAddress::Protect { pages, permission }) => {
            word(PROTECT, permission_number(permission), pages.start);
            words.push(pages.end);
        }
        Operation::ByAddress(ByAddress::Unmap(pages)) => {
            word(UNMAP, 0, pages.start);
            words.push(pages.end);
        }
        Operation::ByAddress(ByAddress::Discard(pages)) => {
            word(DISCARD, 0, pages.start);
            words.push(pages.end);
        }
        Operation::ByAddress(ByAddress::Offer(pages)) => {
            word(OFFER, 0, pages.start);
            words.push(pages.end);
        }
        Operation::ByAddress(ByAddress::Move { from, to }) => {
            word(MOVE, 0, from.start);
            words.extend([from.end, to.start, to.end]);
        }
        // Not of recordings.
        _ => {}
    }
}

impl Words {
    fn word(&mut self) -> Option<u64> {
        let word = self.words.get(self.at).copied();
        self.at += 1;
        word
    }
}

impl Iterator for Words {
    type Item = Operation;

    fn next(&mut self) -> Option<Operation> {
        let word = self.word()?;
        let (how, value) = (word >> HOW_SHIFT & HOW_MASK, word >> VALUE_SHIFT);
        let other = ProgramId(value as u32);
        let operation = match word & KIND_MASK {
            COMPUTE => return Some(Operation::Compute(value)),
            BLOCK => return Some(Operation::Block),
            WAKE => return Some(Operation::Wake(other)),
            SLEEP => return Some(Operation::Sleep(value)),
            SPAWN => return Some(Operation::Spawn(other)),
            FORK => return Some(Operation::Fork(other)),
            EXEC => return Some(Operation::Exec),
            FAULT => ByAddress::Fault {
                page: value,
                access: if how & 1 == 0 { Access::Read } else { Access::Write },
                entry: if how & 2 == 0 { Entry::Absent } else { Entry::Refusing },
            },
            MAP => ByAddress::Map {
                pages: value..self.word()?,
                permission: permission(how & 3),
                mapping: match how >> 2 & 3 {
                    0 => Mapping::Anonymous,
                    1 => Mapping::PrivateFile(FileId(0)),
                    _ => Mapping::SharedFile(FileId(0)),
                },
                filling: if how >> 4 == 0 { Filling::OnDemand } else { Filling::AtOnce },
            },
            PROTECT => {
                ByAddress::Protect { pages: value..self.word()?, permission: permission(how) }
            }
            UNMAP => ByAddress::Unmap(value..self.word()?),
            DISCARD => ByAddress::Discard(value..self.word()?),
            OFFER => ByAddress::Offer(value..self.word()?),
            _ => ByAddress::Move { from: value..self.word()?, to: self.word()?..self.word()? },
        };
        Some(Operation::ByAddress(operation))
    }
}

const fn permission_number(permission: Permission) -> u64 {
    match permission {
        Permission::None => 0,
        Permission::Read => 1,
        Permission::ReadWrite => 2,
    }
}

const fn permission(number: u64) -> Permission {
    match number {
        0 => Permission::None,
        1 => Permission::Read,
        _ => Permission::ReadWrite,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_out_as_it_was() {
        let map = |permission, mapping, filling| {
            Operation::ByAddress(ByAddress::Map { pages: 5..9, permission, mapping, filling })
        };
        let mut all = vec![
            Operation::Compute(1 << 50),
            Operation::Block,
            Operation::Wake(ProgramId(u32::MAX)),
            Operation::Sleep(7),
            Operation::Spawn(ProgramId(3)),
            Operation::Fork(ProgramId(4)),
            Operation::Exec,
            map(Permission::None, Mapping::Anonymous, Filling::OnDemand),
            map(Permission::Read, Mapping::PrivateFile(FileId(0)), Filling::AtOnce),
            map(Permission::ReadWrite, Mapping::SharedFile(FileId(0)), Filling::AtOnce),
        ];
        for access in [Access::Read, Access::Write] {
            for entry in [Entry::Absent, Entry::Refusing] {
                let fault = ByAddress::Fault { page: (1 << 52) - 1, access, entry };
                all.push(Operation::ByAddress(fault));
            }
        }
        for permission in [Permission::None, Permission::Read, Permission::ReadWrite] {
            all.push(Operation::ByAddress(ByAddress::Protect { pages: 1..2, permission }));
        }
        all.extend(
            [
                ByAddress::Unmap(0..1 << 51),
                ByAddress::Discard(3..4),
                ByAddress::Offer(5..6),
                ByAddress::Move { from: 1..2, to: 8..12 },
            ]
            .map(Operation::ByAddress),
        );
        let mut words = Vec::new();
        for operation in &all {
            pack(operation.clone(), &mut words);
        }
        let unpacked = Words { words: words.into(), at: 0 };
        assert_eq!(unpacked.collect::<Vec<_>>(), all);
    }
}
