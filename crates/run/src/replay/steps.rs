//! The second reading of a recording: records become steps of CPUs, in the recorded order.
//!
//! The time at which a system call takes effect is not recorded, only its beginning and its end.
//! Other CPUs continue in between. If the call flushed, it takes effect at the flush. If it did not
//! flush, it changed nothing that a TLB could have held, and the order matters only where addresses
//! are reused. A call that allocates no addresses (`munmap`, `mprotect`, `madvise`) therefore takes
//! effect when it begins, and any other call when it returns. No thread then gets an address before
//! another thread has freed it.
//!
//! A thread computes whenever it is on its CPU and not in one of these calls. Of a page fault, only
//! the beginning is recorded. The rest of the fault, a microsecond or less, counts as computing.

use core::ops::Range;
use std::collections::{HashMap, VecDeque};

use shootdown_program::operation::{
    Access, Entry, FileId, Filling, Mapping, Permission, RawAddress,
};
use shootdown_recording::record::{
    Call, Event, FaultCode, FlushReason, Left, Owner, Record, SpaceId, TaskId, Waker,
};
use shootdown_recording::{ReadError, Reader, Tracker};

use super::survey::{Outcome, PROGRESS_RECORDS, Survey};

/// A step of a CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The recorded time.
    pub(crate) at_ns: u64,
    pub(crate) cpu: usize,
    /// The task that ran on the CPU.
    pub(crate) task: TaskId,
    /// The time that the task has computed since its last step.
    pub(crate) computed_ns: u64,
    pub(crate) action: Action,
}

/// The action of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The recording introduces a task that no recorded task created.
    Introduce { task: TaskId, owner: Owner, space: SpaceId },
    /// The CPU runs another task from now on.
    Switch { next: TaskId, left: Left },
    /// The task changes or uses memory.
    /// The task changes or accesses memory.
    Memory(RawAddress),
    /// The task creates another task, in its own space or in a copy of it.
    Spawn { task: TaskId, space: SpaceId },
    /// The task continues in a new space.
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
    /// The end of the heap of each space, as the last `brk` returned it.
    heap_ends: HashMap<SpaceId, u64>,
    records_read: u64,
    progress: Box<dyn Fn(u64) + 'r>,
}

/// The time up to which a CPU is accounted for, and the part of it in which a task computed.
#[derive(Clone, Copy, Debug, Default)]
struct Cpu {
    accounted_to_ns: u64,
    computed_ns: u64,
}

/// The reason why a task is in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InKernel {
    /// A call, which may already have taken effect.
    Call { call: Call, outcome: Outcome, moved_to: u64, is_done: bool },
    /// A page fault, whose end is not recorded.
    Fault,
    /// The end of the task.
    Exit,
}

impl<'r> Steps<'r> {
    /// `progress` is called with the number of records read, once per [`PROGRESS_RECORDS`].
    pub(crate) fn new(reader: Reader<'r>, survey: &Survey, progress: impl Fn(u64) + 'r) -> Self {
        let cpus = reader.header().cpus;
        Self {
            reader,
            outcomes: survey.outcomes.clone().into_iter(),
            moved_to: survey.moved_to.clone(),
            tracker: Tracker::new(cpus),
            cpus: vec![Cpu::default(); cpus as usize],
            tasks: HashMap::new(),
            heap_ends: HashMap::new(),
            records_read: 0,
            progress: Box::new(progress),
        }
    }

    /// Returns the next step; `None` at the end.
    pub(crate) fn next_step(&mut self) -> Result<Option<Step>, ReadError> {
        while let Some(record) = self.reader.next_record()? {
            self.records_read += 1;
            if self.records_read.is_multiple_of(PROGRESS_RECORDS) {
                (self.progress)(self.records_read);
            }
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

    /// Splits the time since the last record of this CPU into computing, and time that the
    /// simulation of the kernel spends itself.
    fn account(&mut self, record: &Record) {
        let cpu = &mut self.cpus[record.cpu as usize];
        let passed_ns = record.time_ns - cpu.accounted_to_ns;
        cpu.accounted_to_ns = record.time_ns;
        let Some(task) = self.tracker.recorded(record.cpu) else { return };
        match self.tasks.get(&task) {
            Some(InKernel::Call { .. } | InKernel::Exit) => {}
            Some(InKernel::Fault) => {
                // Flushes, requests and interrupts directly after a fault belong to the fault.
                if !matches!(
                    record.event,
                    Event::Flush { .. }
                        | Event::Requests { .. }
                        | Event::Interrupts { .. }
                        | Event::Frame { .. }
                        | Event::Stack { .. }
                        | Event::Name { .. }
                        | Event::Counted { .. }
                ) {
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
                Some(Action::Introduce { task: *task, owner: *owner, space: *space })
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
            Event::Return { value } => self.returned(running?, *value),
            Event::Fault { address, code } => {
                self.tasks.insert(running?, InKernel::Fault);
                Some(Action::Memory(fault(*address, *code)))
            }
            Event::Flush { reason: FlushReason::LocalSpace | FlushReason::Request, .. } => {
                self.flushed(running?)
            }
            Event::Flush { .. }
            | Event::Requests { .. }
            | Event::Interrupts { .. }
            | Event::Frame { .. }
            | Event::Stack { .. }
            | Event::Name { .. }
            | Event::Counted { .. }
            | Event::Lost { .. } => None,
        }
    }

    fn call(&mut self, task: TaskId, call: &Call) -> Option<Action> {
        let outcome = self.outcomes.next().unwrap_or(Outcome::Failed);
        let moved_to = match call {
            Call::Remap { .. } if outcome != Outcome::Failed => self.moved_to.pop_front()?,
            _ => 0,
        };
        let allocates_nothing =
            matches!(call, Call::Unmap { .. } | Call::Protect { .. } | Call::Advise { .. });
        let is_done = allocates_nothing && outcome == Outcome::Silent;
        self.tasks.insert(task, InKernel::Call { call: *call, outcome, moved_to, is_done });
        is_done.then(|| self.effect(task, call, 0)).flatten()
    }

    fn flushed(&mut self, task: TaskId) -> Option<Action> {
        let Some(InKernel::Call { call, outcome: Outcome::Flushed, moved_to, is_done }) =
            self.tasks.get_mut(&task)
        else {
            return None;
        };
        // If the program left the address of new memory to the kernel, it is known only when the
        // call returns. But then the call replaces no mapping, and does not flush.
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

    fn returned(&mut self, task: TaskId, value: i64) -> Option<Action> {
        let Some(InKernel::Call { call, outcome, is_done, .. }) = self.tasks.remove(&task) else {
            return None;
        };
        if is_done || outcome == Outcome::Failed {
            return None;
        }
        self.effect(task, &call, value as u64)
    }

    /// Returns the effect of a call, for which the kernel chose the address `at`.
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
                // The last two clear the accessed mark and keep the rest, so that their flushes
                // are those of the first. Pages of files that `MADV_PAGEOUT` also unmaps stay.
                linux::MADV_FREE | linux::MADV_COLD | linux::MADV_PAGEOUT => {
                    RawAddress::Offer(pages(address, length))
                }
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

/// Constants from Linux's headers, which are the same on every architecture with recordings.
mod linux {
    pub(super) const PROT_WRITE: u32 = 2;
    pub(super) const MAP_SHARED: u32 = 1;
    pub(super) const MAP_ANONYMOUS: u32 = 0x20;
    pub(super) const MAP_POPULATE: u32 = 0x8000;
    pub(super) const MADV_DONTNEED: u32 = 4;
    pub(super) const MADV_FREE: u32 = 8;
    pub(super) const MADV_REMOVE: u32 = 9;
    pub(super) const MADV_COLD: u32 = 20;
    pub(super) const MADV_PAGEOUT: u32 = 21;
    pub(super) const MADV_DONTNEED_LOCKED: u32 = 24;
}
