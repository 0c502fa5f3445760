//! A thread of a text, as a generator of operations.

mod waiting;

use core::ops::Range;
use std::collections::VecDeque;
use std::rc::Rc;

use shootdown_program::operation::{
    Access, AreaId, FileId, LockId, Mapping, Moves, Operation, ProgramId,
};
use shootdown_sim::{Rng, Time};

use super::error::{Position, TextError};
use super::expression::{Expression, Scope};
use super::syntax::{COUNT, Change, INDEX, Indexed, Kind, Loop, Map, Part, Sharing};
use super::world::{Areas, Backed, Instance, Named, Shared};
use waiting::Waiting;

/// Number of pages that a thread touches between two points at which its time slice may end.
const CHUNK: u64 = 16;
/// Number of steps in a row without an operation after which a thread is stopped. In simulated
/// time, they take no time, and the host would compute for ever.
const STEPS_MAX: u32 = 1 << 22;
/// The largest number of threads that one statement starts.
const STARTED_MAX: u64 = 1 << 16;
/// The largest number of threads that a run starts. The host needs up to a kilobyte for each.
const THREADS_MAX: usize = 1 << 20;

/// A thread that runs.
pub(super) struct Running {
    shared: Rc<Shared>,
    thread: usize,
    program: ProgramId,
    /// The index of the next step.
    next: usize,
    /// The place of the current step.
    at: Position,
    vars: Variables,
    areas: Areas,
    loops: Vec<Frame>,
    /// The intervals that the thread is in.
    intervals: Vec<(usize, Time)>,
    /// Operations of the current step.
    queue: VecDeque<Operation>,
    /// Pages that the current step has yet to touch.
    touching: Option<(AreaId, Range<u64>, Access)>,
    waiting: Option<Waiting>,
    /// Number of wakes that were meant for a `block`, and that arrived during another wait.
    stray_wakes: u64,
    /// The threads that this one has started and not joined, by name.
    started: Vec<(usize, ProgramId)>,
    /// Number of threads that this one has started.
    children: u64,
    seed: u64,
    /// Number of steps since the last operation.
    steps: u32,
}

/// The variables of a thread, and its random numbers.
struct Variables {
    shared: Rc<Shared>,
    values: Vec<Option<u64>>,
    rng: Rng,
}

enum Frame {
    Count { variable: Option<usize>, next: u64, to: u64, step: u64 },
    Until(u64),
}

/// The continuation after a step.
enum Flow {
    /// The next step follows.
    Next,
    Jump(usize),
}

impl Scope for Variables {
    fn variable(&self, variable: usize) -> Option<u64> {
        self.values.get(variable).copied().flatten()
    }

    fn name(&self, variable: usize) -> &str {
        &self.shared.code.names.variables[variable].0
    }

    fn random(&mut self) -> Option<&mut Rng> {
        Some(&mut self.rng)
    }

    fn now_ns(&self) -> Option<u64> {
        self.shared.sim.get().map(|sim| sim.now().ns())
    }
}

impl Iterator for Running {
    type Item = Operation;

    fn next(&mut self) -> Option<Operation> {
        loop {
            if self.shared.state.borrow().failure.is_some() {
                return None;
            }
            if let Some(operation) = self.pending() {
                self.steps = 0;
                return Some(operation);
            }
            let shared = Rc::clone(&self.shared);
            let Some(step) = shared.code.threads[self.thread].steps.get(self.next) else {
                self.shared.state.borrow_mut().moved(self.program, None);
                return None;
            };
            self.at = step.at;
            self.shared.state.borrow_mut().moved(self.program, Some(step.at));
            self.steps += 1;
            let result = match self.steps {
                STEPS_MAX => Err(TextError::new(
                    step.at,
                    "the thread does nothing that takes time, again and again",
                    "add an operation to the loop, for example `compute 100ns`",
                )),
                _ => self.perform(&step.kind),
            };
            match result {
                Ok(Flow::Next) => self.next += 1,
                Ok(Flow::Jump(target)) => self.next = target,
                Err(error) => self.shared.state.borrow_mut().failure = Some(error),
            }
        }
    }
}

impl Running {
    pub(super) fn new(shared: Rc<Shared>, instance: Instance) -> Self {
        let Instance { thread, program, variables, areas, seed } = instance;
        let vars = Variables { shared: Rc::clone(&shared), values: variables, rng: Rng::new(seed) };
        Self {
            shared,
            thread,
            program,
            next: 0,
            at: Position { line: 1, column: 1 },
            vars,
            areas,
            loops: Vec::new(),
            intervals: Vec::new(),
            queue: VecDeque::new(),
            touching: None,
            waiting: None,
            stray_wakes: 0,
            started: Vec::new(),
            children: 0,
            seed,
            steps: 0,
        }
    }

    /// Returns the next operation of the step before, if it has one left.
    fn pending(&mut self) -> Option<Operation> {
        if let Some(operation) = self.queue.pop_front() {
            return Some(operation);
        }
        if let Some((area, pages, access)) = &mut self.touching {
            let end = pages.end.min(pages.start + CHUNK);
            let chunk = pages.start..end;
            let operation = Operation::Touch { area: *area, pages: chunk, access: *access };
            pages.start = end;
            if pages.is_empty() {
                self.touching = None;
            }
            return Some(operation);
        }
        self.continue_waiting()
    }

    fn perform(&mut self, kind: &Kind) -> Result<Flow, TextError> {
        match kind {
            Kind::Map(map) => self.map(map)?,
            Kind::Change(change, part) => self.change(change, part)?,
            Kind::Remap(area, size) => self.remap(area, size.as_ref())?,
            Kind::Truncate(file, pages) => self.truncate(file, pages)?,
            Kind::Touch(access, part) => {
                let (area, pages) = self.part(part)?;
                self.touching = Some((area, pages, *access));
            }
            Kind::Start { start, thread, count } => self.start(*start, *thread, count.as_ref())?,
            Kind::Join(thread) => {
                let is_wanted = |name: usize| thread.is_none_or(|thread| thread == name);
                let (wanted, rest): (Vec<_>, _) =
                    self.started.drain(..).partition(|&(name, _)| is_wanted(name));
                self.started = rest;
                self.queue.extend(wanted.into_iter().map(|(_, id)| Operation::Join(id)));
            }
            Kind::Wake(thread, index) => self.wake(*thread, index.as_ref())?,
            Kind::Plain(operation) => self.queue.push_back(operation.clone()),
            Kind::Pin(cpu) => {
                let cpu = self.value(cpu)?;
                self.queue.push_back(Operation::Migrate(self.existing_cpu(cpu)?));
            }
            Kind::Timed(operation, ns) => {
                let ns = self.value(ns)?;
                self.queue.push_back(operation(ns));
            }
            Kind::OnLock(operation, lock) => {
                let (name, index) = self.key(lock)?;
                let lock = LockId(self.shared.state.borrow_mut().lock(name, index));
                self.queue.push_back(operation(lock));
            }
            Kind::Barrier(barrier, size) => self.arrive(barrier, size)?,
            Kind::Stop(cpu, time) => {
                let (cpu, time) = (self.value(cpu)?, Time::from_ns(self.value(time)?));
                let cpu = self.existing_cpu(cpu)?;
                if let Some(sim) = self.shared.sim.get() {
                    sim.stop_cpu(cpu, sim.now(), sim.now() + time);
                }
            }
            Kind::UsePipe(pipe, end) => self.use_pipe(pipe, *end)?,
            Kind::Count(number) => {
                let number = self.value_or(number.as_ref(), 1)?;
                let inside: Vec<usize> =
                    self.intervals.iter().map(|(interval, _)| *interval).collect();
                self.shared.state.borrow_mut().count(number, &inside);
            }
            Kind::IntervalBegins(interval) => {
                let now = self.shared.enter(*interval);
                self.intervals.push((*interval, now));
            }
            Kind::IntervalEnds(interval) => {
                if let Some((_, entered)) = self.intervals.pop() {
                    self.shared.leave(*interval, entered);
                }
            }
            _ => return self.control(kind),
        }
        Ok(Flow::Next)
    }

    fn control(&mut self, kind: &Kind) -> Result<Flow, TextError> {
        Ok(match kind {
            Kind::Let(variable, value) => {
                let value = self.value(value)?;
                self.vars.values[*variable] = Some(value);
                Flow::Next
            }
            Kind::Loop(over) => self.enter_loop(over)?,
            Kind::LoopFor { duration, exit } => {
                let duration = self.value(duration)?;
                if duration == 0 {
                    return Ok(Flow::Jump(*exit));
                }
                let now = self.vars.now_ns().unwrap_or_default();
                self.loops.push(Frame::Until(now.saturating_add(duration)));
                Flow::Next
            }
            Kind::Next { body } => match self.next_turn() {
                true => Flow::Jump(*body),
                false => {
                    self.loops.pop();
                    Flow::Next
                }
            },
            Kind::Unless(condition, target) => match self.value(condition)? {
                0 => Flow::Jump(*target),
                _ => Flow::Next,
            },
            Kind::Jump(target) => Flow::Jump(*target),
            Kind::Choose(cases) => Flow::Jump(self.choose(cases)?),
            _ => Flow::Next,
        })
    }

    fn value(&mut self, expression: &Expression) -> Result<u64, TextError> {
        expression.value(&mut self.vars)
    }

    fn value_or(&mut self, value: Option<&Expression>, default: u64) -> Result<u64, TextError> {
        value.map_or(Ok(default), |value| self.value(value))
    }

    fn error<T>(
        &self,
        cause: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Result<T, TextError> {
        Err(TextError::new(self.at, cause, remedy))
    }

    fn enter_loop(&mut self, over: &Loop) -> Result<Flow, TextError> {
        let (from, to) = (self.value(&over.from)?, self.value(&over.to)?);
        let step = self.value_or(over.step.as_ref(), 1)?;
        if step == 0 {
            return self.error("the step of the loop is 0", "use a step of at least 1");
        }
        if from >= to {
            return Ok(Flow::Jump(over.exit));
        }
        if let Some(variable) = over.variable {
            self.vars.values[variable] = Some(from);
        }
        self.loops.push(Frame::Count { variable: over.variable, next: from, to, step });
        Ok(Flow::Next)
    }

    /// Begins the next turn of the innermost loop; `false` if there is none.
    fn next_turn(&mut self) -> bool {
        match self.loops.last_mut() {
            Some(Frame::Count { variable, next, to, step }) => {
                *next = next.saturating_add(*step);
                if *next >= *to {
                    return false;
                }
                if let Some(variable) = variable {
                    self.vars.values[*variable] = Some(*next);
                }
                true
            }
            Some(Frame::Until(end)) => self.vars.now_ns().is_some_and(|now| now < *end),
            None => false,
        }
    }

    fn choose(&mut self, cases: &[(Expression, usize)]) -> Result<usize, TextError> {
        let mut weights = Vec::with_capacity(cases.len());
        for (weight, target) in cases {
            weights.push((self.value(weight)?, *target));
        }
        let sum = weights.iter().fold(0_u64, |sum, (weight, _)| sum.saturating_add(*weight));
        if sum == 0 || sum == u64::MAX {
            let cause = "the weights add up to 0, or to more than 2^64";
            return self.error(cause, "give at least one case a weight above 0");
        }
        let mut drawn = self.vars.rng.below(sum);
        for (weight, target) in weights {
            if drawn < weight {
                return Ok(target);
            }
            drawn -= weight;
        }
        Ok(self.next + 1)
    }
}

/// Memory.
impl Running {
    fn key(&mut self, of: &Indexed) -> Result<(usize, u64), TextError> {
        Ok((of.name, self.value_or(of.index.as_ref(), 0)?))
    }

    fn map(&mut self, map: &Map) -> Result<(), TextError> {
        let key = self.key(&map.area)?;
        let pages = self.value(&map.pages)?;
        if pages == 0 {
            return self.error("the area has no pages", "use at least 1 page");
        }
        let mapping = match &map.file {
            None => Mapping::Anonymous,
            Some((file, sharing)) => {
                let (name, index) = self.key(file)?;
                let file = FileId(self.shared.state.borrow_mut().file(name, index));
                match sharing {
                    Sharing::Private => Mapping::PrivateFile(file),
                    Sharing::Shared => Mapping::SharedFile(file),
                }
            }
        };
        // A number of its own for each area of each thread: other threads of the process may have
        // inherited an area of this name, and still use it.
        let area = match self.areas.get(&key) {
            Some(known) if known.owner == self.program => known.area,
            _ => self.shared.state.borrow_mut().new_area(),
        };
        let backing = if map.file.is_some() { Backed::File } else { Backed::Anonymous };
        self.areas.insert(key, Named { area, owner: self.program, pages, backing });
        self.queue.push_back(Operation::map(area, pages, map.permission, mapping));
        Ok(())
    }

    /// Moves an area, or changes its size and moves it if it must move.
    fn remap(&mut self, of: &Indexed, size: Option<&Expression>) -> Result<(), TextError> {
        let key = self.key(of)?;
        let Named { area, pages: from, .. } = *self.area(key, of)?;
        let to = self.value_or(size, from)?;
        if to == 0 {
            return self.error("the area has no pages", "use at least 1 page, or `unmap` it");
        }
        let moves = if size.is_some() { Moves::IfNecessary } else { Moves::Always };
        self.queue.push_back(Operation::Remap { area, from, to, moves });
        if let Some(named) = self.areas.get_mut(&key) {
            named.pages = to;
        }
        Ok(())
    }

    fn truncate(&mut self, file: &Indexed, pages: &Expression) -> Result<(), TextError> {
        let (name, index) = self.key(file)?;
        let file = FileId(self.shared.state.borrow_mut().file(name, index));
        let pages = self.value(pages)?;
        self.queue.push_back(Operation::Truncate { file, pages });
        Ok(())
    }

    /// Returns the area of a name and an index, which are those of `of`.
    fn area(&self, key: (usize, u64), of: &Indexed) -> Result<&Named, TextError> {
        if let Some(named) = self.areas.get(&key) {
            return Ok(named);
        }
        let name = &self.shared.code.names.areas[key.0];
        let index = if of.index.is_some() { format!("({})", key.1) } else { String::new() };
        self.error(
            format!("this thread has no area `{name}{index}`"),
            "map it in this thread, or in the thread that starts this one, before the start",
        )
    }

    /// Returns the pages that a part of an area is.
    fn part(&mut self, part: &Part) -> Result<(AreaId, Range<u64>), TextError> {
        let (named, pages) = self.named(part)?;
        Ok((named.area, pages))
    }

    /// Returns the area of a part, and the pages.
    fn named(&mut self, part: &Part) -> Result<(Named, Range<u64>), TextError> {
        let key = self.key(&part.area)?;
        let named = *self.area(key, &part.area)?;
        let pages = match &part.pages {
            None => 0..named.pages,
            Some((first, None)) => {
                let first = self.value(first)?;
                first..first.saturating_add(1)
            }
            Some((first, Some(end))) => self.value(first)?..self.value(end)?,
        };
        if pages.is_empty() || pages.end > named.pages {
            let name = &self.shared.code.names.areas[key.0];
            return self.error(
                format!(
                    "`{name}` has pages 0 to {}, and not {}..{}",
                    named.pages - 1,
                    pages.start,
                    pages.end
                ),
                "use a range that is not empty, within the size that `map` gave",
            );
        }
        Ok((named, pages))
    }

    fn change(&mut self, change: &Change, part: &Part) -> Result<(), TextError> {
        let (Named { area, backing, .. }, pages) = self.named(part)?;
        let operation = match change {
            Change::Unmap => Operation::Unmap { area, pages },
            Change::Protect(permission) => Operation::protect(area, pages, *permission),
            Change::Discard => Operation::discard(area, pages),
            Change::DiscardEach(step) => {
                let step = self.value(step)?;
                if step == 0 {
                    return self.error("the step is 0", "use a step of at least 1");
                }
                Operation::DiscardEach { area, pages, step }
            }
            Change::Offer | Change::Huge if backing == Backed::File => {
                let name = &self.shared.code.names.areas[part.area.name];
                let (done, remedy) = match change {
                    Change::Offer => ("be offered", "use `discard` or `page_out`"),
                    _ => ("become large at a write", "map it without a file"),
                };
                let cause = format!("`{name}` maps a file, and only anonymous pages can {done}");
                return self.error(cause, remedy);
            }
            Change::Huge => Operation::UseLargePages { area, pages },
            Change::Offer => Operation::Offer { area, pages },
            Change::Collapse => Operation::Collapse { area, pages },
            Change::Segfault => Operation::Segfault { area, page: pages.start },
            Change::PageOut | Change::Sync if backing == Backed::Anonymous => {
                let name = &self.shared.code.names.areas[part.area.name];
                let cause = format!("`{name}` maps no file, and other pages cannot be written out");
                return self.error(cause, format!("map a file: `map {name} SIZE shared FILE`"));
            }
            Change::PageOut => Operation::PageOut { area, pages },
            Change::Sync => Operation::Sync { area, pages },
            Change::Hint => Operation::Hint { area, pages },
            Change::Move(node) => {
                let node = self.value(node)? as usize;
                let nodes = self.shared.sim.get().map_or(0, |sim| sim.node_count());
                if node >= nodes {
                    let cause = format!("there is no node {node}: memory has {nodes} nodes");
                    return self.error(cause, "declare more with `nodes`");
                }
                Operation::MovePages { area, pages, node }
            }
        };
        self.queue.push_back(operation);
        Ok(())
    }
}

/// Threads.
impl Running {
    fn start(
        &mut self,
        start: fn(ProgramId) -> Operation,
        thread: usize,
        count: Option<&Expression>,
    ) -> Result<(), TextError> {
        let count = self.value_or(count, 1)?;
        if count > STARTED_MAX {
            let remedy = format!("start at most {STARTED_MAX} at a time");
            return self.error(format!("{count} threads are too many"), remedy);
        }
        if self.shared.state.borrow().thread_count() + count as usize > THREADS_MAX {
            let cause = format!("the run starts more than {THREADS_MAX} threads");
            return self.error(cause, "start fewer, or end the loop or the recursion with an `if`");
        }
        for index in 0..count {
            self.children += 1;
            let seed = Rng::stream(self.seed, self.children).next_u64();
            let mut variables = self.vars.values.clone();
            (variables[INDEX], variables[COUNT]) = (Some(index), Some(count));
            let areas = self.areas.clone();
            let new = |program| Instance { thread, program, variables, areas, seed };
            let program = self.shared.state.borrow_mut().add(index, new);
            self.started.push((thread, program));
            self.queue.push_back(start(program));
        }
        Ok(())
    }

    fn wake(&mut self, thread: usize, index: Option<&Expression>) -> Result<(), TextError> {
        let index = self.value_or(index, 0)?;
        let found = self.shared.state.borrow().latest(thread, index);
        let Some(program) = found else {
            let name = &self.shared.code.threads[thread].name;
            let cause = format!("no thread `{name}({index})` was started");
            return self.error(cause, "start it before the thread that wakes it");
        };
        self.queue.push_back(Operation::Wake(program));
        Ok(())
    }

    fn existing_cpu(&self, cpu: u64) -> Result<usize, TextError> {
        let cpus = self.shared.sim.get().map_or(0, |sim| sim.machine().cpu_count());
        if cpu >= cpus as u64 {
            let cause = format!("there is no CPU {cpu}: the machine has {cpus}");
            return self.error(cause, "use `cpus`, for example `pin index % cpus`");
        }
        Ok(cpu as usize)
    }
}
