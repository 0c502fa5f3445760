//! Changes of a recording that do what a remedy does to the program. A replay of the changed
//! recording predicts what the remedy saves.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;

use serde::Deserialize;
use shootdown_recording::record::{Call, Event, FaultCode, Record, SpaceId, TaskId};
use shootdown_recording::{Reader, Tracker, Writer};

use crate::analysis::Analysis;
use crate::doing::OperationId;
use crate::sites::{Explanation, Key, Site};

/// The bit of a fault's code that means a write.
const WRITE: u32 = 1 << 1;

/// A change of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// The calls are not made. The memory that they would have returned stays.
    Drop,
    /// Memory is not unmapped, and reused by later mappings of its addresses.
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
    next: u32,
    /// Tasks whose next return belongs to a call that was dropped.
    dropped: HashSet<TaskId>,
    /// Memory that was not unmapped: the end of each range, by its start.
    kept: HashMap<SpaceId, BTreeMap<u64, u64>>,
    /// Spaces of children that now share their parent's, until they execute a program.
    shared: HashMap<SpaceId, SpaceId>,
}

impl<'a> Changer<'a> {
    fn new(change: Change, analysis: &'a Analysis, sites: &Explanation, site: &Site) -> Self {
        let selected = match change {
            Change::WriteFirst => first_reads(analysis, sites, site),
            Change::Drop | Change::Keep => operations(analysis, sites, site),
            Change::Spawn | Change::None => HashSet::new(),
        };
        let tracker = Tracker::new(analysis.header.cpus);
        let (dropped, kept, shared) = (HashSet::new(), HashMap::new(), HashMap::new());
        Self { change, analysis, tracker, selected, next: 0, dropped, kept, shared }
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
            Event::Fault { code, .. } => {
                let id = self.next_operation();
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
        match (self.change, call) {
            (Change::Drop, _) => is_selected,
            (Change::Keep, Call::Unmap { address, length }) if is_selected => {
                let kept = self.kept.entry(space).or_default();
                kept.insert(*address, address.saturating_add(*length));
                true
            }
            (Change::Keep, Call::Map { length, .. }) => {
                // The program gets the memory that it kept, and maps nothing.
                let at = self.analysis.operations.operation(id).returned.unwrap_or(-1) as u64;
                let kept = self.kept.get(&space);
                let below = kept.and_then(|kept| kept.range(..=at).next_back());
                below.is_some_and(|(_, end)| at.saturating_add(*length) <= *end)
            }
            _ => false,
        }
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

/// Returns the faults that first read the pages which a site then wrote.
fn first_reads(analysis: &Analysis, sites: &Explanation, site: &Site) -> HashSet<OperationId> {
    let written = operations(analysis, sites, site);
    let all = &analysis.operations;
    written.into_iter().filter_map(|id| all.operation(id).first_read).collect()
}
