//! The first reading of a recording: checks that the recording is complete, counts the operations
//! of the recorded kernel, and stores the results of system calls. The second reading needs a
//! call's result when the call begins.

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem;

use shootdown_recording::record::{
    Call, Event, FaultCode, FlushReason, Owner, Record, SpaceId, TaskId,
};
use shootdown_recording::{Header, ReadError, Reader, Totals, Tracker};

use super::delivery::{Deliveries, FlushTimes};
use super::folios::{Changing, FolioSurvey, MappedFolios};
use super::late_switches::{EarlyExecs, LateSwitches, SwitchSurvey};
use super::linux::{self, flushes_exclusively, locks_area_only, locks_exclusively};

/// The properties of a recording that are known before its replay.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// The header of the recording.
    pub header: Header,
    /// The totals of the recording.
    pub totals: Totals,
    /// The reason why the recording ends before its end, if only its intact part was read.
    pub cut: Option<String>,
    /// The operations of the recorded kernel for the program.
    pub kernel: KernelCounts,
    /// Number of threads that the program had in total.
    pub threads: usize,
    /// Number of address spaces that the program had in total.
    pub spaces: usize,
    /// Number of calls and faults on a CPU where, according to the recording, no thread of the
    /// program ran. A replay cannot repeat them.
    pub unattributed: u64,
    /// Nanoseconds in which at least one CPU ran the program.
    pub busy_ns: u64,
    /// Nanoseconds in which at least two CPUs ran threads of the same space. Without such times,
    /// there is nobody to interrupt.
    pub parallel_ns: u64,
    /// Median of the times from a request to the flush of its target, in nanoseconds. `None`
    /// without requests.
    pub delivery_ns: Option<u64>,
    /// Median of the times from a request with interrupts to the sender's own flush.
    pub(crate) request_ns: Option<u64>,
    /// The time of the kernel's flush function.
    pub(crate) flush_ns: Option<u64>,
    /// The times that the interrupts took.
    pub(crate) deliveries: Deliveries,
    /// `true` if the program asked the kernel to reclaim pages. The replay then needs a memory
    /// manager that reclaims.
    pub(crate) reclaims: bool,
    /// The outcome of each call, in the order in which the calls began.
    pub(crate) outcomes: Vec<Outcome>,
    /// The destination of each `mremap` that succeeded, in the same order.
    pub(crate) moved_to: VecDeque<u64>,
    /// For each fault of the program, whether it flushed.
    pub(crate) faults_flushed: Vec<bool>,
    /// For each request of the program, whether the kernel found a CPU to ask.
    pub(crate) requests_asked: Vec<bool>,
    /// The calls that waited for other calls before they gathered, if they gather at all, by index
    /// in `outcomes`.
    pub(crate) waited_to_gather: HashSet<usize>,
    /// The switches that took effect later.
    pub(crate) late_switches: LateSwitches,
    /// Every `exec` that took effect earlier.
    pub(crate) early_execs: EarlyExecs,
    /// The folios of the mappings that have large ones, by the index of the call in `outcomes`.
    pub(crate) folios: HashMap<usize, MappedFolios>,
}

/// Counts of the operations of the recorded kernel for the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelCounts {
    /// Flush interrupts that the program's threads sent, one for each target.
    pub interrupts_sent: u64,
    /// Flushes of a whole space, on any CPU.
    pub flushes_full: u64,
    /// Flushes of ranges of pages, on any CPU.
    pub flushes_ranged: u64,
    /// Requests of the program's threads to flush a CPU, one for each target, with or without an
    /// interrupt of its own. `None` if the recording lacks them.
    pub requests: Option<u64>,
    /// Page faults of the program.
    pub faults: u64,
    /// System calls of the program that concern memory.
    pub calls: u64,
    /// Flush interrupts to CPUs that ran the program, sent by threads of other programs or of the
    /// kernel: for reclaim, write-back, or huge pages. A replay does not know their causes.
    pub interrupts_by_others: u64,
}

/// The outcome of a call, which decides when the replay applies its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The call returned an error, or did not return.
    Failed,
    /// The call succeeded and flushed. It takes effect at the flush.
    Flushed,
    /// The call succeeded and did not flush.
    Silent,
}

impl Survey {
    /// Reads a whole recording. `progress` is called at regular intervals with the number of
    /// records that were read.
    ///
    /// # Errors
    ///
    /// Fails if the recording is damaged, or cannot be read.
    ///
    /// # Panics
    ///
    /// Does not panic: a reader that has reached the end without an error has totals.
    pub fn of(mut reader: Reader<'_>, mut progress: impl FnMut(u64)) -> Result<Self, ReadError> {
        let tracker = Tracker::new(reader.header().cpus);
        let release = linux::version(&reader.header().kernel);
        let found = Self { header: reader.header().clone(), ..Self::default() };
        let mut surveyor = Surveyor { found, tracker, release, ..Surveyor::default() };
        let mut read = 0;
        while let Some(record) = reader.next_record()? {
            surveyor.record(&record);
            read += 1;
            if read % PROGRESS_RECORDS == 0 {
                progress(read);
            }
        }
        let Surveyor { mut found, mut times, .. } = surveyor;
        if !surveyor.has_interrupts {
            found.kernel.requests.get_or_insert(0);
        }
        found.totals = *reader.totals().expect("a reader has totals at its end");
        found.cut = reader.cut().map(ToString::to_string);
        found.spaces = surveyor.spaces.len();
        found.delivery_ns = times.delivery_ns();
        found.request_ns = times.request_ns();
        found.flush_ns = times.flush_ns();
        found.deliveries = times.into_deliveries();
        found.moved_to = surveyor.moved_to.into_iter().flatten().collect();
        (found.late_switches, found.early_execs) = surveyor.switches.found();
        found.folios = surveyor.folios.found();
        Ok(found)
    }
}

/// Number of records between two reports of progress.
pub(super) const PROGRESS_RECORDS: u64 = 1 << 16;

#[derive(Default)]
struct Surveyor {
    /// The properties that are known so far.
    found: Survey,
    tracker: Tracker,
    spaces: HashSet<SpaceId>,
    moved_to: Vec<Option<u64>>,
    /// The time up to which its times are counted.
    counted_to_ns: u64,
    /// Largest number of CPUs that now run threads of the same recorded space.
    together: usize,
    /// CPUs that another program or the kernel interrupted last, and that have not flushed since.
    by_others: HashSet<u32>,
    has_interrupts: bool,
    times: FlushTimes,
    /// The fault that each task is in.
    in_fault: HashMap<TaskId, OpenFault>,
    /// The last request of each task.
    last_request: HashMap<TaskId, usize>,
    /// Calls that have not returned.
    open: HashMap<TaskId, OpenCall>,
    /// The release of the recorded kernel, if it could be read.
    release: Option<(u32, u32)>,
    switches: SwitchSurvey,
    folios: FolioSurvey,
}

#[derive(Clone, Copy, Debug)]
struct OpenCall {
    number: usize,
    call: Call,
    /// Index in `moved_to`, for `mremap`.
    move_number: Option<usize>,
    has_flushed: bool,
}

#[derive(Clone, Copy, Debug)]
struct OpenFault {
    /// Index in `faults_flushed`.
    number: usize,
    address: u64,
    code: FaultCode,
    has_flushed: bool,
}

impl Surveyor {
    fn record(&mut self, record: &Record) {
        let recorded = self.tracker.recorded(record.cpu);
        if recorded.is_none() && matches!(record.event, Event::Call(_) | Event::Fault { .. }) {
            self.found.unattributed += 1;
        }
        self.times.record(record, recorded.is_some());
        self.switches.record(record, &self.tracker);
        if !is_within_fault(&record.event) {
            self.times.stopped_waiting(record.cpu, record.time_ns);
            self.in_fault.retain(|&task, _| Some(task) != recorded);
        }
        match &record.event {
            Event::Task { owner: Owner::Recorded, space, .. } => {
                self.found.threads += 1;
                self.spaces.insert(*space);
            }
            Event::Spawn { space, .. } => {
                self.found.threads += 1;
                self.spaces.insert(*space);
                if let Some(creator) = recorded.and_then(|task| self.tracker.task(task)) {
                    self.folios.forked(creator.space, *space);
                }
            }
            Event::Exec { space, .. } => {
                self.spaces.insert(*space);
            }
            Event::Fault { address, code } => {
                self.found.kernel.faults += 1;
                if let Some(task) = recorded {
                    self.fault(task, *address, *code);
                }
            }
            Event::Flush { reason, pages } => self.flush(record.cpu, recorded, *reason, *pages),
            Event::Requests { targets } => self.requests(recorded, targets),
            Event::Interrupts { targets } => self.interrupts(recorded, targets),
            Event::Call(call) => {
                if let Some(task) = recorded {
                    self.call(task, call);
                }
            }
            Event::Return { value } => {
                if let Some(task) = recorded {
                    self.returned(task, *value);
                }
            }
            Event::Task { owner: Owner::Other, .. }
            | Event::Running { .. }
            | Event::Switch { .. }
            | Event::Wake { .. }
            | Event::Exit
            | Event::Name { .. }
            | Event::Counted { .. }
            | Event::Lost { .. } => {}
            Event::Frame { frame, caller, function } => {
                self.folios.frame(*frame, *caller, &function.function);
            }
            Event::Stack { frame, .. } => {
                if let Some(changing) = recorded.and_then(|task| self.changing(task)) {
                    self.folios.stack(&changing, *frame);
                }
            }
        }
        self.tracker.apply(record);
        if matches!(
            record.event,
            Event::Running { .. } | Event::Switch { .. } | Event::Exec { .. } | Event::Exit
        ) {
            self.count_time(record.time_ns);
            self.together = self.tracker.most_together();
        }
    }

    fn fault(&mut self, task: TaskId, address: u64, code: FaultCode) {
        let number = self.found.faults_flushed.len();
        let fault = OpenFault { number, address, code, has_flushed: false };
        self.in_fault.insert(task, fault);
        self.found.faults_flushed.push(false);
    }

    /// Counts the time up to now, in which the same threads have run.
    fn count_time(&mut self, now_ns: u64) {
        let passed_ns = now_ns - self.counted_to_ns;
        self.counted_to_ns = now_ns;
        if self.together >= 1 {
            self.found.busy_ns += passed_ns;
        }
        if self.together >= 2 {
            self.found.parallel_ns += passed_ns;
        }
    }

    fn flush(&mut self, cpu: u32, by: Option<TaskId>, reason: FlushReason, pages: Option<u64>) {
        let is_ours = match reason {
            FlushReason::LocalSpace | FlushReason::Request => by.is_some(),
            // The CPU flushes the space that it has loaded, on behalf of the sender.
            FlushReason::Remote => {
                let is_by_others = self.by_others.remove(&cpu);
                self.tracker.has_recorded_space(cpu) && !is_by_others
            }
            FlushReason::TaskSwitch | FlushReason::Local | FlushReason::WrongCpu => false,
        };
        if !is_ours {
            return;
        }
        match (reason, pages) {
            (FlushReason::Request, _) => {
                self.last_request.extend(by.map(|task| (task, self.found.requests_asked.len())));
                self.found.requests_asked.push(false);
            }
            (_, None) => self.found.kernel.flushes_full += 1,
            (_, Some(_)) => self.found.kernel.flushes_ranged += 1,
        }
        if reason != FlushReason::Remote
            && let Some(task) = by
        {
            self.flushed(task, reason, pages);
        }
    }

    /// Records a flush, or a request for one, by a task of the program.
    fn flushed(&mut self, task: TaskId, reason: FlushReason, pages: Option<u64>) {
        self.note_waiting(task);
        let changing = self.changing(task);
        let has_flushed = if let Some(call) = self.open.get_mut(&task) {
            mem::replace(&mut call.has_flushed, true)
        } else if let Some(fault) = self.in_fault.get_mut(&task) {
            self.found.faults_flushed[fault.number] |= reason == FlushReason::LocalSpace;
            mem::replace(&mut fault.has_flushed, true)
        } else {
            return;
        };
        if let Some(changing) = changing.filter(|_| !has_flushed && !self.is_nested(task)) {
            self.folios.flush(&changing, pages);
        }
    }

    /// If a task flushes in a call that has locked the space exclusively, calls that lock the space
    /// as well and have not returned do not gather now: they wait for the lock, or have gathered
    /// already. But if the flush comes after a part in which others may lock the space, that is
    /// known only of calls that began before this one.
    fn note_waiting(&mut self, task: TaskId) {
        let Self { open, tracker, found, release, .. } = self;
        let Some(call) = open.get(&task).filter(|it| locks_exclusively(&it.call)) else {
            return;
        };
        let space = |task| tracker.task(task).map(|task| task.space);
        let waits = |it: &OpenCall| {
            (it.number < call.number || flushes_exclusively(&call.call))
                && !locks_area_only(&it.call, *release)
        };
        let waiting = open.iter().filter(|&(&other, it)| waits(it) && space(other) == space(task));
        found.waited_to_gather.extend(waiting.map(|(_, it)| it.number));
    }

    /// Returns the memory that a task changes.
    fn changing(&self, task: TaskId) -> Option<Changing> {
        let space = self.tracker.task(task)?.space;
        match self.open.get(&task) {
            Some(call) => Changing::of_call(space, &call.call),
            None => {
                let fault = self.in_fault.get(&task)?;
                Some(Changing::of_fault(space, fault.address, fault.code))
            }
        }
    }

    /// Returns `true` if a task is in a call and another task of its space is also. All flushes may
    /// then be full (`mm_tlb_flush_nested`).
    fn is_nested(&self, task: TaskId) -> bool {
        let space = |task| self.tracker.task(task).map(|task| task.space);
        self.open.contains_key(&task)
            && self.open.keys().any(|&other| other != task && space(other) == space(task))
    }

    fn requests(&mut self, by: Option<TaskId>, targets: &[u32]) {
        self.note_sender(by, targets);
        let of_program = if by.is_some() { targets.len() as u64 } else { 0 };
        if let Some(request) = by.and_then(|task| self.last_request.remove(&task)) {
            self.found.requests_asked[request] = !targets.is_empty();
        }
        // A CPU that has flushed for another one since its request does not flush itself.
        if let Some(fault) = by.and_then(|task| self.in_fault.get(&task)) {
            self.found.faults_flushed[fault.number] = true;
        }
        *self.found.kernel.requests.get_or_insert(0) += of_program;
    }

    /// Notes for which program the targets will flush.
    fn note_sender(&mut self, by: Option<TaskId>, targets: &[u32]) {
        for cpu in targets {
            if by.is_some() {
                self.by_others.remove(cpu);
            } else {
                self.by_others.insert(*cpu);
            }
        }
    }

    fn interrupts(&mut self, by: Option<TaskId>, targets: &[u32]) {
        self.has_interrupts = true;
        self.note_sender(by, targets);
        if by.is_some() {
            self.found.kernel.interrupts_sent += targets.len() as u64;
        } else {
            let hit = targets.iter().filter(|&&cpu| self.tracker.recorded(cpu).is_some());
            self.found.kernel.interrupts_by_others += hit.count() as u64;
        }
    }

    fn call(&mut self, task: TaskId, call: &Call) {
        self.found.kernel.calls += 1;
        self.found.reclaims |=
            matches!(call, Call::Advise { advice: linux::MADV_PAGEOUT, .. } | Call::Sync { .. });
        let move_number = matches!(call, Call::Remap { .. }).then(|| {
            self.moved_to.push(None);
            self.moved_to.len() - 1
        });
        let number = self.found.outcomes.len();
        self.found.outcomes.push(Outcome::Failed);
        self.open.insert(task, OpenCall { number, call: *call, move_number, has_flushed: false });
    }

    fn returned(&mut self, task: TaskId, value: i64) {
        let Some(call) = self.open.remove(&task) else { return };
        if is_error(value) {
            return;
        }
        self.found.outcomes[call.number] =
            if call.has_flushed { Outcome::Flushed } else { Outcome::Silent };
        if let Some(number) = call.move_number {
            self.moved_to[number] = Some(value as u64);
        }
        if let Some(task) = self.tracker.task(task) {
            self.folios.returned(task.space, call.number, &call.call, value as u64);
        }
    }
}

/// Returns `true` for events that do not show that a fault has ended.
pub(super) const fn is_within_fault(event: &Event) -> bool {
    matches!(
        event,
        Event::Flush { .. }
            | Event::Requests { .. }
            | Event::Interrupts { .. }
            | Event::Frame { .. }
            | Event::Stack { .. }
            | Event::Name { .. }
            | Event::Counted { .. }
    )
}

/// Returns `true` if the returned value of a system call is an error number.
const fn is_error(value: i64) -> bool {
    -4096 < value && value < 0
}
