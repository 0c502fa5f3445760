//! The last request of each task to the kernel: the system call or the fault that its flushes
//! belong to.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use shootdown_recording::record::{Call, Event, FaultCode, SpaceId, TaskId};

use crate::causes;
use crate::ranges::Ranges;

/// Bytes of a page.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// Linux's `MAP_ANONYMOUS`, and the bit of `MAP_SHARED` and `MAP_SHARED_VALIDATE`.
const MAP_ANONYMOUS: u32 = 0x20;
const MAP_SHARED: u32 = 1;

/// A call or a fault, by its place among all calls and faults of the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OperationId(pub(crate) u32);

/// A call or a fault of the program.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) task: TaskId,
    pub(crate) space: SpaceId,
    /// Name of the cause of its flushes.
    pub(crate) cause: Cow<'static, str>,
    /// The fault that first read the page, if this is the write that replaces the zero page; the
    /// call that mapped all of the memory that this call unmaps.
    pub(crate) earlier: Option<OperationId>,
    /// The value that a call returned.
    pub(crate) returned: Option<i64>,
}

/// The last request of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Call(OperationId, Call),
    Fault(OperationId),
    Exit,
}

/// The calls and faults of a recording.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    pub(crate) all: Vec<Operation>,
    doing: HashMap<TaskId, Doing>,
    /// The first reads of pages that were not written since.
    reads: HashMap<(SpaceId, u64), OperationId>,
    /// The mappings of each space: the call that made each, and how a file or shared memory is
    /// shared.
    mappings: HashMap<SpaceId, Ranges<(OperationId, Option<Sharing>)>>,
    /// Spaces that were copied, and the copies.
    copied: HashSet<SpaceId>,
}

impl Operations {
    /// Applies an event of a task of the program.
    pub(crate) fn apply(&mut self, task: TaskId, space: SpaceId, event: &Event) {
        match event {
            Event::Call(call) => {
                let earlier = self.mapped(space, call);
                let id = self.add(task, space, causes::of_call(call).into(), earlier);
                self.doing.insert(task, Doing::Call(id, *call));
            }
            Event::Return { value } => self.returned(task, space, *value),
            Event::Fault { address, code } => self.fault(task, space, *address, *code),
            Event::Exit => {
                self.doing.insert(task, Doing::Exit);
            }
            Event::Exec { .. } => {
                self.doing.remove(&task);
            }
            _ => {}
        }
    }

    /// A task created a copy of a space.
    pub(crate) fn copy(&mut self, from: SpaceId, to: SpaceId) {
        self.copied.extend([from, to]);
    }

    /// Counts a fault that a tracer of the kernel caused while the task did something else.
    pub(crate) fn add_foreign_fault(&mut self, task: TaskId, space: SpaceId) {
        self.add(task, space, causes::PAGE_FAULT.into(), None);
    }

    /// Returns the operation that a task's flush belongs to, and the name of the cause.
    pub(crate) fn current(&self, task: TaskId) -> (Option<OperationId>, &str) {
        match self.doing.get(&task) {
            Some(Doing::Call(id, _)) => (Some(*id), &self.operation(*id).cause),
            Some(Doing::Fault(id)) => match &*self.operation(*id).cause {
                causes::PAGE_FAULT => (Some(*id), causes::UNKNOWN),
                cause => (Some(*id), cause),
            },
            Some(Doing::Exit) => (None, causes::EXIT),
            None => (None, causes::UNKNOWN),
        }
    }

    /// Returns `true` if a task's flush surely belongs to its operation. The end of a fault is not
    /// recorded, so the flush may belong to a call that is not recorded either.
    pub(crate) fn is_certain(&self, task: TaskId) -> bool {
        matches!(self.doing.get(&task), Some(Doing::Call(..) | Doing::Exit))
    }

    pub(crate) fn operation(&self, id: OperationId) -> &Operation {
        &self.all[id.0 as usize]
    }

    fn add(
        &mut self,
        task: TaskId,
        space: SpaceId,
        cause: Cow<'static, str>,
        earlier: Option<OperationId>,
    ) -> OperationId {
        let id = OperationId(self.all.len() as u32);
        self.all.push(Operation { task, space, cause, earlier, returned: None });
        id
    }

    fn returned(&mut self, task: TaskId, space: SpaceId, value: i64) {
        let Some(Doing::Call(id, call)) = self.doing.remove(&task) else { return };
        self.all[id.0 as usize].returned = Some(value);
        if (-4095..0).contains(&value) {
            return;
        }
        let mappings = self.mappings.entry(space).or_default();
        match call {
            Call::Map { length, flags, .. } => {
                let sharing = match (flags & MAP_SHARED != 0, flags & MAP_ANONYMOUS == 0) {
                    (true, _) => Some(Sharing::Shared),
                    (false, is_file) => is_file.then_some(Sharing::Private),
                };
                mappings.insert(pages(value as u64, length), (id, sharing));
            }
            Call::Unmap { address, length } => mappings.remove(&pages(address, length)),
            _ => {}
        }
    }

    /// Returns the call that mapped what a call unmaps, if that is the same memory.
    fn mapped(&self, space: SpaceId, call: &Call) -> Option<OperationId> {
        let Call::Unmap { address, length } = *call else { return None };
        let (range, (by, _)) = self.mappings.get(&space)?.at(address)?;
        (range == pages(address, length)).then_some(by)
    }

    fn fault(&mut self, task: TaskId, space: SpaceId, address: u64, code: FaultCode) {
        let page = (space, address / PAGE_BYTES);
        let id = OperationId(self.all.len() as u32);
        let mut first_read = None;
        let cause = match (code.was_present(), code.is_write()) {
            (true, true) => {
                let (read, file) = (self.reads.remove(&page), self.file(space, address));
                first_read = read.filter(|_| file.is_none());
                match (first_read, file) {
                    (_, Some(Sharing::Shared)) => causes::SHARED_WRITE,
                    (Some(_), _) => causes::ZERO_PAGE,
                    (_, Some(Sharing::Private)) if !self.copied.contains(&space) => {
                        causes::FILE_COPY
                    }
                    (None, _) => causes::COPY_ON_WRITE,
                }
            }
            (false, false) => {
                self.reads.insert(page, id);
                causes::PAGE_FAULT
            }
            (false, true) => {
                self.reads.remove(&page);
                causes::PAGE_FAULT
            }
            (true, false) => causes::PAGE_FAULT,
        };
        let id = self.add(task, space, cause.into(), first_read);
        let is_in_call = matches!(self.doing.get(&task), Some(Doing::Call(..)));
        if code.is_user() || !is_in_call {
            self.doing.insert(task, Doing::Fault(id));
        }
    }

    /// Returns how the mapping of a file or of shared memory at an address is shared.
    fn file(&self, space: SpaceId, address: u64) -> Option<Sharing> {
        self.mappings.get(&space)?.at(address)?.1.1
    }
}

/// Returns the addresses of the pages of a range.
pub(crate) fn pages(address: u64, length: u64) -> Range<u64> {
    address..address.saturating_add(length).checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX)
}

/// The kind of a mapping of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    Private,
    Shared,
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: TaskId = TaskId(1);
    const SPACE: SpaceId = SpaceId(0);

    fn cause_after(events: &[Event]) -> String {
        let mut operations = Operations::default();
        events.iter().for_each(|event| operations.apply(TASK, SPACE, event));
        operations.current(TASK).1.to_owned()
    }

    fn fault(address: u64, code: u32) -> Event {
        Event::Fault { address, code: FaultCode(code) }
    }

    #[test]
    fn write_after_first_read_upgrades_the_zero_page() {
        assert_eq!(cause_after(&[fault(0x1000, 4), fault(0x1008, 7)]), causes::ZERO_PAGE);
        assert_eq!(cause_after(&[fault(0x2000, 4), fault(0x1008, 7)]), causes::COPY_ON_WRITE);
        let file = [
            Event::Call(Call::Map { address: 0, length: 0x2000, protection: 3, flags: 2 }),
            Event::Return { value: 0x1000 },
        ];
        let events = [&file[..], &[fault(0x1000, 4), fault(0x1008, 7)]].concat();
        assert_eq!(cause_after(&events), causes::FILE_COPY);
        let mut operations = Operations::default();
        operations.copy(SPACE, SpaceId(1));
        events.iter().for_each(|event| operations.apply(TASK, SPACE, event));
        assert_eq!(operations.current(TASK).1, causes::COPY_ON_WRITE, "a child may share it");
        let map = Call::Map { address: 0, length: 0x2000, protection: 3, flags: 1 };
        let events = [Event::Call(map), file[1].clone(), fault(0x1008, 7)];
        assert_eq!(cause_after(&events), causes::SHARED_WRITE);
    }

    #[test]
    fn call_is_the_cause_until_it_returns() {
        let call = Event::Call(Call::Advise { address: 0, length: 4096, advice: 8 });
        let events = [call, Event::Return { value: 0 }];
        assert_eq!(cause_after(&events[..1]), "madvise(MADV_FREE)");
        assert_eq!(cause_after(&events), causes::UNKNOWN);
        let within = [events[0].clone(), fault(0x7000, 2)];
        assert_eq!(cause_after(&within), "madvise(MADV_FREE)", "the kernel reads the program");
        assert_eq!(cause_after(&[fault(0x1000, 6)]), causes::UNKNOWN, "it flushes nothing");
        assert_eq!(cause_after(&[fault(0x1000, 6), Event::Exit]), causes::EXIT);
    }
}
