//! Changes of a recording that do what a remedy does to the program. A replay of the changed
//! recording predicts what the remedy saves.

use std::collections::{HashMap, HashSet};
use std::io;

use serde::Deserialize;
use shootdown_recording::record::{Call, Event, FaultCode, Record, SpaceId, TaskId};
use shootdown_recording::{Reader, Tracker, Writer};

use crate::analysis::Analysis;
use crate::doing::{OperationId, pages};
use crate::ranges::Ranges;
use crate::sites::{Explanation, Key, Site};

/// The bit of a fault's code that means a write.
const WRITE: u32 = 1 << 1;
/// Linux's flag of `mmap` that requires the address.
const MAP_FIXED: u32 = 0x10;

/// A change of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// The calls are not made. The memory that they would have returned stays; what `munmap` would
    /// have unmapped as a whole is not mapped or accessed in the first place.
    Drop,
    /// Memory is not unmapped, and reused by later mappings of its addresses, which may be larger.
    Keep,
    /// Pages are written when they are first read.
    WriteFirst,
    /// Children that execute a program share memory with their parent until then.
    Spawn,
    /// The recording is not changed: a replay cannot show the effect.
    None,
}

impl Change {
    /// Writes the recording that `reader` reads to `out`, changed at one site.
    ///
    /// # Errors
    ///
    /// If the recording cannot be read, or `out` cannot be written to.
    ///
    /// # Panics
    ///
    /// Does not panic: a reader that has reached the end without an error has totals.
    pub fn apply<W: io::Write>(
        self,
        mut reader: Reader<'_>,
        analysis: &Analysis,
        explanation: &Explanation,
        site: &Site,
        out: W,
    ) -> io::Result<W> {
        let mut writer = Writer::create(out, reader.header())?;
        let mut changer = Changer::new(self, analysis, explanation, site);
        while let Some(record) = reader.next_record().map_err(io::Error::other)? {
            if let Some(record) = changer.change(record) {
                writer.write(&record)?;
            }
        }
        writer.finish(reader.totals().expect("a reader has totals at its end").ended)
    }
}

struct Changer<'a> {
    change: Change,
    analysis: &'a Analysis,
    tracker: Tracker,
    /// The operations to change.
    selected: HashSet<OperationId>,
    /// The calls that would have mapped the memory of dropped calls of `munmap`.
    unmade: HashSet<OperationId>,
    next: u32,
    /// Tasks whose next return belongs to a call that was dropped.
    dropped: HashSet<TaskId>,
    /// Memory that was not unmapped, or not mapped.
    changed: HashMap<SpaceId, Ranges<()>>,
    /// Spaces of children that now share their parent's, until they execute a program.
    shared: HashMap<SpaceId, SpaceId>,
}

impl<'a> Changer<'a> {
    fn new(change: Change, analysis: &'a Analysis, sites: &Explanation, site: &Site) -> Self {
        let selected = match change {
            Change::WriteFirst => earlier(analysis, &operations(analysis, sites, site)),
            Change::Drop | Change::Keep => operations(analysis, sites, site),
            Change::Spawn | Change::None => HashSet::new(),
        };
        let unmade = match change {
            Change::Drop => earlier(analysis, &selected),
            _ => HashSet::new(),
        };
        let tracker = Tracker::new(analysis.header.cpus);
        let (dropped, changed, shared) = (HashSet::new(), HashMap::new(), HashMap::new());
        Self { change, analysis, tracker, selected, unmade, next: 0, dropped, changed, shared }
    }

    /// Returns the changed record; `None` if it is dropped.
    fn change(&mut self, mut record: Record) -> Option<Record> {
        let task = self.tracker.recorded(record.cpu);
        self.tracker.apply(&record);
        let Some(task) = task else { return Some(record) };
        match &mut record.event {
            Event::Call(call) => {
                let id = self.next_operation();
                self.dropped.remove(&task);
                if self.is_dropped(id, task, call) {
                    self.dropped.insert(task);
                    return None;
                }
            }
            Event::Return { .. } if self.dropped.remove(&task) => return None,
            Event::Fault { address, code } => {
                let id = self.next_operation();
                if self.change == Change::Drop && self.is_unmade(task, *address) {
                    return None;
                }
                if self.change == Change::WriteFirst && self.selected.contains(&id) {
                    *code = FaultCode(code.0 | WRITE);
                }
            }
            Event::Spawn { space, .. } if self.change == Change::Spawn => {
                let parent = self.tracker.task(task).map(|task| task.space);
                self.share(space, parent);
            }
            _ => {}
        }
        Some(record)
    }

    /// Counts an operation as the analysis did.
    fn next_operation(&mut self) -> OperationId {
        self.next += 1;
        OperationId(self.next - 1)
    }

    fn is_dropped(&mut self, id: OperationId, task: TaskId, call: &Call) -> bool {
        let Some(space) = self.tracker.task(task).map(|task| task.space) else { return false };
        let is_selected = self.selected.contains(&id);
        let is_unmade = self.unmade.contains(&id);
        let changed = self.changed.entry(space).or_default();
        match (self.change, *call) {
            (Change::Drop | Change::Keep, Call::Map { length, flags, .. }) => {
                let at = self.analysis.operations.operation(id).returned.unwrap_or(-1) as u64;
                let range = pages(at, length);
                // The program gets the memory that it kept.
                let is_kept = self.change == Change::Keep
                    && flags & MAP_FIXED == 0
                    && changed.has_part_of(&range);
                if is_unmade || is_kept {
                    changed.insert(range, ());
                } else {
                    changed.remove(&range);
                }
                is_unmade || is_kept || is_selected
            }
            (Change::Keep, Call::Unmap { address, length }) if is_selected => {
                changed.insert(pages(address, length), ());
                true
            }
            (Change::Drop | Change::Keep, Call::Unmap { address, length }) => {
                changed.remove(&pages(address, length));
                is_selected
            }
            (Change::Drop, Call::Protect { address, .. } | Call::Advise { address, .. }) => {
                is_selected || changed.at(address).is_some()
            }
            (Change::Drop, _) => is_selected,
            _ => false,
        }
    }

    /// Returns `true` if an address lies in memory that was not mapped.
    fn is_unmade(&self, task: TaskId, address: u64) -> bool {
        let space = self.tracker.task(task).map(|task| task.space);
        let changed = space.and_then(|space| self.changed.get(&space));
        changed.is_some_and(|changed| changed.at(address).is_some())
    }

    /// Lets a child share its parent's space.
    fn share(&mut self, child: &mut SpaceId, parent: Option<SpaceId>) {
        if let Some(shared) = self.shared.get(child) {
            // A thread of such a child.
            *child = *shared;
            return;
        }
        let executes = self.analysis.forked.get(child) == Some(&true);
        let Some(parent) = parent.filter(|_| executes) else { return };
        let parent = self.shared.get(&parent).copied().unwrap_or(parent);
        self.shared.insert(*child, parent);
        *child = parent;
    }
}

/// Returns the operations of a site: those that flushed, and those of the same kind and task that
/// happened to flush nothing.
fn operations(analysis: &Analysis, sites: &Explanation, site: &Site) -> HashSet<OperationId> {
    let mut last: HashMap<TaskId, Key> = HashMap::new();
    let mut of_space: HashMap<SpaceId, Key> = HashMap::new();
    let cause = analysis.causes.name(site.cause);
    let mut selected = HashSet::new();
    // A task's first operations may flush nothing: they belong to the first site of the space.
    let mut undecided: HashMap<SpaceId, Vec<OperationId>> = HashMap::new();
    for (operation, number) in analysis.operations.all.iter().zip(0..) {
        if operation.cause != cause {
            continue;
        }
        let id = OperationId(number);
        if let Some(key) = sites.of_operation.get(&id).filter(|key| key.0 == site.cause) {
            last.insert(operation.task, *key);
            of_space.insert(operation.space, *key);
            let waiting = undecided.remove(&operation.space).unwrap_or_default();
            selected.extend(waiting.into_iter().filter(|_| *key == site.key));
        }
        match last.get(&operation.task).or_else(|| of_space.get(&operation.space)) {
            Some(key) if *key == site.key => drop(selected.insert(id)),
            Some(_) => {}
            None => undecided.entry(operation.space).or_default().push(id),
        }
    }
    selected
}

/// Returns the faults that first read what these operations then wrote, and the calls that mapped
/// what they unmapped.
fn earlier(analysis: &Analysis, of: &HashSet<OperationId>) -> HashSet<OperationId> {
    of.iter().filter_map(|id| analysis.operations.operation(*id).earlier).collect()
}
