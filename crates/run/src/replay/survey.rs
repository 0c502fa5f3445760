//! The first reading of a recording: whether it is whole, what the kernel that ran the program did
//! for it, and how its system calls came out, which the second reading must know when they begin.

use std::collections::{HashMap, HashSet, VecDeque};

use shootdown_recording::record::{Call, Event, FlushReason, Owner, Record, SpaceId, TaskId};
use shootdown_recording::{Header, ReadError, Reader, Totals};

use super::tracker::Tracker;

/// What a recording holds, before any of it is replayed.
#[derive(Clone, Debug)]
pub struct Survey {
    /// Who recorded what, where.
    pub header: Header,
    /// How much of it there is.
    pub totals: Totals,
    /// What the kernel that was recorded did for the program.
    pub kernel: KernelCounts,
    /// How many threads the program had, all in all.
    pub threads: usize,
    /// How many address spaces.
    pub spaces: usize,
    /// How each call came out, in the order in which they began.
    pub(crate) outcomes: Vec<Outcome>,
    /// Where each `mremap` that succeeded moved to, in that order.
    pub(crate) moved_to: VecDeque<u64>,
}

/// What the recorded kernel did for the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelCounts {
    /// Flush interrupts that it sent, one for each target.
    pub interrupts_sent: u64,
    /// How often a CPU flushed all of a space.
    pub flushes_full: u64,
    /// How often a CPU flushed pages.
    pub flushes_ranged: u64,
    /// How often it set out to tell others, whether or not anyone needed to be told.
    pub requests: u64,
    /// Page faults of the program.
    pub faults: u64,
    /// System calls of the program that concern memory.
    pub calls: u64,
    /// Flush interrupts that others than the program's threads sent to CPUs that ran it: reclaim,
    /// write-back, huge pages. A replay does not know their causes.
    pub interrupts_by_others: u64,
}

/// How a call came out, and when its effect is thought to have taken place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It returned an error, or never.
    Failed,
    /// It succeeded, and flushed: there and then it had taken effect.
    Flushed,
    /// It succeeded, and flushed nothing.
    Silent,
}

impl Survey {
    /// Reads all of a recording. `progress` is told how many records were read.
    ///
    /// # Errors
    ///
    /// If it is damaged, or cannot be read.
    ///
    /// # Panics
    ///
    /// Never: a reader that came to the end without an error has totals.
    pub fn of(mut reader: Reader<'_>, mut progress: impl FnMut(u64)) -> Result<Self, ReadError> {
        let mut surveyor = Surveyor::new(reader.header().cpus);
        let mut read = 0;
        while let Some(record) = reader.next_record()? {
            surveyor.record(&record);
            read += 1;
            if read % PROGRESS_RECORDS == 0 {
                progress(read);
            }
        }
        Ok(Self {
            header: reader.header().clone(),
            totals: *reader.totals().expect("a reader that came to the end has them"),
            kernel: surveyor.kernel,
            threads: surveyor.threads,
            spaces: surveyor.spaces.len(),
            outcomes: surveyor.outcomes,
            moved_to: surveyor.moved_to.into_iter().flatten().collect(),
        })
    }
}

/// How often progress is told.
pub(super) const PROGRESS_RECORDS: u64 = 1 << 16;

struct Surveyor {
    tracker: Tracker,
    kernel: KernelCounts,
    threads: usize,
    spaces: HashSet<SpaceId>,
    outcomes: Vec<Outcome>,
    moved_to: Vec<Option<u64>>,
    /// The CPUs that were last interrupted by others than the program, and have not flushed since.
    by_others: HashSet<u32>,
    /// The calls that have not returned.
    open: HashMap<TaskId, OpenCall>,
}

#[derive(Clone, Copy, Debug)]
struct OpenCall {
    number: usize,
    /// In `moved_to`, for `mremap`.
    move_number: Option<usize>,
    has_flushed: bool,
}

impl Surveyor {
    fn new(cpus: u32) -> Self {
        Self {
            tracker: Tracker::new(cpus),
            kernel: KernelCounts::default(),
            threads: 0,
            spaces: HashSet::new(),
            outcomes: Vec::new(),
            moved_to: Vec::new(),
            by_others: HashSet::new(),
            open: HashMap::new(),
        }
    }

    fn record(&mut self, record: &Record) {
        let recorded = self.tracker.recorded(record.cpu);
        match &record.event {
            Event::Task { owner: Owner::Recorded, space, .. } | Event::Spawn { space, .. } => {
                self.threads += 1;
                self.spaces.insert(*space);
            }
            Event::Exec { space, .. } => {
                self.spaces.insert(*space);
            }
            Event::Fault { .. } => self.kernel.faults += 1,
            Event::Flush { reason, pages } => self.flush(record.cpu, recorded, *reason, *pages),
            Event::Interrupts { targets } => self.interrupts(recorded, targets),
            Event::Call(call) => {
                if let Some(task) = recorded {
                    self.call(task, call);
                }
            }
            Event::Return { value } => {
                if let Some(task) = recorded {
                    self.has_returned(task, *value);
                }
            }
            Event::Task { owner: Owner::Other, .. }
            | Event::Running { .. }
            | Event::Switch { .. }
            | Event::Wake { .. }
            | Event::Exit
            | Event::Lost { .. } => {}
        }
        self.tracker.apply(record);
    }

    fn flush(&mut self, cpu: u32, by: Option<TaskId>, reason: FlushReason, pages: Option<u64>) {
        let is_ours = match reason {
            FlushReason::LocalSpace | FlushReason::Request => by.is_some(),
            // On this CPU, for whoever has changed the space that it has loaded.
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
            (FlushReason::Request, _) => self.kernel.requests += 1,
            (_, None) => self.kernel.flushes_full += 1,
            (_, Some(_)) => self.kernel.flushes_ranged += 1,
        }
        if reason != FlushReason::Remote
            && let Some(call) = by.and_then(|task| self.open.get_mut(&task))
        {
            call.has_flushed = true;
        }
    }

    fn interrupts(&mut self, by: Option<TaskId>, targets: &[u32]) {
        for cpu in targets {
            if by.is_some() {
                self.by_others.remove(cpu);
            } else {
                self.by_others.insert(*cpu);
            }
        }
        if by.is_some() {
            self.kernel.interrupts_sent += targets.len() as u64;
        } else {
            let hit = targets.iter().filter(|&&cpu| self.tracker.recorded(cpu).is_some());
            self.kernel.interrupts_by_others += hit.count() as u64;
        }
    }

    fn call(&mut self, task: TaskId, call: &Call) {
        self.kernel.calls += 1;
        let move_number = matches!(call, Call::Remap { .. }).then(|| {
            self.moved_to.push(None);
            self.moved_to.len() - 1
        });
        let number = self.outcomes.len();
        self.outcomes.push(Outcome::Failed);
        self.open.insert(task, OpenCall { number, move_number, has_flushed: false });
    }

    fn has_returned(&mut self, task: TaskId, value: i64) {
        let Some(call) = self.open.remove(&task) else { return };
        if is_error(value) {
            return;
        }
        self.outcomes[call.number] =
            if call.has_flushed { Outcome::Flushed } else { Outcome::Silent };
        if let Some(number) = call.move_number {
            self.moved_to[number] = Some(value as u64);
        }
    }
}

/// Whether a system call failed, by what it returned.
const fn is_error(value: i64) -> bool {
    -4096 < value && value < 0
}
