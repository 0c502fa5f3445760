//! Who a thread is: Linux's numbers, which it uses again, and the recording's, which it does not.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use super::{StartTask, Startup, TaskKind, shorten};
use crate::format::{NAME_BYTES_MAX, SPACES_MAX, TASKS_MAX};
use crate::raw::Tid;
use crate::record::{Event, Owner, SpaceId, TaskId};

/// `clone`: maker and made have one space.
const CLONE_VM: u64 = 0x100;
/// `clone`: maker and made are of one process.
const CLONE_THREAD: u64 = 0x1_0000;

/// How the names of kernel threads begin. Sources that say no more about a thread than its name
/// leave nothing else to go by.
const KERNEL_NAMES: [&str; 23] = [
    "<idle>",
    "swapper",
    "kthreadd",
    "kworker/",
    "ksoftirqd/",
    "migration/",
    "cpuhp/",
    "idle_inject/",
    "irq/",
    "rcu_",
    "rcuc/",
    "rcub/",
    "rcuog/",
    "rcuop/",
    "rcuos/",
    "kswapd",
    "kcompactd",
    "khugepaged",
    "ksmd",
    "kdevtmpfs",
    "kauditd",
    "oom_reaper",
    "jbd2/",
];

/// The threads that are alive.
#[derive(Debug)]
pub(super) struct Tasks {
    live: HashMap<Tid, Task>,
    /// By Linux's number, as long as a thread of it is alive.
    processes: HashMap<u32, Process>,
    /// What is known of threads that did nothing yet.
    start: HashMap<Tid, StartTask>,
    /// Those among them that are to be recorded.
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
    /// In user mode, or in the kernel for something that is not recorded.
    Runs,
    /// In a call that is recorded.
    InCall,
    /// It has ended, though it runs until it is switched from.
    Ended,
}

#[derive(Clone, Copy, Debug)]
struct Process {
    owner: Owner,
    /// The space, once it has a number.
    space: Option<SpaceId>,
    /// What stands for all its threads, if they are not recorded and one of them was seen.
    task: Option<TaskId>,
    /// Whose the space was first.
    origin: Origin,
    threads: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Own,
    /// It is the maker's until `exec` (`vfork`).
    Borrowed,
}

/// What is seen of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// It leaves its CPU for good.
    Death,
    /// Anything else.
    Life,
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

    /// The recording's number of a thread, and its introduction, if that is due.
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

    /// What is known of a thread, unless more is known already.
    pub(super) fn meet(&mut self, tid: Tid, process: Option<u32>, name: &str) {
        if tid != Tid(0) && !self.live.contains_key(&tid) && self.has_room() {
            self.start.entry(tid).or_insert_with(|| guess(tid, process, name));
        }
    }

    /// Whether a thread is recorded, and has not ended.
    pub(super) fn is_recorded(&self, tid: Tid) -> bool {
        self.live.get(&tid).is_some_and(Task::is_recorded)
    }

    /// Whether it is, or was until it ended: what waits for its end is woken by it after that.
    pub(super) fn was_recorded(&self, tid: Tid) -> bool {
        self.live.get(&tid).is_some_and(|task| matches!(task.role, Role::Recorded(_)))
    }

    /// Whether it is, or will be as soon as it does something.
    pub(super) fn is_to_be_recorded(&self, tid: Tid) -> bool {
        self.is_recorded(tid) || !self.live.contains_key(&tid) && self.wanted.contains(&tid)
    }

    /// A thread makes another: what to record of it.
    pub(super) fn spawn(
        &mut self,
        maker: Tid,
        child: Tid,
        clone_flags: Option<u64>,
        name: &str,
    ) -> Option<Event> {
        // `sched_process_fork` says less of what `task_newtask` may just have said.
        let is_known = self.live.get(&child).is_some_and(|task| task.life != Life::Ended);
        if child == Tid(0) || clone_flags.is_none() && is_known {
            return None;
        }
        self.forget(child);
        self.start.remove(&child);
        let maker = self.live.get(&maker).copied().unwrap_or(Task::IDLE);
        let is_of_recorded = matches!(maker.role, Role::Recorded(_));
        if !is_of_recorded && self.wanted.contains(&child) {
            self.meet(child, None, name);
            return None;
        }
        if !self.has_room() {
            return None;
        }
        if maker.role == Role::Kernel {
            self.add(child, child.0, Role::Kernel);
            return None;
        }
        // Flags that nobody knows are taken for those of a thread: a program that is started
        // begins with `exec`, which gives it a space of its own.
        let has = |flag| clone_flags.is_none_or(|flags| flags & flag != 0);
        let process = if has(CLONE_THREAD) { maker.process } else { child.0 };
        if process != maker.process {
            let origin = if has(CLONE_VM) { Origin::Borrowed } else { Origin::Own };
            self.derive(process, maker.process, origin);
        }
        if is_of_recorded {
            let (task, space) = self.record(child, process)?;
            return Some(Event::Spawn { task, space, name: name.to_owned() });
        }
        self.add(child, process, Role::Other);
        None
    }

    /// A thread begins another program: what to record of it.
    pub(super) fn exec(&mut self, tid: Tid, name: &str) -> Option<Event> {
        let task = *self.live.get(&tid)?;
        if task.role == Role::Kernel {
            // A helper that the kernel starts in user mode.
            self.add(tid, tid.0, Role::Other);
            return None;
        }
        let is_borrowed = self.process(task.process).origin == Origin::Borrowed;
        let is_recorded = matches!(task.role, Role::Recorded(_));
        if !is_recorded && !is_borrowed {
            // Nobody sees the space before it any more, so that its number may stay.
            return None;
        }
        let space = if is_recorded { Some(self.allot_space()?) } else { None };
        let process = self.process(task.process);
        (process.space, process.task, process.origin) = (space, None, Origin::Own);
        space.map(|space| Event::Exec { space, name: name.to_owned() })
    }

    /// A CPU on which `before` ran has not switched, and `now` is seen there. If that is how Linux
    /// numbers them, they have each other's number from now on.
    ///
    /// `exec` ends all threads of a process but the one that calls it. If that is not the first,
    /// it gets the number of that one, which is the process's, as soon as that one has ended, and
    /// gives it its own to leave the CPU with.
    pub(super) fn see_renumbered(&mut self, before: Tid, now: Tid, sight: Sight) {
        let found = self.live.get(&now).copied();
        let Some(known) = self.live.get(&before).copied().filter(Task::is_of_program) else {
            // The switch to it is missing as well.
            let last = if found.is_none() { self.last_thread(now) } else { None };
            return last.into_iter().for_each(|last| self.renumber(last, now));
        };
        let has_ended = |task: Task| task.life == Life::Ended;
        let is_renumbered = if now.0 == known.process {
            !has_ended(known) && !self.start.contains_key(&now) && found.is_none_or(has_ended)
        } else {
            let is_first = before.0 == known.process && has_ended(known);
            let goes_on = |task: Task| task.process == known.process && !has_ended(task);
            is_first && sight == Sight::Death && found.is_some_and(goes_on)
        };
        if is_renumbered {
            self.renumber(before, now);
        }
    }

    /// A thread ends: whether that is recorded.
    pub(super) fn exit(&mut self, tid: Tid) -> bool {
        let was_recorded = self.is_recorded(tid);
        if let Some(task) = self.live.get_mut(&tid) {
            task.life = Life::Ended;
        }
        was_recorded
    }

    /// A thread enters a call: whether that is recorded. A call before it that is still open lost
    /// its return.
    pub(super) fn enter(&mut self, tid: Tid) -> bool {
        self.recorded(tid).is_some_and(|task| {
            task.life = Life::InCall;
            true
        })
    }

    /// A thread returns from a call: whether it was recorded that it entered it.
    pub(super) fn leave(&mut self, tid: Tid) -> bool {
        self.recorded(tid).is_some_and(|task| {
            let was = core::mem::replace(&mut task.life, Life::Runs);
            was == Life::InCall
        })
    }

    /// A thread is gone: its number may be another's.
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

    /// How many threads and processes are remembered.
    #[cfg(test)]
    pub(super) fn len(&self) -> (usize, usize) {
        (self.live.len() + self.start.len(), self.processes.len())
    }

    /// The only thread that is left of the process of that number, whose first one is gone.
    fn last_thread(&self, first: Tid) -> Option<Tid> {
        // That of which nothing was seen yet is not gone.
        if self.start.contains_key(&first) || !self.processes.contains_key(&first.0) {
            return None;
        }
        let is_left = |task: &Task| {
            task.is_of_program() && task.process == first.0 && task.life != Life::Ended
        };
        let mut left = self.live.iter().filter(|(_, task)| is_left(task)).map(|(&tid, _)| tid);
        left.next().filter(|_| left.next().is_none())
    }

    fn renumber(&mut self, one: Tid, other: Tid) {
        let tasks = [one, other].map(|tid| self.live.remove(&tid));
        self.live.extend(
            [other, one].into_iter().zip(tasks).filter_map(|(tid, task)| Some((tid, task?))),
        );
    }

    fn recorded(&mut self, tid: Tid) -> Option<&mut Task> {
        self.live.get_mut(&tid).filter(|task| task.is_recorded())
    }

    /// A thread that was there already does something for the first time.
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

    /// What stands for another program's threads, and its introduction, if that is due.
    fn identify_process(&mut self, number: u32) -> (TaskId, Option<Event>) {
        if let Some(task) = self.process(number).task {
            return (task, None);
        }
        let Some((space, task)) = self.allot_space().zip(self.allot_task()) else {
            return (TaskId::KERNEL, None);
        };
        let process = self.process(number);
        (process.space, process.task) = (Some(space), Some(task));
        (task, Some(Event::Task { task, owner: Owner::Other, space, name: String::new() }))
    }

    /// Begins to record a thread; `None` if there is no number for it.
    fn record(&mut self, tid: Tid, number: u32) -> Option<(TaskId, SpaceId)> {
        let space = self.process(number).space.or_else(|| self.allot_space());
        let numbers = self.allot_task().zip(space);
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

    /// A process that another one makes.
    fn derive(&mut self, number: u32, maker: u32, origin: Origin) {
        let maker = *self.process(maker);
        let derived = match origin {
            Origin::Own => Process { owner: maker.owner, ..Process::NEW },
            Origin::Borrowed => Process { origin, threads: 0, ..maker },
        };
        self.processes.insert(number, derived);
    }

    fn process(&mut self, number: u32) -> &mut Process {
        self.processes.entry(number).or_insert(Process::NEW)
    }

    fn has_room(&self) -> bool {
        self.live.len() + self.start.len() < TASKS_MAX as usize
    }

    fn allot_task(&mut self) -> Option<TaskId> {
        (self.next_task <= TASKS_MAX).then(|| {
            self.next_task += 1;
            TaskId(self.next_task - 1)
        })
    }

    fn allot_space(&mut self) -> Option<SpaceId> {
        (self.next_space < SPACES_MAX).then(|| {
            self.next_space += 1;
            SpaceId(self.next_space - 1)
        })
    }
}

impl Task {
    /// What runs where nothing is known to.
    const IDLE: Self = Self { process: 0, role: Role::Kernel, life: Life::Runs };

    fn is_recorded(&self) -> bool {
        matches!(self.role, Role::Recorded(_)) && self.life != Life::Ended
    }

    fn is_of_program(&self) -> bool {
        self.role != Role::Kernel
    }
}

impl Process {
    const NEW: Self =
        Self { owner: Owner::Other, space: None, task: None, origin: Origin::Own, threads: 0 };
}

/// What a thread is likely to be of which only the name is known.
fn guess(tid: Tid, process: Option<u32>, name: &str) -> StartTask {
    let is_kernel = KERNEL_NAMES.iter().any(|start| name.starts_with(start));
    let kind = if is_kernel { TaskKind::Kernel } else { TaskKind::User };
    StartTask { tid, process: process.unwrap_or(tid.0), kind, name: name.to_owned() }
}
