//! A run from its beginning to its end: who decides is asked what happens next, and that is done.

#![expect(unsafe_code, reason = "routines that are not over are given up")]

use std::collections::BTreeSet;
use std::fmt;
use std::ptr;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::system::{Running, System, with_system};
use super::{Action, PinnedCpu, Program, World, with_world};
use crate::choice::Chooser;
use crate::hardware::Wrong;
use crate::history::{Line, LineKind, Writing};
use crate::profile::Profile;
use crate::sharing::Sharing;
use crate::sometimes::Sometimes;

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// All CPUs came to the end of what they do, and nothing was wrong.
    Done,
    /// It was [given up](Chooser::choose).
    GivenUp,
    /// Something must not be.
    Wrong(Wrong),
}

/// Stacks, from one run to the next.
#[derive(Default)]
pub struct Stacks(Vec<DefaultStack>);

impl fmt::Debug for Stacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stacks").field(&self.0.len()).finish()
    }
}

/// Programs are of a few hundred steps: who does more goes round in circles.
const STEPS_MAX: u64 = 100_000;

type Routine = Coroutine<(), (), (), DefaultStack>;

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// How many things happened.
    pub steps: u64,
    /// What was chosen, where there was a choice.
    pub choices: Vec<Action>,
    /// What happened that must happen in some run.
    pub reached: BTreeSet<Sometimes>,
    /// What happened, if it was asked for.
    pub lines: Vec<Line>,
}

/// How a run is done.
pub struct Setting<'s> {
    /// On which architecture.
    pub profile: Profile,
    /// Who decides.
    pub chooser: &'s mut dyn Chooser,
    /// Where stacks come from.
    pub stacks: &'s mut Stacks,
    /// Whether it is written down.
    pub writing: Writing,
    /// Which accesses are steps, and what is learned of that.
    pub sharing: &'s mut Sharing,
}

impl fmt::Debug for Setting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setting").field("profile", &self.profile.name).finish_non_exhaustive()
    }
}

/// Does one run: makes a machine of `cpus` CPUs, has `set_up` make what runs on it, and has it
/// decided what happens next until nothing can.
pub fn run<S: System>(
    setting: Setting<'_>,
    cpus: usize,
    set_up: impl FnOnce(&World) -> S,
) -> Outcome {
    let Setting { profile, chooser, stacks, writing, sharing } = setting;
    let world = World::new(profile, cpus, writing);
    world.sharing.replace(std::mem::take(sharing));
    let _here = PinnedCpu::enter(&world);
    let system = set_up(&world);
    let _system = Running::enter(&system);
    world.memory.borrow_mut().settle();
    world.words_at_begin.set(world.memory.borrow().word_count());
    world.has_begun.set(true);
    let mut routines: Vec<Routine> = (0..cpus).map(|cpu| routine(cpu, stacks)).collect();
    // Each comes to its first step.
    for (cpu, routine) in routines.iter_mut().enumerate() {
        world.resume(cpu, routine);
    }
    let end = world.turns(&mut routines, chooser);
    for mut routine in routines {
        if !routine.done() {
            // Its destructors would wait for CPUs that do not run any more. What it owns is lost;
            // programs own nothing that has to be given back.
            // SAFETY: nothing outside points into its stack, for the run is over.
            unsafe { routine.force_reset() };
        }
        stacks.0.push(routine.into_stack());
    }
    *sharing = world.sharing.take();
    let lines = world.lines.take().unwrap_or_default();
    Outcome {
        end,
        steps: world.steps.get(),
        choices: world.choices.take(),
        reached: world.reached.take(),
        lines,
    }
}

fn routine(cpu: usize, stacks: &mut Stacks) -> Routine {
    let stack = stacks.0.pop().unwrap_or_default();
    Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
        with_world(|world| {
            world.yielder.set(ptr::from_ref(yielder));
            world.step();
            with_system(|system| system.run(cpu));
            world.cpus[cpu].program.set(Program::Idle);
            loop {
                world.step();
            }
        });
    })
}

impl World {
    fn turns(&self, routines: &mut [Routine], chooser: &mut dyn Chooser) -> End {
        let mut actions = Vec::new();
        loop {
            if let Some(wrong) = self.wrong.borrow_mut().take() {
                return End::Wrong(wrong);
            }
            if self.steps.get() > STEPS_MAX {
                return End::Wrong(Wrong::Stuck);
            }
            self.find_actions(&mut actions);
            if actions.is_empty() {
                return if self.is_over() { End::Done } else { End::Wrong(Wrong::Stuck) };
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
                self.write_line(cpu, LineKind::TakesInterrupt, text);
                self.cpus[cpu].is_rung.set(false);
                self.cpus[cpu].takes_interrupt.set(true);
                self.resume(cpu, &mut routines[cpu]);
            }
            Action::Store(cpu, index) => self.store_becomes_visible(cpu, index),
        }
        self.write_what_is_held();
    }

    fn resume(&self, cpu: usize, routine: &mut Routine) {
        self.running.set(cpu);
        self.in_context.set(true);
        let result = routine.resume(());
        self.in_context.set(false);
        debug_assert!(matches!(result, CoroutineResult::Yield(())), "CPUs idle for ever");
    }
}
