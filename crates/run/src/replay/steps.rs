//! The second reading: records become steps, each a thing that a CPU does, in the recorded order.
//!
//! When does a system call take effect? Its beginning and its end are recorded; what it does lies
//! between, and on other CPUs the world goes on. If it flushed, the flush says when. If not, it
//! changed nothing that a TLB could have held, and the order matters only where addresses change
//! hands: what gives memory back and does nothing else (`munmap`, `madvise`) does so when the call
//! begins, and whoever may get some has it when the call returns, so that nobody gets what another
//! has not yet given.
//!
//! What of the recorded time did a thread compute? All of it that it was on its CPU and not in one
//! of these calls. Of a page fault only the beginning is recorded, and so the rest of its time, a
//! microsecond or less, is taken for computing.

use core::ops::Range;
use std::collections::{HashMap, VecDeque};

use shootdown_program::operation::{
    Access, Entry, FileId, Filling, Mapping, Permission, RawAddress,
};
use shootdown_recording::record::{
    Call, Event, FaultCode, FlushReason, Left, Owner, Record, SpaceId, TaskId, Waker,
};
use shootdown_recording::{ReadError, Reader};

use super::survey::{Outcome, Survey};
use super::tracker::Tracker;

/// What a CPU does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// When it did it, as recorded.
    pub(crate) at_ns: u64,
    pub(crate) cpu: usize,
    /// Which task ran there.
    pub(crate) task: TaskId,
    /// How long that had computed since its last step.
    pub(crate) computed_ns: u64,
    pub(crate) action: Action,
}

/// What is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// There is a task that nobody of the recording made.
    Meet { task: TaskId, owner: Owner, space: SpaceId },
    /// The CPU is found to run another task, and from now on does.
    Switch { next: TaskId, left: Left },
    /// The task changes or uses memory.
    Memory(RawAddress),
    /// The task makes another, in its own space or in a copy of it.
    Spawn { task: TaskId, space: SpaceId },
    /// The task goes on in a new space.
    Exec { space: SpaceId },
    /// The task ends.
    Exit,
    /// A task is woken.
    Wake { task: TaskId, by: Waker },
}

/// Reads steps from a recording.
pub(crate) struct Steps<'r> {
    reader: Reader<'r>,
    outcomes: std::vec::IntoIter<Outcome>,
    moved_to: VecDeque<u64>,
    tracker: Tracker,
    cpus: Vec<Cpu>,
    tasks: HashMap<TaskId, InKernel>,
    heap_ends: HashMap<SpaceId, u64>,
    read: u64,
}

/// Up to where a CPU's time is accounted for, and how much of it was computing.
#[derive(Clone, Copy, Debug, Default)]
struct Cpu {
    accounted_to_ns: u64,
    computed_ns: u64,
}

/// What a task is in the kernel for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InKernel {
    /// A call, which may already have taken effect.
    Call { call: Call, outcome: Outcome, moved_to: u64, is_done: bool },
    /// A page fault, whose end is not recorded.
    Fault,
    /// To end.
    Exit,
}

impl<'r> Steps<'r> {
    pub(crate) fn new(reader: Reader<'r>, survey: &Survey) -> Self {
        let cpus = reader.header().cpus;
        Self {
            reader,
            outcomes: survey.outcomes.clone().into_iter(),
            moved_to: survey.moved_to.clone(),
            tracker: Tracker::new(cpus),
            cpus: vec![Cpu::default(); cpus as usize],
            tasks: HashMap::new(),
            heap_ends: HashMap::new(),
            read: 0,
        }
    }

    /// How many records were read.
    pub(crate) const fn records_read(&self) -> u64 {
        self.read
    }

    /// The next step; `None` at the end.
    pub(crate) fn next_step(&mut self) -> Result<Option<Step>, ReadError> {
        while let Some(record) = self.reader.next_record()? {
            self.read += 1;
            self.account(&record);
            let task = self.tracker.running(record.cpu);
            let action = self.action(&record);
            self.tracker.apply(&record);
            if let Some(action) = action {
                let cpu = record.cpu as usize;
                let computed_ns = core::mem::take(&mut self.cpus[cpu].computed_ns);
                return Ok(Some(Step { at_ns: record.time_ns, cpu, task, computed_ns, action }));
            }
        }
        Ok(None)
    }

    /// Splits the time since the last record of this CPU into computing and what the simulation
    /// does itself.
    fn account(&mut self, record: &Record) {
        let cpu = &mut self.cpus[record.cpu as usize];
        let passed_ns = record.time_ns - cpu.accounted_to_ns;
        cpu.accounted_to_ns = record.time_ns;
        let Some(task) = self.tracker.recorded(record.cpu) else { return };
        match self.tasks.get(&task) {
            Some(InKernel::Call { .. } | InKernel::Exit) => {}
            Some(InKernel::Fault) => {
                // What the kernel is seen to do at once, it does for the fault.
                if !matches!(record.event, Event::Flush { .. } | Event::Interrupts { .. }) {
                    cpu.computed_ns += passed_ns;
                    self.tasks.remove(&task);
                }
            }
            None => cpu.computed_ns += passed_ns,
        }
    }

    fn action(&mut self, record: &Record) -> Option<Action> {
        let running = self.tracker.recorded(record.cpu);
        match &record.event {
            Event::Task { task, owner, space, .. } => {
                Some(Action::Meet { task: *task, owner: *owner, space: *space })
            }
            Event::Running { task: next } => {
                Some(Action::Switch { next: *next, left: Left::Runnable })
            }
            Event::Switch { next, left } => Some(Action::Switch { next: *next, left: *left }),
            Event::Wake { task, by } => Some(Action::Wake { task: *task, by: *by }),
            Event::Spawn { task, space, .. } => {
                let from = self.tracker.task(running?)?.space;
                if let Some(&end) = self.heap_ends.get(&from) {
                    self.heap_ends.entry(*space).or_insert(end);
                }
                Some(Action::Spawn { task: *task, space: *space })
            }
            Event::Exec { space, .. } => running.map(|_| Action::Exec { space: *space }),
            Event::Exit => {
                self.tasks.insert(running?, InKernel::Exit);
                Some(Action::Exit)
            }
            Event::Call(call) => self.call(running?, call),
            Event::Return { value } => self.has_returned(running?, *value),
            Event::Fault { address, code } => {
                self.tasks.insert(running?, InKernel::Fault);
                Some(Action::Memory(fault(*address, *code)))
            }
            Event::Flush { reason: FlushReason::LocalSpace | FlushReason::Request, .. } => {
                self.has_flushed(running?)
            }
            Event::Flush { .. } | Event::Interrupts { .. } | Event::Lost { .. } => None,
        }
    }

    fn call(&mut self, task: TaskId, call: &Call) -> Option<Action> {
        let outcome = self.outcomes.next().unwrap_or(Outcome::Failed);
        let moved_to = match call {
            Call::Remap { .. } if outcome != Outcome::Failed => self.moved_to.pop_front()?,
            _ => 0,
        };
        let gives_back =
            matches!(call, Call::Unmap { .. } | Call::Protect { .. } | Call::Advise { .. });
        let is_done = gives_back && outcome == Outcome::Silent;
        self.tasks.insert(task, InKernel::Call { call: *call, outcome, moved_to, is_done });
        is_done.then(|| self.effect(task, call, 0)).flatten()
    }

    fn has_flushed(&mut self, task: TaskId) -> Option<Action> {
        let Some(InKernel::Call { call, outcome: Outcome::Flushed, moved_to, is_done }) =
            self.tasks.get_mut(&task)
        else {
            return None;
        };
        // Where new memory is to be is known only when the call returns, if the program left it
        // to the kernel; but then nothing is replaced, and nothing flushed.
        if core::mem::replace(is_done, true) {
            return None;
        }
        let (call, moved_to) = (*call, *moved_to);
        let at = match call {
            Call::Map { address, .. } | Call::Break { address } => address,
            _ => moved_to,
        };
        self.effect(task, &call, at)
    }

    fn has_returned(&mut self, task: TaskId, value: i64) -> Option<Action> {
        let Some(InKernel::Call { call, outcome, is_done, .. }) = self.tasks.remove(&task) else {
            return None;
        };
        if is_done || outcome == Outcome::Failed {
            return None;
        }
        self.effect(task, &call, value as u64)
    }

    /// What a call does that got `at` from the kernel.
    fn effect(&mut self, task: TaskId, call: &Call, at: u64) -> Option<Action> {
        let operation = match *call {
            Call::Map { length, protection, flags, .. } => map(at, length, protection, flags),
            Call::Unmap { address, length } => RawAddress::Unmap(pages(address, length)),
            Call::Protect { address, length, protection } => {
                let permission = permission(protection);
                RawAddress::Protect { pages: pages(address, length), permission }
            }
            Call::Advise { address, length, advice } => match advice {
                linux::MADV_DONTNEED | linux::MADV_REMOVE | linux::MADV_DONTNEED_LOCKED => {
                    RawAddress::Discard(pages(address, length))
                }
                linux::MADV_FREE => RawAddress::Offer(pages(address, length)),
                _ => return None,
            },
            Call::Remap { address, old_length, new_length, .. } => {
                RawAddress::Move { from: pages(address, old_length), to: pages(at, new_length) }
            }
            Call::Break { .. } => {
                let space = self.tracker.task(task)?.space;
                let before = self.heap_ends.insert(space, at)?;
                let (old, new) = (page_after(before), page_after(at));
                match old < new {
                    true => RawAddress::Map {
                        pages: old..new,
                        permission: Permission::ReadWrite,
                        mapping: Mapping::Anonymous,
                        filling: Filling::OnDemand,
                    },
                    false if new < old => RawAddress::Unmap(new..old),
                    false => return None,
                }
            }
        };
        Some(Action::Memory(operation))
    }
}

fn map(address: u64, length: u64, protection: u32, flags: u32) -> RawAddress {
    let is_shared = flags & linux::MAP_SHARED != 0;
    let mapping = match (flags & linux::MAP_ANONYMOUS != 0, is_shared) {
        (true, false) => Mapping::Anonymous,
        (false, false) => Mapping::PrivateFile(FileId(0)),
        (_, true) => Mapping::SharedFile(FileId(0)),
    };
    let filling = match flags & linux::MAP_POPULATE {
        0 => Filling::OnDemand,
        _ => Filling::AtOnce,
    };
    let pages = pages(address, length);
    RawAddress::Map { pages, permission: permission(protection), mapping, filling }
}

const fn fault(address: u64, code: FaultCode) -> RawAddress {
    RawAddress::Fault {
        page: address / PAGE_BYTES,
        access: if code.is_write() { Access::Write } else { Access::Read },
        entry: if code.was_present() { Entry::Refusing } else { Entry::Absent },
    }
}

const fn permission(protection: u32) -> Permission {
    match protection {
        0 => Permission::None,
        _ if protection & linux::PROT_WRITE != 0 => Permission::ReadWrite,
        _ => Permission::Read,
    }
}

const PAGE_BYTES: u64 = 4096;

const fn page_after(address: u64) -> u64 {
    address.div_ceil(PAGE_BYTES)
}

const fn pages(address: u64, length: u64) -> Range<u64> {
    address / PAGE_BYTES..page_after(address.saturating_add(length))
}

/// Numbers from Linux's headers, the same on every architecture with recordings to import.
mod linux {
    pub(super) const PROT_WRITE: u32 = 2;
    pub(super) const MAP_SHARED: u32 = 1;
    pub(super) const MAP_ANONYMOUS: u32 = 0x20;
    pub(super) const MAP_POPULATE: u32 = 0x8000;
    pub(super) const MADV_DONTNEED: u32 = 4;
    pub(super) const MADV_FREE: u32 = 8;
    pub(super) const MADV_REMOVE: u32 = 9;
    pub(super) const MADV_DONTNEED_LOCKED: u32 = 24;
}
