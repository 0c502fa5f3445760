//! The state that all threads of a run share: their instances, barriers and intervals.

use core::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use shootdown_program::operation::{AreaId, ProgramId, Steps, Workload};
use shootdown_sim::{Counts, FlushWaits, HotSpot, Rng, Sim, Time, TimeByCause};

use super::error::{Position, TextError};
use super::syntax::{Code, End, PipeKind};
use super::thread::Running;

/// A run of a text. It is the workload that the executor runs.
#[derive(Clone)]
pub(super) struct World(Rc<Shared>);

pub(super) struct Shared {
    pub(super) code: Arc<Code>,
    name: String,
    /// The buffers of pipes, by the numbers of their names.
    pub(super) pipes: Vec<(u64, PipeKind)>,
    pub(super) sim: OnceCell<Rc<Sim>>,
    pub(super) state: RefCell<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// The threads by the number of their program.
    instances: Vec<InstanceState>,
    /// The program of the last thread that was started, by its name and its index.
    latest: HashMap<(usize, u64), ProgramId>,
    pub(super) barriers: HashMap<(usize, u64), Barrier>,
    pub(super) pipes: HashMap<(usize, u64), Pipe>,
    intervals: Vec<Interval>,
    /// Sum of all `count`s so far.
    operations: u64,
    areas: u32,
    files: HashMap<(usize, u64), u32>,
    locks: HashMap<(usize, u64), u32>,
    /// The first error, which ends all threads.
    pub(super) failure: Option<TextError>,
}

/// A thread, as other threads refer to it.
struct InstanceState {
    /// The thread until it begins.
    waiting: Option<Instance>,
    thread: usize,
    index: u64,
    /// The step that it performs; `None` after the last one.
    at: Option<Position>,
}

/// A thread before its first step.
pub(super) struct Instance {
    pub(super) thread: usize,
    pub(super) program: ProgramId,
    pub(super) variables: Vec<Option<u64>>,
    pub(super) areas: Areas,
    /// The seed of its random numbers. It follows from the seed of the thread that started it and
    /// not from the order in which threads run, so that it is the same under each design.
    pub(super) seed: u64,
}

/// The areas that a thread can name, by name and index.
pub(super) type Areas = BTreeMap<(usize, u64), Named>;

/// An area that a thread can name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named {
    pub(super) area: AreaId,
    /// The thread that has mapped it.
    pub(super) owner: ProgramId,
    pub(super) pages: u64,
    pub(super) backing: Backed,
}

/// The contents of an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backed {
    Anonymous,
    File,
}

#[derive(Default)]
pub(super) struct Barrier {
    /// The number of threads that the barrier is for.
    pub(super) size: u64,
    /// Number of times that all threads have arrived.
    pub(super) round: u64,
    pub(super) waiting: Vec<ProgramId>,
}

/// A pipe or a socket, and the threads that wait for messages or for room.
#[derive(Default)]
pub(super) struct Pipe {
    messages: u64,
    receivers: VecDeque<ProgramId>,
    senders: VecDeque<ProgramId>,
}

impl Pipe {
    /// Sends or receives a message, if there is room or a message. Then returns the thread to wake.
    pub(super) fn pass(
        &mut self,
        end: End,
        capacity: u64,
        kind: PipeKind,
    ) -> Option<Option<ProgramId>> {
        match end {
            End::Send if self.messages >= capacity => None,
            End::Send => {
                self.messages += 1;
                Some(self.receivers.pop_front())
            }
            End::Receive if self.messages == 0 => None,
            End::Receive => {
                self.messages -= 1;
                let has_room = kind == PipeKind::Pipe || self.messages <= capacity / 4;
                Some(if has_room { self.senders.pop_front() } else { None })
            }
        }
    }

    /// The threads that wait at an end, in order of arrival.
    pub(super) fn waiting(&mut self, end: End) -> &mut VecDeque<ProgramId> {
        match end {
            End::Send => &mut self.senders,
            End::Receive => &mut self.receivers,
        }
    }
}

/// A timed interval. It is open while any thread is in it.
#[derive(Clone, Debug, Default)]
struct Interval {
    threads: u64,
    opened: Option<Reading>,
    /// The events while it was open, and the operations that were counted for it.
    sum: Reading,
    was_opened: bool,
    /// The times from the entries of single threads to their exits.
    passes: FlushWaits,
}

/// The clock, counts of all CPUs, and operations.
#[derive(Clone, Debug, Default)]
pub(super) struct Reading {
    pub(super) time: Time,
    pub(super) counts: Counts,
    pub(super) causes: TimeByCause,
    pub(super) hot: Vec<HotSpot>,
    pub(super) operations: u64,
}

impl World {
    /// Prepares a run with the values of variables that all threads have.
    pub(super) fn new(
        name: String,
        code: Arc<Code>,
        variables: Vec<Option<u64>>,
        pipes: Vec<(u64, PipeKind)>,
        seed: u64,
    ) -> Self {
        let intervals = vec![Interval::default(); code.names.intervals.len()];
        let state = RefCell::new(State { intervals, ..State::default() });
        let world = Self(Rc::new(Shared { code, name, pipes, sim: OnceCell::new(), state }));
        let main = world.0.code.threads.iter().position(|thread| thread.name == "main");
        let instance = Instance {
            thread: main.unwrap_or_default(),
            program: ProgramId(0),
            variables,
            areas: Areas::new(),
            seed: Rng::new(seed).next_u64(),
        };
        world.0.state.borrow_mut().add(0, |_| instance);
        world
    }

    /// Connects the run with its machine, whose clock and counters it reads.
    pub(super) fn attach(&self, sim: &Rc<Sim>) {
        let _ = self.0.sim.set(Rc::clone(sim));
    }

    /// Returns the first error of the text.
    pub(super) fn failure(&self) -> Option<TextError> {
        self.0.state.borrow().failure.clone()
    }

    /// Returns the place, the name and the index of a thread, if it has a step left.
    pub(super) fn place(&self, program: ProgramId) -> Option<(Position, String, u64)> {
        let state = self.0.state.borrow();
        let instance = state.instances.get(program.0 as usize)?;
        let name = self.0.code.threads[instance.thread].name.clone();
        Some((instance.at?, name, instance.index))
    }

    /// Returns the first thread that has a step left.
    pub(super) fn first_unfinished(&self) -> Option<ProgramId> {
        let state = self.0.state.borrow();
        let first = state.instances.iter().position(|instance| instance.at.is_some());
        first.map(|program| ProgramId(program as u32))
    }

    pub(super) fn operations(&self) -> u64 {
        self.0.state.borrow().operations
    }

    /// Returns the sum and the passes of each interval that was opened, by the interval's number.
    pub(super) fn intervals(&self) -> Vec<(usize, Reading, FlushWaits)> {
        let state = self.0.state.borrow();
        let opened = state.intervals.iter().enumerate().filter(|(_, it)| it.was_opened);
        opened.map(|(number, it)| (number, it.sum.clone(), it.passes.clone())).collect()
    }
}

impl Workload for World {
    fn name(&self) -> String {
        self.0.name.clone()
    }

    fn steps(&self, program: ProgramId) -> Steps {
        let begun = self.0.state.borrow_mut().instances[program.0 as usize].waiting.take();
        match begun {
            Some(instance) => Box::new(Running::new(Rc::clone(&self.0), instance)),
            None => Box::new(core::iter::empty()),
        }
    }
}

impl Shared {
    /// Reads the clock and the counters, without operations.
    fn reading(&self) -> Reading {
        let Some(sim) = self.sim.get() else { return Reading::default() };
        let time = sim.now();
        let causes = sim.time_by_cause(time).iter().sum();
        Reading { time, counts: sim.counts(), causes, hot: sim.hot_spots(), operations: 0 }
    }

    /// The calling thread enters an interval. Returns the time.
    pub(super) fn enter(&self, interval: usize) -> Time {
        let interval = &mut self.state.borrow_mut().intervals[interval];
        interval.was_opened = true;
        if interval.threads == 0 {
            interval.opened = Some(self.reading());
        }
        interval.threads += 1;
        self.sim.get().map_or(Time::ZERO, |sim| sim.now())
    }

    /// The calling thread leaves an interval, which it entered at a time.
    pub(super) fn leave(&self, interval: usize, entered: Time) {
        let interval = &mut self.state.borrow_mut().intervals[interval];
        let now = self.sim.get().map_or(Time::ZERO, |sim| sim.now());
        interval.passes.record(now.saturating_sub(entered));
        interval.threads -= 1;
        if interval.threads == 0
            && let Some(opened) = interval.opened.take()
        {
            interval.sum.add(&self.reading(), &opened);
        }
    }
}

impl Reading {
    /// Adds the time and the events between two readings.
    fn add(&mut self, now: &Self, earlier: &Self) {
        self.time += now.time - earlier.time;
        self.counts += now.counts.since(&earlier.counts);
        self.causes += now.causes.since(&earlier.causes);
        for (index, spot) in now.hot.iter().enumerate() {
            if index == self.hot.len() {
                self.hot.push(HotSpot { name: spot.name, ..HotSpot::default() });
            }
            let before = earlier.hot.get(index).copied().unwrap_or_default();
            self.hot[index].add(&spot.since(&before));
        }
    }
}

impl State {
    /// Adds a thread, which gets the number of its program.
    pub(super) fn add(
        &mut self,
        index: u64,
        instance: impl FnOnce(ProgramId) -> Instance,
    ) -> ProgramId {
        let program = ProgramId(self.instances.len() as u32);
        let instance = instance(program);
        let thread = instance.thread;
        let at = Some(Position { line: 1, column: 1 });
        self.instances.push(InstanceState { waiting: Some(instance), thread, index, at });
        self.latest.insert((thread, index), program);
        program
    }

    /// Number of threads that were started.
    pub(super) const fn thread_count(&self) -> usize {
        self.instances.len()
    }

    /// Records the step that a thread performs.
    pub(super) fn moved(&mut self, program: ProgramId, at: Option<Position>) {
        self.instances[program.0 as usize].at = at;
    }

    /// Counts operations of a thread for the intervals that it is in. If it is in none, they count
    /// for each interval that is open.
    pub(super) fn count(&mut self, operations: u64, inside: &[usize]) {
        self.operations += operations;
        for (number, interval) in self.intervals.iter_mut().enumerate() {
            let is_outside = inside.is_empty() && interval.threads > 0;
            if is_outside || inside.contains(&number) {
                interval.sum.operations += operations;
            }
        }
    }

    /// Returns the last thread of a name that was started with an index.
    pub(super) fn latest(&self, thread: usize, index: u64) -> Option<ProgramId> {
        self.latest.get(&(thread, index)).copied()
    }

    pub(super) fn new_area(&mut self) -> AreaId {
        self.areas += 1;
        AreaId(self.areas)
    }

    pub(super) fn file(&mut self, name: usize, index: u64) -> u32 {
        number(&mut self.files, (name, index))
    }

    pub(super) fn lock(&mut self, name: usize, index: u64) -> u32 {
        number(&mut self.locks, (name, index))
    }
}

/// Returns the number of a key. New keys get the next number.
fn number(numbers: &mut HashMap<(usize, u64), u32>, key: (usize, u64)) -> u32 {
    let next = numbers.len() as u32;
    *numbers.entry(key).or_insert(next)
}
