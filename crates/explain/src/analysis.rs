//! The flushes that a program requested from other CPUs, each with its task, its cause, its call
//! stack and its cost.

use std::collections::{BTreeMap, HashMap};

use shootdown_recording::record::{Event, FlushReason, FrameId, Owner, Record, SpaceId, TaskId};
use shootdown_recording::{Header, ReadError, Reader, Tracker};

use crate::causes::{self, CauseId, Causes};
use crate::change::Change;
use crate::costs::Costs;
use crate::counters::{Balance, Counters};
use crate::doing::{OperationId, Operations};
use crate::stacks::Stacks;

/// The name of processors that broadcast flushes, in headers.
const BROADCASTER: &str = "aarch64";

/// A flush that was requested from at least one other CPU, or whose call stack was sampled.
///
/// Of other programs and threads of the kernel, only requests to CPUs that ran the program count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// The task that requested it; [`TaskId::KERNEL`] for a thread of the kernel.
    pub task: TaskId,
    /// The space of the task; `None` for a task of another program, or a thread of the kernel.
    pub space: Option<SpaceId>,
    /// Time of the request, in nanoseconds since the recording began.
    pub at_ns: u64,
    /// The CPU that requested it.
    pub cpu: u32,
    /// The cause.
    pub cause: CauseId,
    /// The innermost call of the sampled call stack, if the request was sampled.
    pub stack: Option<FrameId>,
    /// Number of CPUs that were asked to flush. If it is 0, only the call stack counts: it is that
    /// of other flushes, too few of which may be sampled.
    pub requests: u32,
    /// Number of interrupts that were sent. A CPU with a request in its queue needs no other.
    pub interrupts: u32,
    /// Number of requests to CPUs that were idle, or ran another program.
    pub in_vain: u32,
    /// Time from the request until the last target flushed.
    pub sender_ns: u64,
    /// `true` if `sender_ns` was measured, and not modelled.
    pub is_measured: bool,
    pub(crate) operation: Option<OperationId>,
}

/// A request, at the CPU that it interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The index of the flush.
    pub flush: usize,
    /// The CPU that was asked to flush.
    pub cpu: u32,
    /// Time from the request until this CPU flushed; `None` if it had caught up before.
    pub wait_ns: Option<u64>,
}

/// The flushes of a recording.
#[derive(Debug, Default)]
pub struct Analysis {
    /// The header of the recording.
    pub header: Header,
    /// The flushes, in the order of their ends.
    pub flushes: Vec<Flush>,
    /// The requests of the flushes, in the same order.
    pub received: Vec<Received>,
    /// The names of causes.
    pub causes: Causes,
    /// Time of all CPUs together in which the program's threads ran.
    pub program_ns: u64,
    /// Time in which a thread of the program ran, and in which two threads of one space did.
    pub busy_ns: u64,
    /// See `busy_ns`.
    pub parallel_ns: u64,
    /// Time of the last record.
    pub time_ns: u64,
    /// Number of lost events.
    pub lost: u64,
    /// Number of records.
    pub records: u64,
    /// Number of sampled call stacks.
    pub stacks: u64,
    /// Number of flush requests of the program for which the sampled stacks stand.
    pub stacks_stand_for: u64,
    /// Number of the program's flush requests, also of those that were sent to no CPU.
    pub announced: u64,
    /// `true` if the recording has neither requests nor interrupts, as before Linux 6.4. A CPU that
    /// flushed because another one asked counts as a request and an interrupt of the last flush of
    /// its space; CPUs that had nothing to flush are missing.
    pub is_inferred: bool,
    /// The requests of all programs, held against the kernel's own counters, if those were
    /// recorded.
    pub balance: Option<Balance>,
    pub(crate) operations: Operations,
    pub(crate) frames: Stacks,
    /// The spaces of forked children, each with `true` if the child executed a program.
    pub(crate) forked: HashMap<SpaceId, bool>,
}

/// A flush that may not be complete.
#[derive(Clone, Debug)]
struct Pending {
    flush: Flush,
    by_event: String,
    /// `true` if the flush surely belongs to the event.
    is_certain: bool,
    /// `true` after the CPU flushed its own TLB, which follows the selection of targets.
    is_local: bool,
    /// The targets, each with the time at which it reported its flush.
    targets: Vec<(u32, Option<u64>)>,
    /// The CPUs that flushed although the recording does not name them as targets.
    inferred: Vec<(u32, Option<u64>)>,
    last_ns: u64,
}

/// An analysis of records as they arrive.
#[derive(Debug)]
pub struct Analyst {
    tracker: Tracker,
    analysis: Analysis,
    costs: Costs,
    pending: Vec<Option<Pending>>,
    /// The time up to which each CPU's running task is accounted for.
    accounted_to_ns: Vec<u64>,
    /// Flushes of a task since its last call or fault, which a fork may explain.
    unexplained: HashMap<TaskId, Vec<usize>>,
    /// The cause of the last sampled flush of each task after an event that does not explain it.
    sampled: HashMap<(TaskId, CauseId), CauseId>,
    /// Flushes without a stack after such an event, before the first sampled one.
    undecided: HashMap<(TaskId, CauseId), Vec<usize>>,
    has_requests: bool,
    /// `true` after the first request or interrupt.
    has_targets: bool,
    /// `true` after the first switch: without switches, the space of a CPU is a guess.
    has_switches: bool,
    counters: Counters,
    running: Running,
}

/// The spaces of the program's threads that run.
#[derive(Clone, Debug)]
struct Running {
    on: Vec<Option<SpaceId>>,
    threads: HashMap<SpaceId, u32>,
    /// Number of CPUs that run the program, and of spaces that at least two CPUs run.
    busy: u32,
    parallel: u32,
}

impl Running {
    fn new(cpus: u32) -> Self {
        let on = vec![None; cpus as usize];
        Self { on, threads: HashMap::new(), busy: 0, parallel: 0 }
    }

    /// A CPU runs a thread of this space from now on.
    fn set(&mut self, cpu: usize, space: Option<SpaceId>) {
        let before = std::mem::replace(&mut self.on[cpu], space);
        if let Some(before) = before {
            let threads = self.threads.entry(before).or_default();
            *threads -= 1;
            self.parallel -= u32::from(*threads == 1);
            self.busy -= 1;
        }
        if let Some(space) = space {
            let threads = self.threads.entry(space).or_default();
            *threads += 1;
            self.parallel += u32::from(*threads == 2);
            self.busy += 1;
        }
    }
}

impl Analysis {
    /// Reads a recording to its end, or to the end of its intact part.
    ///
    /// # Errors
    ///
    /// Fails if the recording is damaged, or cannot be read.
    pub fn of(reader: &mut Reader<'_>, costs: Costs) -> Result<Self, ReadError> {
        let mut analyst = Analyst::new(reader.header().clone(), costs);
        while let Some(record) = reader.next_record()? {
            analyst.record(&record);
        }
        Ok(analyst.finish())
    }

    /// Returns `true` if the recording can be changed in this way at all.
    #[must_use]
    pub fn allows(&self, change: Change) -> bool {
        change != Change::Spawn || self.forked.values().any(|executes| *executes)
    }

    /// Returns the calls that flush, by their causes, if the processor broadcasts flushes: no event
    /// of the kernel has them, and they interrupt no CPU.
    #[must_use]
    pub fn broadcasts(&self) -> Option<BTreeMap<&str, u64>> {
        let calls = ["munmap", "mprotect", "madvise", "mremap"];
        let causes = self.operations.all.iter().map(|operation| &*operation.cause);
        let flushes = causes.filter(|cause| calls.iter().any(|call| cause.starts_with(call)));
        let mut counts = BTreeMap::new();
        flushes.for_each(|cause| *counts.entry(cause).or_default() += 1);
        (self.header.processor == BROADCASTER && self.announced == 0).then_some(counts)
    }

    /// CPU time of a flush: the sender's wait, and what its interrupts took from their targets.
    #[must_use]
    pub fn cpu_ns(flush: &Flush, costs: Costs) -> u64 {
        flush.sender_ns + u64::from(flush.interrupts) * costs.interrupt_ns
    }
}

impl Analyst {
    /// Begins the analysis of a recording with this header.
    #[must_use]
    pub fn new(header: Header, costs: Costs) -> Self {
        let cpus = header.cpus;
        Self {
            tracker: Tracker::new(cpus),
            analysis: Analysis { header, ..Analysis::default() },
            costs,
            pending: vec![None; cpus as usize],
            accounted_to_ns: vec![0; cpus as usize],
            unexplained: HashMap::new(),
            sampled: HashMap::new(),
            undecided: HashMap::new(),
            has_requests: false,
            has_targets: false,
            has_switches: false,
            counters: Counters::default(),
            running: Running::new(cpus),
        }
    }

    /// Returns the analysis of the records so far. It lacks the last flush of each CPU, which may
    /// not be complete.
    #[must_use]
    pub fn so_far(&self) -> &Analysis {
        &self.analysis
    }

    /// Returns the space of the program's thread that runs on a CPU, if one does.
    #[must_use]
    pub fn space_on(&self, cpu: u32) -> Option<SpaceId> {
        let task = self.tracker.recorded(cpu)?;
        self.tracker.task(task).map(|task| task.space)
    }

    /// Adds the next record, which a [`Reader`] or a writer has checked.
    pub fn record(&mut self, record: &Record) {
        let cpu = record.cpu as usize;
        self.account(record);
        self.counters.record(record.cpu, &record.event);
        match &record.event {
            Event::Flush { reason: FlushReason::Request, .. } => self.request(record),
            Event::Flush { reason: FlushReason::Remote, .. } => self.flushed(record),
            Event::Flush { reason, .. } => {
                if matches!(reason, FlushReason::LocalSpace | FlushReason::Local)
                    && let Some(pending) = &mut self.pending[cpu]
                {
                    pending.last_ns = record.time_ns;
                    pending.is_local = true;
                }
            }
            Event::Frame { caller, function, .. } => {
                self.analysis.frames.add(*caller, function.clone());
            }
            Event::Stack { frame, requests } => {
                if let Some(pending) = &mut self.pending[cpu] {
                    pending.flush.stack = Some(*frame);
                    if pending.flush.space.is_some() {
                        self.analysis.stacks += 1;
                        self.analysis.stacks_stand_for += requests;
                    }
                }
            }
            Event::Requests { targets } => {
                self.has_requests = true;
                self.targets(cpu, targets);
            }
            Event::Interrupts { targets } => self.interrupts(cpu, targets),
            Event::Lost { count } => {
                self.analysis.lost += count.max(&1);
                self.pending[cpu] = None;
            }
            Event::Name { frame, function, file } => {
                self.analysis.frames.name(*frame, function, file);
            }
            Event::Task { .. } | Event::Wake { .. } | Event::Counted { .. } => {}
            Event::Fault { code, .. } if !code.is_user() && self.is_announcing(cpu) => {
                // Another tracer copies the stack of the thread.
                if let Some(task) = self.tracker.recorded(record.cpu)
                    && let Some(space) = self.tracker.task(task).map(|task| task.space)
                {
                    self.analysis.operations.add_foreign_fault(task, space);
                }
            }
            event => {
                self.complete(cpu);
                self.operation(record.cpu, event);
            }
        }
        self.tracker.apply(record);
        self.has_switches |= matches!(record.event, Event::Switch { .. });
        if matches!(
            record.event,
            Event::Running { .. } | Event::Switch { .. } | Event::Exec { .. } | Event::Lost { .. }
        ) {
            let space = self.space_on(record.cpu);
            self.running.set(cpu, space);
        }
    }

    /// Returns `true` if a CPU has announced a flush and not selected its targets yet.
    fn is_announcing(&self, cpu: usize) -> bool {
        self.pending[cpu].as_ref().is_some_and(|it| it.flush.requests == 0 && !it.is_local)
    }

    /// Counts the time of the program's threads, and records.
    fn account(&mut self, record: &Record) {
        let cpu = record.cpu as usize;
        let before_ns = std::mem::replace(&mut self.accounted_to_ns[cpu], record.time_ns);
        if self.tracker.recorded(record.cpu).is_some() {
            self.analysis.program_ns += record.time_ns - before_ns;
        }
        let passed_ns = record.time_ns - self.analysis.time_ns;
        if self.running.busy > 0 {
            self.analysis.busy_ns += passed_ns;
        }
        if self.running.parallel > 0 {
            self.analysis.parallel_ns += passed_ns;
        }
        self.analysis.records += 1;
        self.analysis.time_ns = record.time_ns;
    }

    /// Applies an event by which a task asks the kernel for something else.
    fn operation(&mut self, cpu: u32, event: &Event) {
        let Some(task) = self.tracker.recorded(cpu) else { return };
        let Some(space) = self.tracker.task(task).map(|task| task.space) else { return };
        if let Event::Spawn { space: child, .. } = event {
            let flushes = self.unexplained.remove(&task).unwrap_or_default();
            if *child != space {
                self.analysis.forked.entry(*child).or_default();
                self.analysis.operations.copy(space, *child);
                let fork = self.analysis.causes.number(causes::FORK);
                for flush in flushes {
                    let flush = &mut self.analysis.flushes[flush];
                    (flush.cause, flush.operation) = (fork, None);
                }
            }
            return;
        }
        if let (Event::Exec { .. }, Some(executes)) = (event, self.analysis.forked.get_mut(&space))
        {
            *executes = true;
        }
        self.unexplained.remove(&task);
        self.analysis.operations.apply(task, space, event);
    }

    /// Begins a flush request.
    fn request(&mut self, record: &Record) {
        let cpu = record.cpu as usize;
        self.complete(cpu);
        let task = self.tracker.running(record.cpu);
        let own = self.tracker.task(task).filter(|it| it.owner == Owner::Recorded);
        let space = own.map(|it| it.space);
        let operations = &self.analysis.operations;
        let (operation, by_event) = match space {
            Some(_) => operations.current(task),
            None => (None, causes::UNKNOWN),
        };
        let (by_event, is_certain) = (by_event.to_owned(), operations.is_certain(task));
        self.analysis.announced += u64::from(space.is_some());
        let flush = Flush {
            task,
            space,
            at_ns: record.time_ns,
            cpu: record.cpu,
            cause: self.analysis.causes.number(causes::UNKNOWN),
            stack: None,
            requests: 0,
            interrupts: 0,
            in_vain: 0,
            sender_ns: 0,
            is_measured: false,
            operation,
        };
        let last_ns = record.time_ns;
        let is_local = false;
        let (targets, inferred) = (Vec::new(), Vec::new());
        self.pending[cpu] =
            Some(Pending { flush, by_event, is_certain, is_local, targets, inferred, last_ns });
    }

    /// Adds the targets of a flush. If the program did not request it, only its CPUs count.
    fn targets(&mut self, cpu: usize, targets: &[u32]) {
        self.has_targets = true;
        let Self { tracker, pending, .. } = self;
        let Some(pending) = &mut pending[cpu] else { return };
        for target in targets {
            let running = tracker.task(tracker.running(*target));
            let is_in_vain = match (pending.flush.space, running) {
                (Some(space), running) => running.is_none_or(|task| task.space != space),
                (None, Some(task)) if task.owner == Owner::Recorded => false,
                (None, _) => continue,
            };
            pending.flush.requests += 1;
            pending.flush.in_vain += u32::from(is_in_vain);
            pending.targets.push((*target, None));
        }
    }

    fn interrupts(&mut self, cpu: usize, targets: &[u32]) {
        if !self.has_requests {
            // The recording lacks the requests, of which most need an interrupt.
            self.targets(cpu, targets);
        }
        let Self { tracker, pending, .. } = self;
        let Some(pending) = &mut pending[cpu] else { return };
        let is_ours =
            |target: &&u32| pending.flush.space.is_some() || tracker.recorded(**target).is_some();
        pending.flush.interrupts += targets.iter().filter(is_ours).count() as u32;
    }

    /// A CPU flushed because another one asked it to: the first that still waits for it.
    fn flushed(&mut self, record: &Record) {
        let waiting =
            |pending: &Pending| pending.targets.iter().position(|it| *it == (record.cpu, None));
        let pending = self.pending.iter_mut().flatten();
        let waiting = pending.filter_map(|pending| Some((waiting(pending)?, pending)));
        if let Some((target, pending)) = waiting.min_by_key(|(_, pending)| pending.flush.at_ns) {
            pending.targets[target].1 = Some(record.time_ns);
            pending.last_ns = record.time_ns;
            pending.flush.is_measured = true;
        } else if !self.has_targets && self.has_switches {
            self.infer(record);
        }
    }

    /// A CPU flushed, and the recording does not name its requesters: probably the last one of the
    /// space that it runs, or the last one outside the program.
    fn infer(&mut self, record: &Record) {
        let Some(space) = self.space_on(record.cpu) else { return };
        let target = (record.cpu, Some(record.time_ns));
        let is_other = |pending: &&mut Pending| {
            let is_own = pending.flush.space.is_none_or(|it| it == space);
            is_own
                && pending.flush.cpu != record.cpu
                && pending.inferred.iter().all(|(cpu, _)| *cpu != record.cpu)
        };
        let pending = self.pending.iter_mut().flatten().filter(is_other);
        let last = pending.max_by_key(|it| (it.flush.space.is_some(), it.flush.at_ns));
        if let Some(pending) = last {
            pending.inferred.push(target);
        }
    }

    /// Ends the flush that a CPU requested, if there is one.
    fn complete(&mut self, cpu: usize) {
        let Some(pending) = self.pending[cpu].take() else { return };
        let Pending { mut flush, by_event, is_certain, mut targets, inferred, .. } = pending;
        let mut last_ns = pending.last_ns;
        if !self.has_targets && !inferred.is_empty() {
            (flush.requests, flush.interrupts) = (inferred.len() as u32, inferred.len() as u32);
            last_ns = inferred.iter().filter_map(|(_, at_ns)| *at_ns).fold(last_ns, u64::max);
            (targets, flush.is_measured, self.analysis.is_inferred) = (inferred, true, true);
        }
        if flush.requests == 0 && (flush.stack.is_none() || flush.space.is_none()) {
            return;
        }
        flush.sender_ns = if flush.is_measured {
            last_ns - flush.at_ns
        } else {
            u64::from(flush.requests) * self.costs.unmeasured_wait_ns
        };
        let index = self.analysis.flushes.len();
        self.analysis.received.extend(targets.into_iter().map(|(cpu, flushed_ns)| Received {
            flush: index,
            cpu,
            wait_ns: flushed_ns.map(|flushed_ns| flushed_ns - flush.at_ns),
        }));
        let by_stack = flush.stack.and_then(|stack| self.by_stack(stack, &by_event));
        let is_explained = by_stack.is_some();
        let by_event = self.analysis.causes.number(&by_event);
        flush.cause = match by_stack {
            Some(name) => self.analysis.causes.number(&name),
            None => by_event,
        };
        self.analysis.flushes.push(flush);
        if !is_certain {
            self.decide(index, by_event, is_explained);
        }
        if !is_explained && flush.space.is_some() {
            self.unexplained.entry(flush.task).or_default().push(index);
        }
    }

    /// Returns the cause that the call stack of a flush reveals.
    fn by_stack(&self, stack: FrameId, by_event: &str) -> Option<String> {
        let Analysis { frames, causes, .. } = &self.analysis;
        let functions: Vec<_> = frames.kernel_functions(stack).collect();
        let name = causes.of_functions(&functions)?;
        // The events know more than the stack: the advice, and the kind of the page.
        let is_refined = by_event.starts_with(&name)
            || name == causes::COPY_ON_WRITE
                && [causes::ZERO_PAGE, causes::FILE_COPY].contains(&by_event);
        Some(if is_refined { by_event.to_owned() } else { name })
    }

    /// Gives a flush without a stack, which its event does not explain, the cause of a sampled one
    /// of the same task after such an event.
    fn decide(&mut self, index: usize, by_event: CauseId, is_explained: bool) {
        let flushes = &mut self.analysis.flushes;
        let key = (flushes[index].task, by_event);
        if is_explained {
            let cause = flushes[index].cause;
            self.sampled.insert(key, cause);
            for earlier in self.undecided.remove(&key).unwrap_or_default() {
                // A fork may have explained it.
                if flushes[earlier].cause == by_event {
                    flushes[earlier].cause = cause;
                }
            }
        } else if let Some(cause) = self.sampled.get(&key) {
            flushes[index].cause = *cause;
        } else {
            self.undecided.entry(key).or_default().push(index);
        }
    }

    /// Ends the analysis.
    #[must_use]
    pub fn finish(mut self) -> Analysis {
        for cpu in 0..self.pending.len() {
            self.complete(cpu);
        }
        self.analysis.balance = self.counters.balance();
        self.analysis
    }
}
