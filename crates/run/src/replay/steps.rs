//! The second reading of a recording: records become steps of CPUs, in the recorded order.
//!
//! The time at which a system call takes effect is not recorded, only its beginning and its end.
//! Other CPUs continue in between. If the call flushed, it takes effect at the flush. If it did not
//! flush, it changed nothing that a TLB could have held, and the order matters only where addresses
//! are reused. A call that allocates no addresses (`munmap`, `mprotect`, `madvise`) therefore takes
//! effect when it begins, and any other call when it returns. No thread then gets an address before
//! another thread has freed it.
//!
//! A page fault also takes effect at its flush, or else when it begins. Only its beginning is
//! recorded. The rest of a fault without a flush, a microsecond or less, counts as computing. A
//! thread also computes whenever it is on its CPU and not in one of these calls.

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem::{replace, take};

use shootdown_program::operation::{Access, Filling, Mapping, Permission, RawAddress};
use shootdown_recording::record::{
    Call, Event, FlushReason, Left, Owner, Record, SpaceId, TaskId, Waker,
};
use shootdown_recording::{ReadError, Reader, Tracker};

use super::effects::{fault, map, page_after, pages, permission, stack_of_new_program};
use super::linux::{self, gathers_after_flush, gathers_from_beginning};
use super::survey::{Outcome, PROGRESS_RECORDS, Survey, is_within_fault};

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
    /// The task changes or accesses memory.
    Memory(RawAddress),
    /// The same, by a call or fault that flushed at this time. A call then goes on gathering until
    /// [`GatherEnds`](Self::GatherEnds). That is not a step of its own: steps of other CPUs begin
    /// while this one waits for them.
    Flushing { change: RawAddress, goes_on_gathering: bool, targets: Targets },
    /// The flush of the step before on this CPU chooses its targets.
    ChoosesTargets,
    /// The task is in a call that gathers translations, and goes on gathering until
    /// [`GatherEnds`](Self::GatherEnds). The memory that it changes in between is not a second
    /// operation.
    GatherBegins,
    /// A task, of any CPU, has completed such a call, or the part of it that gathers.
    GatherEnds { task: TaskId },
    /// The task creates another task, in its own space or in a copy of it.
    Spawn { task: TaskId, space: SpaceId },
    /// The task continues in a new space.
    Exec { space: SpaceId },
    /// The task ends.
    Exit,
    /// A task is woken.
    Wake { task: TaskId, by: Waker },
}

/// The time at which a flush chooses its targets, after it was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Targets {
    /// Immediately.
    Now,
    /// At the step [`ChoosesTargets`](Action::ChoosesTargets) of the CPU.
    Later,
}

/// Reads steps from a recording.
pub(crate) struct Steps<'r> {
    reader: Reader<'r>,
    /// The first reading, without the parts that the next three fields read.
    survey: Survey,
    outcomes: std::iter::Enumerate<std::vec::IntoIter<Outcome>>,
    faults_flushed: std::vec::IntoIter<bool>,
    requests_asked: std::vec::IntoIter<bool>,
    tracker: Tracker,
    cpus: Vec<Cpu>,
    tasks: HashMap<TaskId, InKernel>,
    /// Tasks whose flush has been counted and has not chosen its targets yet.
    choosing: HashSet<TaskId>,
    /// The end of the heap of each space, as the last `brk` returned it.
    heap_ends: HashMap<SpaceId, u64>,
    records_read: u64,
    progress: Box<dyn Fn(u64) + 'r>,
    /// Switches that take effect after the record with a number.
    late: Vec<(u64, Step)>,
    /// Switches that take effect now.
    due: VecDeque<Step>,
    /// Actions that follow the last step, without time in between.
    following: VecDeque<Action>,
    last: Option<Step>,
    kernel_time: KernelTime,
}

/// The time that a call takes in the kernel, without the wait for other CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelTime {
    /// As long as in the simulated kernel.
    Simulated,
    /// As long as in the recorded one, and the simulated kernel's time in addition.
    Recorded,
}

/// The time up to which a CPU is accounted for, and the part of it in which a task computed.
#[derive(Clone, Copy, Debug, Default)]
struct Cpu {
    accounted_to_ns: u64,
    computed_ns: u64,
    /// The CPU that asked this one to flush last, and whose request has no flush yet.
    asked_by: Option<u32>,
    /// The time at which this CPU asked another one that has not flushed since.
    asked_at_ns: Option<u64>,
}

/// The reason why a task is in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
enum InKernel {
    /// A call, which may already have taken effect.
    Call {
        /// Number of calls before it.
        number: usize,
        call: Call,
        outcome: Outcome,
        moved_to: u64,
        is_done: bool,
        gathers: bool,
    },
    /// A page fault, whose end is not recorded. If it flushed, it has not taken effect before.
    Fault(Option<RawAddress>),
    /// The end of the task.
    Exit,
}

impl<'r> Steps<'r> {
    /// `progress` is called with the number of records read, once per [`PROGRESS_RECORDS`].
    pub(crate) fn new(
        reader: Reader<'r>,
        survey: &Survey,
        kernel_time: KernelTime,
        progress: impl Fn(u64) + 'r,
    ) -> Self {
        let cpus = reader.header().cpus;
        let mut survey = survey.clone();
        Self {
            reader,
            outcomes: take(&mut survey.outcomes).into_iter().enumerate(),
            faults_flushed: take(&mut survey.faults_flushed).into_iter(),
            requests_asked: take(&mut survey.requests_asked).into_iter(),
            survey,
            tracker: Tracker::new(cpus),
            cpus: vec![Cpu::default(); cpus as usize],
            tasks: HashMap::new(),
            choosing: HashSet::new(),
            heap_ends: HashMap::new(),
            records_read: 0,
            progress: Box::new(progress),
            late: Vec::new(),
            due: VecDeque::new(),
            following: VecDeque::new(),
            last: None,
            kernel_time,
        }
    }

    /// Returns the next step; `None` at the end.
    pub(crate) fn next_step(&mut self) -> Result<Option<Step>, ReadError> {
        if let Some(action) = self.following.pop_front() {
            return Ok(self.last.clone().map(|last| Step { action, computed_ns: 0, ..last }));
        }
        if let Some(late) = self.due.pop_front() {
            return Ok(Some(late));
        }
        let step = self.read_step()?;
        if !self.following.is_empty() {
            self.last.clone_from(&step);
        }
        Ok(step)
    }

    fn read_step(&mut self) -> Result<Option<Step>, ReadError> {
        while let Some(record) = self.reader.next_record()? {
            self.records_read += 1;
            if self.records_read.is_multiple_of(PROGRESS_RECORDS) {
                (self.progress)(self.records_read);
            }
            self.account(&record);
            let task = self.tracker.running(record.cpu);
            let action = self.action(&record);
            let action = match self.survey.early_execs.get(&self.records_read) {
                Some(&early) => early.map(|space| self.exec(space)),
                None => action,
            };
            self.tracker.apply(&record);
            self.let_take_effect(&record);
            let step = action.map(|action| {
                let cpu = record.cpu as usize;
                let computed_ns = take(&mut self.cpus[cpu].computed_ns);
                Step { at_ns: record.time_ns, cpu, task, computed_ns, action }
            });
            match (step, self.survey.late_switches.get(&self.records_read)) {
                (Some(step), Some(&after)) => self.late.push((after, step)),
                (Some(step), None) => return Ok(Some(step)),
                (None, _) if !self.due.is_empty() => return Ok(self.due.pop_front()),
                (None, _) => {}
            }
        }
        Ok(None)
    }

    /// Lets the switches take effect that do so after this record.
    fn let_take_effect(&mut self, record: &Record) {
        let (now, at_ns) = (self.records_read, record.time_ns);
        let due = self.late.extract_if(.., |(after, _)| *after == now);
        self.due.extend(due.map(|(_, step)| Step { at_ns, ..step }));
    }

    /// Splits the time since the last record of this CPU into computing, and time that the
    /// simulation of the kernel spends itself.
    fn account(&mut self, record: &Record) {
        self.account_wait(record);
        let cpu = &mut self.cpus[record.cpu as usize];
        let from_ns = cpu.accounted_to_ns;
        let passed_ns = record.time_ns.saturating_sub(from_ns);
        cpu.accounted_to_ns = from_ns + passed_ns;
        let Some(task) = self.tracker.recorded(record.cpu) else { return };
        // A target that had caught up before left no record of a flush.
        let waited_to_ns = |cpu: &mut Cpu| match cpu.asked_at_ns.take() {
            Some(at_ns) => (at_ns + self.survey.delivery_ns.unwrap_or(0)).saturating_sub(from_ns),
            None => 0,
        };
        let is_within = is_within_fault(&record.event);
        let state = self.tasks.get(&task);
        match state {
            Some(InKernel::Call { .. } | InKernel::Fault(_))
                if self.kernel_time == KernelTime::Recorded =>
            {
                match cpu.asked_at_ns {
                    Some(at_ns) if at_ns == record.time_ns => cpu.computed_ns += passed_ns,
                    // The time from the choice of targets to the CPU's own flush is left out.
                    Some(_) if is_within => {}
                    _ => cpu.computed_ns += passed_ns.saturating_sub(waited_to_ns(cpu)),
                }
            }
            Some(InKernel::Call { .. } | InKernel::Exit) => {}
            // Flushes, requests and interrupts directly after a fault belong to the fault.
            Some(InKernel::Fault(_)) if is_within => {}
            Some(InKernel::Fault(_)) => {
                cpu.computed_ns += passed_ns.saturating_sub(waited_to_ns(cpu));
            }
            None => cpu.computed_ns += passed_ns,
        }
        if matches!(state, Some(InKernel::Fault(_))) && !is_within {
            self.tasks.remove(&task);
        }
    }

    /// Accounts for a fault, or a call, that waits until other CPUs have flushed.
    fn account_wait(&mut self, record: &Record) {
        match &record.event {
            Event::Requests { targets } | Event::Interrupts { targets } => {
                for &target in targets {
                    self.cpus[target as usize].asked_by = Some(record.cpu);
                }
                if !targets.is_empty() {
                    self.cpus[record.cpu as usize].asked_at_ns.get_or_insert(record.time_ns);
                }
            }
            Event::Flush { reason: FlushReason::Remote, .. } => {
                let asked_by = self.cpus[record.cpu as usize].asked_by.take();
                let Some(sender) = asked_by else { return };
                let task = self.tracker.recorded(sender).and_then(|task| self.tasks.get(&task));
                let is_timed = match task {
                    Some(InKernel::Fault(_)) => true,
                    Some(InKernel::Call { .. }) => self.kernel_time == KernelTime::Recorded,
                    Some(InKernel::Exit) | None => false,
                };
                if is_timed {
                    let sender = &mut self.cpus[sender as usize];
                    sender.accounted_to_ns = sender.accounted_to_ns.max(record.time_ns);
                    sender.asked_at_ns = None;
                }
            }
            _ => {}
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
            Event::Exec { space, .. } => {
                running?;
                let is_done = self.survey.early_execs.contains_key(&self.records_read);
                (!is_done).then(|| self.exec(*space))
            }
            Event::Exit => {
                self.tasks.insert(running?, InKernel::Exit);
                Some(Action::Exit)
            }
            Event::Call(call) => {
                self.cpus[record.cpu as usize].asked_at_ns = None;
                self.call(running?, call)
            }
            Event::Return { value } => self.returned(running?, *value),
            Event::Fault { address, code } => {
                self.cpus[record.cpu as usize].asked_at_ns = None;
                let has_flushed = self.faults_flushed.next() == Some(true);
                let fault = fault(*address, *code);
                let task = running?;
                let is_in_call = matches!(self.tasks.get(&task), Some(InKernel::Call { .. }));
                if is_in_call && !code.is_user() {
                    // The kernel, or a tracer in it, reads the program's memory in the call.
                    return Some(Action::Memory(fault));
                }
                let later = has_flushed.then(|| fault.clone());
                self.tasks.insert(task, InKernel::Fault(later));
                (!has_flushed).then_some(Action::Memory(fault))
            }
            Event::Flush { reason: FlushReason::Request, .. } => {
                self.requested(running?, record.cpu)
            }
            Event::Requests { .. } | Event::Flush { reason: FlushReason::LocalSpace, .. } => {
                let task = running?;
                match self.choosing.remove(&task) {
                    true => Some(Action::ChoosesTargets),
                    false => self.flushed(task, Targets::Now),
                }
            }
            Event::Flush { .. }
            | Event::Interrupts { .. }
            | Event::Frame { .. }
            | Event::Stack { .. }
            | Event::Name { .. }
            | Event::Counted { .. }
            | Event::Lost { .. } => None,
        }
    }

    fn exec(&mut self, space: SpaceId) -> Action {
        self.following.extend(stack_of_new_program().map(Action::Memory));
        Action::Exec { space }
    }

    /// A task requests a flush. The kernel chooses the targets after it has traced the request,
    /// which takes time.
    fn requested(&mut self, task: TaskId, cpu: u32) -> Option<Action> {
        // A CPU that was not asked either leaves the space until the choice, or enters it
        // afterwards.
        let is_later = self.requests_asked.next() == Some(true) || self.is_shared(task, cpu);
        match (is_later, self.kernel_time) {
            (false, _) => self.flushed(task, Targets::Now),
            (true, KernelTime::Simulated) => None,
            (true, KernelTime::Recorded) => {
                let flushing = self.flushed(task, Targets::Later)?;
                self.choosing.insert(task);
                Some(flushing)
            }
        }
    }

    /// Returns `true` if another CPU runs the space of a task.
    fn is_shared(&self, task: TaskId, cpu: u32) -> bool {
        let space = |task| self.tracker.task(task).map(|task| task.space);
        let others = (0..self.cpus.len() as u32).filter(|&other| other != cpu);
        others.filter_map(|other| self.tracker.recorded(other)).any(|it| space(it) == space(task))
    }

    fn call(&mut self, task: TaskId, call: &Call) -> Option<Action> {
        let (number, outcome) = self.outcomes.next().unwrap_or((0, Outcome::Failed));
        let moved_to = match call {
            Call::Remap { .. } if outcome != Outcome::Failed => self.survey.moved_to.pop_front()?,
            _ => 0,
        };
        let allocates_nothing =
            matches!(call, Call::Unmap { .. } | Call::Protect { .. } | Call::Advise { .. });
        let is_sync = matches!(call, Call::Sync { .. });
        let is_done = (allocates_nothing || is_sync) && outcome == Outcome::Silent;
        let gathers = outcome != Outcome::Failed
            && gathers_from_beginning(call)
            && !self.survey.waited_to_gather.contains(&number);
        let in_call = InKernel::Call { number, call: *call, outcome, moved_to, is_done, gathers };
        self.tasks.insert(task, in_call);
        // Write-back that flushed nothing found no page to protect, as in a file in memory.
        let takes_effect = is_done && !is_sync;
        let effect = takes_effect.then(|| self.effect(task, call, 0)).flatten();
        let effect = effect.map(Action::Memory);
        match effect {
            Some(effect) => {
                self.following.extend(gathers.then_some(Action::GatherBegins));
                Some(effect)
            }
            None => gathers.then_some(Action::GatherBegins),
        }
    }

    fn flushed(&mut self, task: TaskId, targets: Targets) -> Option<Action> {
        if let Some(InKernel::Fault(later)) = self.tasks.get_mut(&task) {
            let flushing = |change| Action::Flushing { change, goes_on_gathering: false, targets };
            return later.take().map(flushing);
        }
        let Some(InKernel::Call {
            number,
            call,
            outcome: Outcome::Flushed,
            moved_to,
            is_done,
            gathers,
        }) = self.tasks.get_mut(&task)
        else {
            return None;
        };
        // If the program left the address of new memory to the kernel, it is known only when the
        // call returns. But then the call replaces no mapping, and does not flush.
        if replace(is_done, true) {
            return None;
        }
        let (number, call, moved_to) = (*number, *call, *moved_to);
        let begins = gathers_after_flush(&call) && !replace(gathers, true);
        let at = match call {
            Call::Map { address, .. } | Call::Break { address } => address,
            _ => moved_to,
        };
        if begins && let Some(task) = self.take_gather_before(task) {
            self.following.push_back(Action::GatherEnds { task });
        }
        // What was gathered is freed after the flush.
        let flushing = |change| Action::Flushing { change, goes_on_gathering: begins, targets };
        if let Some(effect) = self.effect(task, &call, at) {
            self.following.push_back(flushing(effect.clone()));
            self.use_folios(number, &effect);
        }
        self.following.pop_front()
    }

    /// Returns the task that still gathers in a call which held the lock of this task's space
    /// exclusively, and ends that. This task holds the lock now, so the other one has left it,
    /// although its call has not returned.
    fn take_gather_before(&mut self, task: TaskId) -> Option<TaskId> {
        let space = |task| self.tracker.task(task).map(|task| task.space);
        self.tasks.iter_mut().find_map(|(&other, state)| match state {
            InKernel::Call { call, gathers, .. }
                if *gathers
                    && other != task
                    && !gathers_from_beginning(call)
                    && space(other) == space(task) =>
            {
                *gathers = false;
                Some(other)
            }
            _ => None,
        })
    }

    /// Adds the operations that give a new mapping its folios.
    fn use_folios(&mut self, number: usize, effect: &RawAddress) {
        if let RawAddress::Map { pages, .. } = effect
            && let Some(folios) = self.survey.folios.get(&number)
        {
            self.following.extend(folios.operations(pages).into_iter().map(Action::Memory));
        }
    }

    fn returned(&mut self, task: TaskId, value: i64) -> Option<Action> {
        let Some(InKernel::Call { number, call, outcome, is_done, gathers, .. }) =
            self.tasks.remove(&task)
        else {
            return None;
        };
        if gathers {
            return Some(Action::GatherEnds { task });
        }
        if is_done || outcome == Outcome::Failed {
            return None;
        }
        let effect = self.effect(task, &call, value as u64)?;
        self.use_folios(number, &effect);
        Some(Action::Memory(effect))
    }

    /// Returns the effect of a call, for which the kernel chose the address `at`.
    fn effect(&mut self, task: TaskId, call: &Call, at: u64) -> Option<RawAddress> {
        Some(match *call {
            Call::Map { length, protection, flags, .. } => map(at, length, protection, flags),
            Call::Unmap { address, length } => RawAddress::Unmap(pages(address, length)),
            Call::Protect { address, length, protection } => {
                let permission = permission(protection);
                RawAddress::Protect { pages: pages(address, length), permission }
            }
            Call::Advise { address, length, advice } => match advice {
                linux::MADV_DONTNEED
                | linux::MADV_REMOVE
                | linux::MADV_DONTNEED_LOCKED
                | linux::MADV_GUARD_INSTALL => RawAddress::Discard(pages(address, length)),
                linux::MADV_FREE => RawAddress::Offer(pages(address, length)),
                linux::MADV_COLD => RawAddress::Cool(pages(address, length)),
                linux::MADV_PAGEOUT => RawAddress::PageOut(pages(address, length)),
                linux::MADV_POPULATE_READ | linux::MADV_POPULATE_WRITE => {
                    let access = match advice {
                        linux::MADV_POPULATE_READ => Access::Read,
                        _ => Access::Write,
                    };
                    RawAddress::Populate { pages: pages(address, length), access }
                }
                _ => return None,
            },
            Call::Remap { address, old_length, new_length, .. } => {
                RawAddress::Move { from: pages(address, old_length), to: pages(at, new_length) }
            }
            Call::Sync { address, length, flags } if flags & linux::MS_SYNC != 0 => {
                RawAddress::Sync(pages(address, length))
            }
            // Linux does nothing without the flag.
            Call::Sync { .. } => return None,
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
        })
    }
}
