//! Executes one run: lets the chooser select the next event, and performs it, until the run ends.

#![expect(unsafe_code, reason = "resets coroutines that have not finished")]

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ptr;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::system::{Running, System, with_system};
use super::{Action, CurrentRun, HostileMachine, Program, with_machine};
use crate::choice::Chooser;
use crate::hardware::Violation;
use crate::history::{History, Line, LineKind};
use crate::profile::Profile;
use crate::sharing::Sharing;
use crate::sometimes::Sometimes;

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// All programs finished, and there was no violation.
    Done,
    /// The [chooser](Chooser::choose) gave the run up.
    GivenUp,
    /// A violation.
    Violation(Violation),
}

thread_local! {
    /// Stacks that are reused from one run to the next.
    static STACKS: Cell<Vec<DefaultStack>> = const { Cell::new(Vec::new()) };
}

/// Programs have a few hundred steps. A longer run is in an endless loop.
const STEPS_MAX: u64 = 100_000;

type Routine = Coroutine<(), (), (), DefaultStack>;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The end of the run.
    pub end: End,
    /// Number of events.
    pub steps: u64,
    /// The choices where there was more than one possible event.
    pub choices: Vec<Action>,
    /// The expected events that this run covered.
    pub reached: BTreeSet<Sometimes>,
    /// The history, if it was recorded.
    pub lines: Vec<Line>,
}

/// The settings of a run.
#[derive(Debug)]
pub struct RunSettings<'s> {
    /// The architecture.
    pub profile: Profile,
    /// Selects the next event.
    pub chooser: &'s mut dyn Chooser,
    /// Controls whether the run records its history.
    pub history: History,
    /// The shared words known so far. The run adds to them.
    pub sharing: &'s mut Sharing,
}

/// Executes one run: creates a machine of `cpus` CPUs, calls `set_up` to create the system that
/// runs on it, and performs events until none is possible.
pub fn run<S: System>(
    settings: RunSettings<'_>,
    cpus: usize,
    set_up: impl FnOnce(&HostileMachine) -> S,
) -> Outcome {
    let RunSettings { profile, chooser, history, sharing } = settings;
    let mut stacks = STACKS.take();
    let machine = HostileMachine::new(profile, cpus, history);
    machine.sharing.replace(std::mem::take(sharing));
    let _here = CurrentRun::enter(&machine);
    let system = set_up(&machine);
    let _system = Running::enter(&system);
    machine.memory.borrow_mut().complete_stores();
    machine.words_at_begin.set(machine.memory.borrow().word_count());
    machine.has_begun.set(true);
    let mut routines: Vec<Routine> = (0..cpus).map(|cpu| routine(cpu, stacks.pop())).collect();
    // Each CPU runs to its first step.
    for (cpu, routine) in routines.iter_mut().enumerate() {
        machine.resume(cpu, routine);
    }
    let end = machine.schedule(&mut routines, chooser);
    for mut routine in routines {
        if !routine.done() {
            // Do not run the destructors of its locals: they would wait for CPUs that no longer
            // run. Its memory is leaked; programs own no other resource.
            // SAFETY: the run is over, so nothing outside points into the stack.
            unsafe { routine.force_reset() };
        }
        stacks.push(routine.into_stack());
    }
    STACKS.set(stacks);
    *sharing = machine.sharing.take();
    Outcome {
        end,
        steps: machine.steps.get(),
        choices: machine.choices.take(),
        reached: machine.reached.take(),
        lines: machine.lines.take().unwrap_or_default(),
    }
}

fn routine(cpu: usize, stack: Option<DefaultStack>) -> Routine {
    Coroutine::with_stack(stack.unwrap_or_default(), move |yielder: &Yielder<(), ()>, ()| {
        with_machine(|machine| {
            machine.yielder.set(ptr::from_ref(yielder));
            machine.step();
            with_system(|system| system.run(cpu));
            machine.cpus[cpu].program.set(Program::Idle);
            loop {
                machine.step();
            }
        });
    })
}

impl HostileMachine {
    fn schedule(&self, routines: &mut [Routine], chooser: &mut dyn Chooser) -> End {
        let mut actions = Vec::new();
        loop {
            if let Some(violation) = self.violation.borrow_mut().take() {
                return End::Violation(violation);
            }
            if self.steps.get() > STEPS_MAX {
                return End::Violation(Violation::Stuck);
            }
            self.find_actions(&mut actions);
            if actions.is_empty() {
                return if self.is_finished() {
                    End::Done
                } else {
                    End::Violation(Violation::Stuck)
                };
            }
            let index = match actions.len() {
                1 => 0,
                _ => match chooser.choose(&|| self.state(), &actions) {
                    Some(index) => {
                        self.choices.borrow_mut().push(actions[index]);
                        index
                    }
                    None => return End::GivenUp,
                },
            };
            self.act(actions[index], routines);
        }
    }

    fn act(&self, action: Action, routines: &mut [Routine]) {
        self.steps.set(self.steps.get() + 1);
        match action {
            Action::Step(cpu) => self.resume(cpu, &mut routines[cpu]),
            Action::Interrupt(cpu) => {
                let text = || "takes the interrupt".to_owned();
                self.add_line(cpu, LineKind::TakesInterrupt, text);
                self.cpus[cpu].is_interrupt_pending.set(false);
                self.cpus[cpu].takes_interrupt.set(true);
                self.resume(cpu, &mut routines[cpu]);
            }
            Action::Store(cpu, index) => self.store_becomes_visible(cpu, index),
        }
        self.record_stale_entries();
    }

    fn resume(&self, cpu: usize, routine: &mut Routine) {
        self.running.set(cpu);
        self.in_context.set(true);
        let result = routine.resume(());
        self.in_context.set(false);
        debug_assert!(matches!(result, CoroutineResult::Yield(())), "CPUs idle for ever");
    }
}
