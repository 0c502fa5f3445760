//! One run of a text: a workload on a machine, under a design, with a seed.

use std::rc::Rc;
use std::sync::Arc;

use serde::Serialize;
use shootdown_designs::Design;
use shootdown_program::StepError;
use shootdown_sim::{FlushWaits, HotSpot, Machine, Time, TimeByCause};
use shootdown_vm::{FaultError, RangeError, RemapError};
use thiserror::Error;

use super::error::{Position, TextError};
use super::syntax::PipeKind;
use super::world::{Reading, World};
use super::{Constants, Text};
use crate::classes::Classes;
use crate::executor::run;
use crate::memory_costs::MemoryCosts;
use crate::outcome::{Outcome, RunError};
use crate::settings::Settings;

/// One run of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Cell<'a> {
    /// The workload, with its parameters.
    pub workload: &'a Text,
    /// The machine. Its CPUs are those of the run.
    pub machine: &'a Machine,
    /// The design.
    pub design: Design,
    /// The seed of the workload's random numbers, and, unless it is 1, of the
    /// [jitter](Settings::jitter) of the machine.
    pub seed: u64,
}

/// The measurement of a run, or of one of its intervals.
///
/// All counts are of the whole machine, during the measured time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The name of the workload; for an interval that has a name, `WORKLOAD/INTERVAL`.
    pub workload: String,
    /// The name of the machine.
    pub machine: String,
    /// Number of CPUs.
    pub cpus: usize,
    /// The name of the design.
    pub design: &'static str,
    /// The seed.
    pub seed: u64,
    /// Measured time, in simulated nanoseconds.
    pub time_ns: u64,
    /// The error to expect of the time, in percent, as the machine's file states it.
    pub time_error_percent: Option<u64>,
    /// Time that half of the passes of single threads through the interval took at most, in
    /// nanoseconds, to three digits; 0 without an interval.
    pub pass_p50_ns: u64,
    /// The same of 99 % of the passes.
    pub pass_p99_ns: u64,
    /// The longest pass.
    pub pass_max_ns: u64,
    /// Sum of the workload's `count`s.
    pub operations: u64,
    /// Number of flushes that the memory manager requested.
    pub requests: u64,
    /// Number of flush interrupts that were sent.
    pub interrupts: u64,
    /// The classes of these interrupts.
    #[serde(flatten)]
    pub classes: Classes,
    /// Number of flushes of a whole tag or of the whole TLB, on any CPU.
    pub flushes_full: u64,
    /// Number of flushes of ranges, on any CPU.
    pub flushes_ranged: u64,
    /// The time of all CPUs together, by its cause.
    pub time_by_cause: TimeByCause,
    /// Number of context switches.
    pub switches: u64,
    /// Number of threads that woke where another ran.
    pub preemption_checks: u64,
    /// Number of these threads that preempted the other.
    pub preemptions: u64,
    /// The part of the causes' kernel time in which CPUs waited for cache lines.
    pub line_wait_ns: u64,
    /// The lines and locks that were waited for longest, the longest first; at most eight.
    pub hottest: Vec<HotSpot>,
    /// The pages that were discarded in place, in the whole run.
    #[serde(flatten)]
    pub memory_costs: MemoryCosts,
    /// Number of uses of a translation after the flush that removed it, in the whole run.
    pub violations: u64,
}

/// Number of lines and locks in a row.
const HOTTEST_MAX: usize = 8;

fn hottest(spots: &[HotSpot]) -> Vec<HotSpot> {
    let mut all = spots.to_vec();
    all.retain(|spot| spot.wait() != Time::ZERO);
    all.sort_by_key(|spot| (core::cmp::Reverse(spot.wait()), spot.name));
    all.truncate(HOTTEST_MAX);
    all
}

/// The reason why a cell has no rows.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CellError {
    /// A statement of the text cannot be performed.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The run failed for a reason that has no place in the text.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// The largest memory of a machine, in pages: 64 GiB. The host needs some bytes for each.
const MEMORY_MAX: u64 = 1 << 24;
/// The smallest memory of a node, in pages.
const MEMORY_MIN: u64 = 64;
/// The largest number of messages in the buffer of a pipe.
const MESSAGES_MAX: u64 = 1 << 20;
/// The largest number of nodes.
const NODES_MAX: u64 = 64;

impl Cell<'_> {
    /// Runs the workload. Returns a row for each interval that was timed, in the order in which the
    /// text names them, or one row for the whole run if there is no interval.
    ///
    /// # Errors
    ///
    /// If an operation of the workload fails, or the host lacks room.
    pub fn run(&self) -> Result<Vec<Row>, CellError> {
        self.run_with((self.seed != 1).then_some(self.seed))
    }

    /// Runs the workload as [`run`](Self::run) does, without jitter also if the seed is not 1.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run).
    pub fn run_exactly(&self) -> Result<Vec<Row>, CellError> {
        self.run_with(None)
    }

    fn run_with(&self, jitter: Option<u64>) -> Result<Vec<Row>, CellError> {
        let cpus = self.machine.cpu_count();
        let sockets = self.machine.topology.sockets;
        let mut variables = self.workload.variables(cpus, sockets, self.seed)?;
        let settings = Settings { jitter, ..self.settings(&mut variables)? };
        let pipes = self.pipes(&mut variables)?;
        let name = self.workload.name().to_owned();
        let code = Arc::clone(&self.workload.code);
        let world = World::new(name, code, variables.values, pipes, self.seed);
        let outcome = run(self.machine.clone(), settings, Rc::new(world.clone()), |sim| {
            world.attach(&sim);
            self.design.on(sim)
        });
        if let Some(failure) = world.failure() {
            return Err(CellError::from(failure));
        }
        let outcome = outcome.map_err(|error| located(&world, settings.limits.threads, error))?;
        let whole = Reading {
            time: outcome.time,
            counts: outcome.counts,
            causes: outcome.causes.iter().sum(),
            hot: outcome.hot_spots.clone(),
            operations: world.operations(),
        };
        let row = |interval: &str, reading: &Reading, passes: &FlushWaits| {
            self.row(interval, reading, passes, &outcome)
        };
        let intervals = world.intervals();
        if intervals.is_empty() {
            return Ok(vec![row("", &whole, &FlushWaits::default())]);
        }
        let names = &self.workload.code.names.intervals;
        let rows = intervals.iter().map(|(number, sum, passes)| row(&names[*number], sum, passes));
        Ok(rows.collect())
    }

    fn row(
        &self,
        interval: &str,
        reading: &Reading,
        passes: &FlushWaits,
        outcome: &Outcome,
    ) -> Row {
        let Reading { time, counts, causes, hot, operations } = reading;
        let slash = if interval.is_empty() { "" } else { "/" };
        Row {
            workload: format!("{}{slash}{interval}", self.workload.name()),
            machine: self.machine.name.clone(),
            cpus: self.machine.cpu_count(),
            design: self.design.name(),
            seed: self.seed,
            time_ns: time.ns(),
            time_error_percent: self.machine.time_error_percent,
            pass_p50_ns: passes.quantile(0.5).ns(),
            pass_p99_ns: passes.quantile(0.99).ns(),
            pass_max_ns: passes.max().ns(),
            operations: *operations,
            requests: counts.requests(),
            interrupts: counts.interrupts_sent,
            classes: Classes::from(counts),
            flushes_full: counts.flushes_full,
            flushes_ranged: counts.flushes_ranged,
            time_by_cause: *causes,
            switches: counts.switches,
            preemption_checks: counts.preemption_checks,
            preemptions: counts.preemptions,
            line_wait_ns: counts.line_wait.ns(),
            hottest: hottest(hot),
            memory_costs: MemoryCosts::from(outcome),
            violations: outcome.violations,
        }
    }

    /// Returns the buffers of pipes, by the numbers of their names.
    fn pipes(&self, variables: &mut Constants<'_>) -> Result<Vec<(u64, PipeKind)>, TextError> {
        let code = &self.workload.code;
        let mut pipes = vec![(1, PipeKind::Pipe); code.names.pipes.len()];
        for (name, spec) in &code.pipes {
            let messages = variables.value(&spec.messages)?;
            check(messages, 1..=MESSAGES_MAX, "messages in a buffer", "pipe")?;
            pipes[*name] = (messages, spec.kind);
        }
        Ok(pipes)
    }

    fn settings(&self, variables: &mut Constants<'_>) -> Result<Settings, TextError> {
        let code = &self.workload.code;
        let mut settings = Settings { on_fault: code.on_fault, ..Settings::DEFAULT };
        settings.limits.threads += self.machine.cpu_count();
        settings.memory.nodes = self.machine.topology.sockets;
        if let Some((_, nodes)) = &code.nodes {
            let value = variables.value(nodes)?;
            check(value, 1..=NODES_MAX, "nodes", "nodes")?;
            settings.memory.nodes = value as usize;
        }
        if let Some(memory) = &code.memory {
            let value = variables.value(&memory.pages)?;
            let smallest = MEMORY_MIN * settings.memory.nodes as u64;
            check(value, smallest..=MEMORY_MAX, "pages of memory", "memory")?;
            settings.memory.frames = value as usize;
            settings.memory.supply = memory.supply;
        }
        Ok(settings)
    }
}

fn check(
    value: u64,
    allowed: core::ops::RangeInclusive<u64>,
    what: &str,
    declaration: &str,
) -> Result<(), TextError> {
    if allowed.contains(&value) {
        return Ok(());
    }
    let remedy = format!("declare {} to {} with `{declaration}`", allowed.start(), allowed.end());
    let start = Position { line: 1, column: 1 };
    Err(TextError::new(start, format!("there are {value} {what}"), remedy))
}

/// Adds the place in the text to an error of the run, in which at most `threads` threads can exist.
fn located(world: &World, threads: usize, error: RunError) -> CellError {
    let (program, cause, remedy) = match &error {
        RunError::Step { program, error: StepError::NoThread } => (
            Some(*program),
            format!("{threads} threads exist, and a run has room for no more"),
            "start fewer at a time; a thread that starts itself needs an `if` that ends this",
        ),
        RunError::Step { program, error } => (Some(*program), error.to_string(), remedy(error)),
        RunError::Deadlock(count) => (
            world.first_unfinished(),
            format!("all {count} threads that are left wait, and none can wake another"),
            "wake them, start as many threads as the barrier is for, or unlock the lock",
        ),
        RunError::TimeUp => (
            world.first_unfinished(),
            "the run takes more than an hour of simulated time".to_owned(),
            "use fewer turns of a loop, or shorter times",
        ),
        RunError::Host(_) => return error.into(),
    };
    let Some((at, name, index)) = program.and_then(|program| world.place(program)) else {
        return error.into();
    };
    TextError::new(at, format!("thread `{name}({index})`: {cause}"), remedy).into()
}

fn remedy(error: &StepError) -> &'static str {
    match error {
        StepError::OutOfMemory
        | StepError::Map(_)
        | StepError::Remap(RemapError::NoRoom | RemapError::OutOfMemory)
        | StepError::Range(RangeError::OutOfMemory)
        | StepError::Fault(FaultError::OutOfMemory) => {
            "declare `memory SIZE`, which is 16GiB if missing; `memory SIZE reclaim` reclaims \
             pages of files; or write fewer pages"
        }
        StepError::NotHeld(_) => "lock it in the same thread first",
        StepError::NotRefused => "protect the page before `segfault`",
        _ => "map the pages first, with the permission for the access; or add `survive_faults`",
    }
}
