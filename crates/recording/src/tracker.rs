//! The state that a recording's records change: the task and the space of each CPU.

use std::collections::HashSet;

use crate::record::{Event, Owner, Record, SpaceId, TaskId};

/// The state between two records.
#[derive(Clone, Debug, Default)]
pub struct Tracker {
    /// Tasks by number. The first is [`TaskId::KERNEL`].
    tasks: Vec<Option<Task>>,
    recorded_spaces: HashSet<SpaceId>,
    cpus: Vec<Cpu>,
}

/// A task with a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// The program that the task belongs to.
    pub owner: Owner,
    /// The space in which it runs.
    pub space: SpaceId,
}

#[derive(Clone, Copy, Debug)]
struct Cpu {
    running: TaskId,
    /// The space that is loaded. Kernel threads borrow the last task's space.
    loaded: Option<SpaceId>,
}

impl Tracker {
    /// Returns the state before the first record of a recording with this number of CPUs.
    #[must_use]
    pub fn new(cpus: u32) -> Self {
        let cpu = Cpu { running: TaskId::KERNEL, loaded: None };
        let cpus = vec![cpu; cpus as usize];
        Self { tasks: vec![None], recorded_spaces: HashSet::new(), cpus }
    }

    /// Returns the task that runs on a CPU.
    #[must_use]
    pub fn running(&self, cpu: u32) -> TaskId {
        self.cpus[cpu as usize].running
    }

    /// Returns the owner and the space of a task; `None` for the kernel's.
    #[must_use]
    pub fn task(&self, task: TaskId) -> Option<Task> {
        self.tasks.get(task.0 as usize).copied().flatten()
    }

    /// Returns the task that runs on a CPU, if it belongs to the recorded program.
    #[must_use]
    pub fn recorded(&self, cpu: u32) -> Option<TaskId> {
        let task = self.running(cpu);
        self.task(task).is_some_and(|task| task.owner == Owner::Recorded).then_some(task)
    }

    /// Returns `true` if the space that a CPU has loaded belongs to the recorded program.
    #[must_use]
    pub fn has_recorded_space(&self, cpu: u32) -> bool {
        let loaded = self.cpus[cpu as usize].loaded;
        loaded.is_some_and(|space| self.recorded_spaces.contains(&space))
    }

    /// Returns the largest number of CPUs that run threads of the same recorded space.
    #[must_use]
    pub fn most_together(&self) -> usize {
        let space = |cpu: &Cpu| {
            let task = self.task(cpu.running).filter(|task| task.owner == Owner::Recorded);
            task.map(|task| task.space)
        };
        let mut spaces: Vec<_> = self.cpus.iter().filter_map(space).collect();
        spaces.sort_unstable();
        spaces.chunk_by(|one, other| one == other).map(<[_]>::len).max().unwrap_or(0)
    }

    /// Applies a record to the state.
    pub fn apply(&mut self, record: &Record) {
        let running = self.running(record.cpu);
        match &record.event {
            Event::Task { task, owner, space, .. } => {
                self.set(*task, Task { owner: *owner, space: *space });
            }
            Event::Spawn { task, space, .. } => {
                self.set(*task, Task { owner: Owner::Recorded, space: *space });
            }
            Event::Exec { space, .. } => {
                if let Some(task) = self.task(running) {
                    self.set(running, Task { space: *space, ..task });
                    self.cpus[record.cpu as usize].loaded = Some(*space);
                }
            }
            Event::Running { task: next } | Event::Switch { next, .. } => {
                let space = self.task(*next).map(|task| task.space);
                let cpu = &mut self.cpus[record.cpu as usize];
                cpu.running = *next;
                cpu.loaded = space.or(cpu.loaded);
            }
            Event::Wake { .. }
            | Event::Exit
            | Event::Call(_)
            | Event::Return { .. }
            | Event::Fault { .. }
            | Event::Flush { .. }
            | Event::Interrupts { .. }
            | Event::Requests { .. }
            | Event::Frame { .. }
            | Event::Stack { .. }
            | Event::Name { .. }
            | Event::Counted { .. }
            | Event::Lost { .. } => {}
        }
    }

    fn set(&mut self, task: TaskId, state: Task) {
        if state.owner == Owner::Recorded {
            self.recorded_spaces.insert(state.space);
        }
        let number = task.0 as usize;
        if self.tasks.len() <= number {
            self.tasks.resize(number + 1, None);
        }
        self.tasks[number] = Some(state);
    }
}
