//! One execution, or a prefix of one: its events, where loads read from, and the order of
//! modification.

use std::fmt;
use std::rc::Rc;
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Release, SeqCst};

use super::program::{Action, Step};
use super::{Name, Program};

/// The thread of initial values.
pub(super) const INITIAL: usize = usize::MAX;

/// The effect of a step.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) thread: usize,
    step: usize,
    /// `None` for a fence.
    pub(super) location: Option<usize>,
    /// `None` if the access is not atomic.
    pub(super) ordering: Option<Ordering>,
    /// The event whose value was read.
    pub(super) source: Option<usize>,
    read: u64,
    pub(super) written: Option<u64>,
}

impl Event {
    pub(super) fn is_acquire(&self) -> bool {
        matches!(self.ordering, Some(Acquire | AcqRel | SeqCst))
    }

    pub(super) fn is_release(&self) -> bool {
        matches!(self.ordering, Some(Release | AcqRel | SeqCst))
    }

    pub(super) fn is_fence(&self) -> bool {
        self.location.is_none()
    }

    fn is_update(&self) -> bool {
        self.source.is_some() && self.written.is_some()
    }
}

/// The position of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Thread {
    next: usize,
    has_stopped: bool,
}

/// An execution of a [`Program`], or a prefix of one. Displays as a list of its events.
#[derive(Clone, Debug)]
pub(crate) struct Execution {
    program: Rc<Program>,
    /// The events. The initial values come first, and each load comes after its source.
    pub(super) events: Vec<Event>,
    threads: Vec<Thread>,
    /// The order of modification of each location.
    pub(super) modifications: Vec<Vec<usize>>,
}

impl Execution {
    /// Creates the prefix that has only the initial values.
    pub(super) fn new(program: &Program) -> Self {
        let initial = |(location, &(_, value)): (usize, &(Name, u64))| Event {
            thread: INITIAL,
            step: 0,
            location: Some(location),
            ordering: None,
            source: None,
            read: 0,
            written: Some(value),
        };
        Self {
            events: program.initial.iter().enumerate().map(initial).collect(),
            threads: vec![Thread { next: 0, has_stopped: false }; program.threads.len()],
            modifications: (0..program.initial.len()).map(|event| vec![event]).collect(),
            program: Rc::new(program.clone()),
        }
    }

    /// Returns the value that was loaded under a name; `None` if its thread stopped before.
    pub(crate) fn value(&self, name: Name) -> Option<u64> {
        let is_named = |event: &&Event| self.step(event).is_some_and(|step| step.name == name);
        self.events.iter().find(is_named).map(|event| event.read)
    }

    /// Returns the last value in a location's order of modification.
    pub(crate) fn last(&self, at: Name) -> Option<u64> {
        let location = self.program.initial.iter().position(|&(name, _)| name == at)?;
        self.events[*self.modifications[location].last()?].written
    }

    /// Returns `true` if no thread has stopped before its last step.
    pub(crate) fn is_finished(&self) -> bool {
        self.threads.iter().all(|thread| !thread.has_stopped)
    }

    fn step(&self, event: &Event) -> Option<&Step> {
        (event.thread != INITIAL).then(|| &self.program.threads[event.thread].1[event.step])
    }

    /// Returns all prefixes that are longer by one event; `None` if the execution is complete.
    ///
    /// The effect of a step that does not load does not depend on its position, so only the first
    /// such step is tried. The order of loads decides which stores they can read from, so all
    /// orders are tried.
    pub(super) fn extensions(&self) -> Option<Vec<Self>> {
        let program = Rc::clone(&self.program);
        let next = |thread: usize| {
            let Thread { next, has_stopped } = self.threads[thread];
            program.threads[thread].1.get(next).filter(|_| !has_stopped)
        };
        let mut longer = Vec::new();
        let mut is_complete = true;
        for thread in 0..self.threads.len() {
            let Some(step) = next(thread) else { continue };
            if !step.action.reads() {
                return Some(self.with_write_or_fence(thread, step));
            }
            is_complete = false;
        }
        for thread in 0..self.threads.len() {
            if let Some(step) = next(thread) {
                self.add_reads(thread, step, &mut longer);
            }
        }
        (!is_complete).then_some(longer)
    }

    /// Returns the next event of a thread.
    fn event(&self, thread: usize, step: &Step) -> Event {
        let location = self.program.initial.iter().position(|&(name, _)| name == step.at);
        Event {
            thread,
            step: self.threads[thread].next,
            location,
            ordering: step.access.ordering(),
            source: None,
            read: 0,
            written: step.action.written(0),
        }
    }

    fn with(&self, event: Event, step: &Step) -> Self {
        let mut longer = self.clone();
        let thread = &mut longer.threads[event.thread];
        thread.next += 1;
        let continues =
            step.continues_on.as_ref().is_none_or(|values| values.contains(&event.read));
        thread.has_stopped = !continues;
        longer.events.push(event);
        longer
    }

    /// Adds a store at each place in the order of modification that does not separate a
    /// read-modify-write from its source.
    fn with_write_or_fence(&self, thread: usize, step: &Step) -> Vec<Self> {
        let event = self.event(thread, step);
        let Some(location) = event.location.filter(|_| step.action != Action::Fence) else {
            return vec![self.with(Event { written: None, ..event }, step)];
        };
        let order = &self.modifications[location];
        let is_free =
            |&at: &usize| order.get(at).is_none_or(|&next| !self.events[next].is_update());
        let insert = |at: usize| {
            let mut longer = self.with(event.clone(), step);
            longer.modifications[location].insert(at, self.events.len());
            longer
        };
        (1..=order.len()).filter(is_free).map(insert).collect()
    }

    /// Adds a load that reads from each existing store. A read-modify-write takes the place after
    /// its source.
    fn add_reads(&self, thread: usize, step: &Step, longer: &mut Vec<Self>) {
        let event = self.event(thread, step);
        let location = event.location.expect("what loads has a location");
        let order = &self.modifications[location];
        for (at, &source) in order.iter().enumerate() {
            let read = self.events[source].written.expect("it is in the order of modification");
            let written = step.action.written(read);
            let mut event = Event { source: Some(source), read, written, ..event.clone() };
            if written.is_some() {
                if order.get(at + 1).is_some_and(|&next| self.events[next].is_update()) {
                    continue;
                }
            } else if let Action::CompareExchange(..) = step.action {
                event.ordering = Some(Ordering::Relaxed);
            }
            let mut next = self.with(event, step);
            if written.is_some() {
                next.modifications[location].insert(at + 1, self.events.len());
            }
            longer.push(next);
        }
    }

    /// Returns a key that is equal for equal executions only, in whatever order they grew.
    pub(super) fn key(&self) -> Vec<u8> {
        let name = |event: usize| {
            let Event { thread, step, location, .. } = self.events[event];
            match thread {
                INITIAL => [u8::MAX, location.unwrap_or_default() as u8],
                _ => [thread as u8, step as u8],
            }
        };
        let mut order: Vec<usize> = (self.modifications.len()..self.events.len()).collect();
        order.sort_unstable_by_key(|&event| name(event));
        let sources = order.iter().filter_map(|&event| {
            let source = self.events[event].source?;
            Some([name(event), name(source)].concat())
        });
        let threads = self.threads.iter().map(|thread| vec![thread.next as u8]);
        let modifications = self
            .modifications
            .iter()
            .map(|order| order.iter().flat_map(|&event| name(event)).chain([u8::MAX; 2]).collect());
        threads.chain(sources).chain(modifications).flatten().collect()
    }
}

impl fmt::Display for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |thread: usize| match thread {
            INITIAL => "initial",
            _ => self.program.threads[thread].0,
        };
        for thread in 0..self.threads.len() {
            writeln!(f, "{}", name(thread))?;
            for event in self.events.iter().filter(|event| event.thread == thread) {
                let step = self.step(event).expect("it is a thread's");
                let (at, written) = (step.at, event.written.unwrap_or_default());
                let from = event.source.map_or("", |source| name(self.events[source].thread));
                let what = match (event.source, event.written) {
                    (Some(_), Some(_)) => format!("{at}: {} -> {written} ({from})", event.read),
                    (Some(_), None) => format!("{at} is {} ({from})", event.read),
                    (None, Some(_)) => format!("{at} := {written}"),
                    (None, None) => "fence".to_owned(),
                };
                let access = format!("{:?}", step.access);
                writeln!(f, "    {what:<56} {access:<24} {}", step.line)?;
            }
        }
        write!(f, "order of modification")?;
        for (&(at, _), order) in self.program.initial.iter().zip(&self.modifications) {
            if order.len() > 1 {
                let values = order.iter().filter_map(|&event| self.events[event].written);
                write!(f, "  {at}: {:?}", values.collect::<Vec<_>>())?;
            }
        }
        writeln!(f)
    }
}
