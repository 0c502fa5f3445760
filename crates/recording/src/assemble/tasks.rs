//! The identity of threads. Linux reuses its numbers; the recording does not reuse its own.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use super::{StartTask, Startup, TaskKind, shorten};
use crate::format::{NAME_BYTES_MAX, SPACES_MAX, TASKS_MAX};
use crate::raw::Tid;
use crate::record::{Event, Owner, SpaceId, TaskId};

/// `clone`: creator and child share an address space.
const CLONE_VM: u64 = 0x100;
/// `clone`: creator and child belong to one process.
const CLONE_THREAD: u64 = 0x1_0000;

/// The prefixes of the names of kernel threads, for sources that know only the name of a thread.
const KERNEL_NAMES: &str = include_str!("kernel_names.txt");

/// The live threads.
#[derive(Debug)]
pub(super) struct Tasks {
    live: HashMap<Tid, Task>,
    /// Processes with a live thread, by Linux's number.
    processes: HashMap<u32, Process>,
    /// Threads without an event so far, and what is known about them.
    start: HashMap<Tid, StartTask>,
    /// The threads in `start` that will be recorded.
    wanted: HashSet<Tid>,
    next_task: u32,
    next_space: u32,
}

#[derive(Clone, Copy, Debug)]
struct Task {
    process: u32,
    role: Role,
    life: Life,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Kernel,
    Recorded(TaskId),
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// In user mode, or in the kernel without a recorded call.
    Runs,
    /// In a recorded call.
    InCall,
    /// The thread has ended, but runs until its CPU switches to another thread.
    Ended,
}

#[derive(Clone, Copy, Debug)]
struct Process {
    owner: Owner,
    /// The address space, once it has a number.
    space: Option<SpaceId>,
    /// The task that stands for all threads of a process that is not recorded, once one of them
    /// had an event.
    task: Option<TaskId>,
    /// The original owner of the address space.
    origin: Origin,
    /// Number of live threads.
    threads: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Own,
    /// The address space is the creator's until `exec` (`vfork`).
    Borrowed,
}

impl Tasks {
    pub(super) fn new(startup: Startup) -> Self {
        Self {
            live: HashMap::new(),
            processes: HashMap::new(),
            start: startup.tasks.into_iter().map(|task| (task.tid, task)).collect(),
            wanted: startup.recorded.into_iter().collect(),
            next_task: 1,
            next_space: 0,
        }
    }

    /// Numbers the live threads anew, for another recording. Returns the introductions of those
    /// that are recorded. The others are introduced at their next events.
    pub(super) fn restart(&mut self) -> Vec<Event> {
        (self.next_task, self.next_space) = (1, 0);
        let mut recorded: Vec<_> = self.live.values_mut().filter_map(Task::number_mut).collect();
        recorded.sort_unstable_by_key(|(number, _)| number.0);
        // Processes that share a space still do.
        let mut spaces = HashMap::new();
        let mut introductions = Vec::new();
        for (number, process) in recorded {
            *number = TaskId(self.next_task);
            self.next_task += 1;
            let process = self.processes.entry(process).or_insert(Process::NEW);
            let before = process.space;
            let space = *spaces.entry(before).or_insert_with(|| {
                self.next_space += 1;
                SpaceId(self.next_space - 1)
            });
            let owner = Owner::Recorded;
            introductions.push(Event::Task { task: *number, owner, space, name: String::new() });
        }
        for process in self.processes.values_mut() {
            process.space = process.space.and_then(|space| spaces.get(&Some(space)).copied());
            process.task = None;
        }
        introductions
    }

    /// Returns the recording's number of a thread, and its introduction if it has none yet.
    pub(super) fn identify(&mut self, tid: Tid, name: &str) -> (TaskId, Option<Event>) {
        if let Some(&task) = self.live.get(&tid) {
            return match task.role {
                Role::Kernel => (TaskId::KERNEL, None),
                Role::Recorded(id) => (id, None),
                Role::Other => self.identify_process(task.process),
            };
        }
        if tid == Tid(0) || !self.has_room() {
            return (TaskId::KERNEL, None);
        }
        let start = self.start.remove(&tid).unwrap_or_else(|| guess(tid, None, name));
        self.begin(start)
    }

    /// Adds a thread, unless it is known already.
    pub(super) fn introduce(&mut self, tid: Tid, process: Option<u32>, name: &str) {
        if tid != Tid(0) && !self.live.contains_key(&tid) && self.has_room() {
            self.start.entry(tid).or_insert_with(|| guess(tid, process, name));
        }
    }

    /// Returns `true` if a thread is recorded, and has not ended.
    pub(super) fn is_recorded(&self, tid: Tid) -> bool {
        self.live.get(&tid).is_some_and(Task::is_recorded)
    }

    /// Returns `true` if a thread is or was recorded: it wakes joining threads after its end.
    pub(super) fn was_recorded(&self, tid: Tid) -> bool {
        self.live.get(&tid).is_some_and(|task| matches!(task.role, Role::Recorded(_)))
    }

    /// Returns `true` if a thread is recorded, or will be recorded from its first event on.
    pub(super) fn is_to_be_recorded(&self, tid: Tid) -> bool {
        self.is_recorded(tid) || !self.live.contains_key(&tid) && self.wanted.contains(&tid)
    }

    /// Adds a thread that another thread creates. Returns the record of it, if any.
    pub(super) fn spawn(
        &mut self,
        creator: Tid,
        child: Tid,
        clone_flags: Option<u64>,
        name: &str,
    ) -> Option<Event> {
        // `sched_process_fork` repeats part of the `task_newtask` before it.
        let is_known = self.live.get(&child).is_some_and(|task| task.life != Life::Ended);
        if child == Tid(0) || clone_flags.is_none() && is_known {
            return None;
        }
        self.forget(child);
        self.start.remove(&child);
        let creator = self.live.get(&creator).copied().unwrap_or(Task::IDLE);
        let is_of_recorded = matches!(creator.role, Role::Recorded(_));
        if !is_of_recorded && self.wanted.contains(&child) {
            self.introduce(child, None, name);
            return None;
        }
        if !self.has_room() {
            return None;
        }
        if creator.role == Role::Kernel {
            self.add(child, child.0, Role::Kernel);
            return None;
        }
        // Unknown flags are treated as those of a thread: a new program begins with `exec`, which
        // gives it an address space of its own.
        let has = |flag| clone_flags.is_none_or(|flags| flags & flag != 0);
        let process = if has(CLONE_THREAD) { creator.process } else { child.0 };
        if process != creator.process {
            let origin = if has(CLONE_VM) { Origin::Borrowed } else { Origin::Own };
            self.derive(process, creator.process, origin);
        }
        if is_of_recorded {
            let (task, space) = self.record(child, process)?;
            return Some(Event::Spawn { task, space, name: name.to_owned() });
        }
        self.add(child, process, Role::Other);
        None
    }

    /// Notes that a thread executes another program. Returns the record of it, if any.
    pub(super) fn exec(&mut self, tid: Tid, name: &str) -> Option<Event> {
        let task = *self.live.get(&tid)?;
        if task.role == Role::Kernel {
            // A helper that the kernel runs in user mode.
            self.add(tid, tid.0, Role::Other);
            return None;
        }
        let is_borrowed = self.process(task.process).origin == Origin::Borrowed;
        let is_recorded = matches!(task.role, Role::Recorded(_));
        if !is_recorded && !is_borrowed {
            // No later record refers to the old address space: the new one can reuse its number.
            return None;
        }
        let space = if is_recorded { Some(self.allocate_space()?) } else { None };
        let process = self.process(task.process);
        (process.space, process.task, process.origin) = (space, None, Origin::Own);
        space.map(|space| Event::Exec { space, name: name.to_owned() })
    }

    /// Exchanges the numbers of two threads if Linux has renumbered them. Call this when a CPU on
    /// which `before` ran has not switched, and `now` has an event there; `is_final` if that event
    /// is its last one.
    ///
    /// `exec` ends all threads of a process except its caller. If the caller is not the first
    /// thread, it takes over the number of the first thread, which is the process's, as soon as the
    /// first thread has ended. The first thread leaves its CPU with the caller's former number.
    pub(super) fn detect_renumbering(&mut self, before: Tid, now: Tid, is_final: bool) {
        let found = self.live.get(&now).copied();
        let Some(known) = self.live.get(&before).copied().filter(Task::is_of_program) else {
            // The switch to the thread is missing as well.
            let last = if found.is_none() { self.last_thread(now) } else { None };
            return last.into_iter().for_each(|last| self.renumber(last, now));
        };
        let has_ended = |task: Task| task.life == Life::Ended;
        let is_renumbered = if now.0 == known.process {
            !has_ended(known) && !self.start.contains_key(&now) && found.is_none_or(has_ended)
        } else {
            let is_first = before.0 == known.process && has_ended(known);
            let goes_on = |task: Task| task.process == known.process && !has_ended(task);
            is_first && is_final && found.is_some_and(goes_on)
        };
        if is_renumbered {
            self.renumber(before, now);
        }
    }

    /// Marks a thread as ended. Returns `true` if the end is recorded.
    pub(super) fn exit(&mut self, tid: Tid) -> bool {
        let was_recorded = self.is_recorded(tid);
        if let Some(task) = self.live.get_mut(&tid) {
            task.life = Life::Ended;
        }
        was_recorded
    }

    /// Marks a thread as in a call. Returns `true` if the call is recorded. If an earlier call is
    /// still open, its return was lost.
    pub(super) fn enter(&mut self, tid: Tid) -> bool {
        self.recorded(tid).is_some_and(|task| {
            task.life = Life::InCall;
            true
        })
    }

    /// Marks a thread as out of its call. Returns `true` if the call was recorded.
    pub(super) fn leave(&mut self, tid: Tid) -> bool {
        self.recorded(tid).is_some_and(|task| {
            let was = core::mem::replace(&mut task.life, Life::Runs);
            was == Life::InCall
        })
    }

    /// Removes a thread. Linux may reuse its number.
    pub(super) fn forget(&mut self, tid: Tid) {
        let Some(task) = self.live.remove(&tid) else { return };
        if task.role == Role::Kernel {
            return;
        }
        if let Entry::Occupied(mut entry) = self.processes.entry(task.process) {
            let process = entry.get_mut();
            process.threads = process.threads.saturating_sub(1);
            if process.threads == 0 {
                entry.remove();
            }
        }
    }

    /// Returns the number of threads and of processes that are stored.
    #[cfg(test)]
    pub(super) fn len(&self) -> (usize, usize) {
        (self.live.len() + self.start.len(), self.processes.len())
    }

    /// Returns the only live thread of the process with this number, if its first thread is gone.
    fn last_thread(&self, first: Tid) -> Option<Tid> {
        // A first thread without an event so far is not gone.
        if self.start.contains_key(&first) || !self.processes.contains_key(&first.0) {
            return None;
        }
        let is_left = |task: &Task| {
            task.is_of_program() && task.process == first.0 && task.life != Life::Ended
        };
        let mut left = self.live.iter().filter(|(_, task)| is_left(task)).map(|(&tid, _)| tid);
        left.next().filter(|_| left.next().is_none())
    }

    /// Exchanges the numbers of two threads.
    fn renumber(&mut self, one: Tid, other: Tid) {
        let tasks = [one, other].map(|tid| self.live.remove(&tid));
        self.live.extend(
            [other, one].into_iter().zip(tasks).filter_map(|(tid, task)| Some((tid, task?))),
        );
    }

    fn recorded(&mut self, tid: Tid) -> Option<&mut Task> {
        self.live.get_mut(&tid).filter(|task| task.is_recorded())
    }

    /// Adds a thread from `start` at its first event.
    fn begin(&mut self, start: StartTask) -> (TaskId, Option<Event>) {
        let StartTask { tid, process, kind, name } = start;
        let is_wanted = self.wanted.remove(&tid);
        if kind == TaskKind::Kernel && !is_wanted {
            self.add(tid, process, Role::Kernel);
            return (TaskId::KERNEL, None);
        }
        if !is_wanted && self.process(process).owner == Owner::Other {
            self.add(tid, process, Role::Other);
            return self.identify_process(process);
        }
        let Some((task, space)) = self.record(tid, process) else {
            return (TaskId::KERNEL, None);
        };
        let name = shorten(&name, NAME_BYTES_MAX).to_owned();
        (task, Some(Event::Task { task, owner: Owner::Recorded, space, name }))
    }

    /// Returns the task for another program's threads, and its introduction if it has none yet.
    fn identify_process(&mut self, number: u32) -> (TaskId, Option<Event>) {
        if let Some(task) = self.process(number).task {
            return (task, None);
        }
        let Some((space, task)) = self.allocate_space().zip(self.allocate_task()) else {
            return (TaskId::KERNEL, None);
        };
        let process = self.process(number);
        (process.space, process.task) = (Some(space), Some(task));
        (task, Some(Event::Task { task, owner: Owner::Other, space, name: String::new() }))
    }

    /// Begins to record a thread; `None` if the numbers are used up.
    fn record(&mut self, tid: Tid, number: u32) -> Option<(TaskId, SpaceId)> {
        let space = self.process(number).space.or_else(|| self.allocate_space());
        let numbers = self.allocate_task().zip(space);
        let process = self.process(number);
        process.space = space;
        let role = match numbers {
            Some((task, _)) => {
                process.owner = Owner::Recorded;
                Role::Recorded(task)
            }
            None => Role::Other,
        };
        self.add(tid, number, role);
        numbers
    }

    fn add(&mut self, tid: Tid, process: u32, role: Role) {
        self.forget(tid);
        self.live.insert(tid, Task { process, role, life: Life::Runs });
        if role != Role::Kernel {
            self.process(process).threads += 1;
        }
    }

    /// Adds a process that another process creates.
    fn derive(&mut self, number: u32, creator: u32, origin: Origin) {
        let creator = *self.process(creator);
        let derived = match origin {
            Origin::Own => Process { owner: creator.owner, ..Process::NEW },
            Origin::Borrowed => Process { origin, threads: 0, ..creator },
        };
        self.processes.insert(number, derived);
    }

    fn process(&mut self, number: u32) -> &mut Process {
        self.processes.entry(number).or_insert(Process::NEW)
    }

    fn has_room(&self) -> bool {
        self.live.len() + self.start.len() < TASKS_MAX as usize
    }

    fn allocate_task(&mut self) -> Option<TaskId> {
        (self.next_task <= TASKS_MAX).then(|| {
            self.next_task += 1;
            TaskId(self.next_task - 1)
        })
    }

    fn allocate_space(&mut self) -> Option<SpaceId> {
        (self.next_space < SPACES_MAX).then(|| {
            self.next_space += 1;
            SpaceId(self.next_space - 1)
        })
    }
}

impl Task {
    /// The task of a CPU on which no thread is known to run.
    const IDLE: Self = Self { process: 0, role: Role::Kernel, life: Life::Runs };

    fn is_recorded(&self) -> bool {
        matches!(self.role, Role::Recorded(_)) && self.life != Life::Ended
    }

    /// Returns the recording's number and the process of a recorded thread.
    fn number_mut(&mut self) -> Option<(&mut TaskId, u32)> {
        match &mut self.role {
            Role::Recorded(number) => Some((number, self.process)),
            Role::Kernel | Role::Other => None,
        }
    }

    fn is_of_program(&self) -> bool {
        self.role != Role::Kernel
    }
}

impl Process {
    const NEW: Self =
        Self { owner: Owner::Other, space: None, task: None, origin: Origin::Own, threads: 0 };
}

/// Guesses the kind of a thread from its name.
fn guess(tid: Tid, process: Option<u32>, name: &str) -> StartTask {
    let is_kernel = KERNEL_NAMES.lines().any(|start| name.starts_with(start));
    let kind = if is_kernel { TaskKind::Kernel } else { TaskKind::User };
    StartTask { tid, process: process.unwrap_or(tid.0), kind, name: name.to_owned() }
}
