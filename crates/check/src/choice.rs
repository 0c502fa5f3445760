//! Choosers select the next event: an exhaustive search, a random number generator, or the replay
//! of a list.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::BuildHasherDefault;

use crate::hash::{Ready, finish, mix};
use crate::machine::Action;

/// Selects the next event of a run.
pub trait Chooser: Debug {
    /// Returns the index of the next action, or `None` to give the run up because every
    /// continuation was visited before. `state` returns a hash of the machine's state.
    fn choose(&mut self, state: &dyn Fn() -> u64, actions: &[Action]) -> Option<usize>;
}

/// Visits all runs one after the other. Each run repeats the previous one up to the last choice
/// that has an untried alternative.
///
/// A run that reaches a visited state stops. A state consists of the memory, the entries that the
/// hardware may hold, and the values that each CPU has observed so far, which is all that its
/// program depends on. Schedules that differ only in the order of independent steps are therefore
/// visited once.
#[derive(Debug, Default)]
pub struct Exhaustive {
    has_begun: bool,
    trail: Vec<Node>,
    depth: usize,
    /// Number of changes that this run may still make from a CPU that could continue to another
    /// CPU; `None` if unbounded.
    changes_left: Option<u32>,
    changes_max: Option<u32>,
    /// For each visited state, the number of changes that were left there.
    seen: HashMap<u64, u32, BuildHasherDefault<Ready>>,
    last_cpu: Option<usize>,
    /// Candidates of the last choice, kept to reuse the allocation.
    possible: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    chosen: usize,
    count: usize,
}

impl Exhaustive {
    /// Creates a chooser that visits all runs.
    pub fn unbounded() -> Self {
        Self::default()
    }

    /// Creates a chooser that visits all runs with at most `changes_max` changes from a CPU that
    /// could continue to another CPU.
    pub fn with_changes(changes_max: u32) -> Self {
        Self { changes_max: Some(changes_max), ..Self::default() }
    }

    /// Starts the next run and returns `true` if there is one. Call this before each run, including
    /// the first.
    pub fn next_run(&mut self) -> bool {
        self.depth = 0;
        self.last_cpu = None;
        self.changes_left = self.changes_max;
        if !std::mem::replace(&mut self.has_begun, true) {
            return true;
        }
        while let Some(node) = self.trail.last_mut() {
            node.chosen += 1;
            if node.chosen < node.count {
                return true;
            }
            self.trail.pop();
        }
        false
    }

    /// Returns the number of visited states.
    pub fn states(&self) -> usize {
        self.seen.len()
    }

    fn note(&mut self, action: Action, can_go_on: bool) {
        if let Action::Step(cpu) = action {
            let is_change = can_go_on && self.last_cpu != Some(cpu);
            if is_change && let Some(left) = &mut self.changes_left {
                *left -= 1;
            }
            self.last_cpu = Some(cpu);
        }
    }
}

impl Chooser for Exhaustive {
    fn choose(&mut self, state: &dyn Fn() -> u64, actions: &[Action]) -> Option<usize> {
        let next_step = self.last_cpu.map(Action::Step).filter(|step| actions.contains(step));
        // Without changes left, the last CPU continues if it can. Hardware events stay possible.
        let is_possible = |action: &Action| match action {
            Action::Step(_) => {
                self.changes_left != Some(0) || next_step.is_none_or(|step| step == *action)
            }
            _ => true,
        };
        let mut possible = std::mem::take(&mut self.possible);
        possible.clear();
        possible.extend((0..actions.len()).filter(|&index| is_possible(&actions[index])));
        // Try the last CPU first: then the first violation that is found has few changes.
        possible.sort_by_key(|&index| Some(actions[index]) != next_step);
        let position = if self.depth < self.trail.len() {
            self.trail[self.depth].chosen
        } else {
            let left = self.changes_left.unwrap_or(0);
            let last = self.last_cpu.map_or(0, |cpu| cpu as u64 + 1);
            let key = if self.changes_max.is_some() { mix(state(), last) } else { state() };
            if self.seen.get(&key).is_some_and(|&seen| seen >= left) {
                return None;
            }
            self.seen.insert(key, left);
            self.trail.push(Node { chosen: 0, count: possible.len() });
            0
        };
        self.depth += 1;
        let chosen = possible[position];
        self.possible = possible;
        self.note(actions[chosen], next_step.is_some());
        Some(chosen)
    }
}

/// Chooses at random. A CPU continues more often than it changes, because some bugs need long
/// uninterrupted stretches.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
    last_cpu: Option<usize>,
}

impl Random {
    /// Creates a chooser. The same seed makes the same choices.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed, last_cpu: None }
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        // SplitMix64.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (finish(self.state) % bound as u64) as usize
    }
}

impl Chooser for Random {
    fn choose(&mut self, _: &dyn Fn() -> u64, actions: &[Action]) -> Option<usize> {
        let last = self.last_cpu.map(Action::Step);
        let next_step = actions.iter().position(|&action| Some(action) == last);
        let index = match next_step {
            Some(index) if self.below(4) != 0 => index,
            _ => self.below(actions.len()),
        };
        if let Action::Step(cpu) = actions[index] {
            self.last_cpu = Some(cpu);
        }
        Some(index)
    }
}

/// Chooses by random priorities. The action of highest priority always comes next, where all steps,
/// interrupts and stores of one CPU have one priority each. A few times per run, at random, the
/// highest priority becomes the lowest. The probability of finding a bug that needs a given number
/// of such changes has a lower bound (Burckhardt and others, ASPLOS 2010).
#[derive(Clone, Debug)]
pub struct Priorities {
    random: Random,
    /// The priority of each actor; the highest comes first.
    by_actor: HashMap<Actor, u64>,
    /// Numbers of the choices after which the highest priority becomes the lowest.
    changes: Vec<u64>,
    choices: u64,
}

/// Kind and CPU of an action.
type Actor = (u8, usize);

/// Assumed length of a run, in choices.
const CHOICES: usize = 2000;

impl Priorities {
    /// Creates a chooser with this number of priority changes. The same seed makes the same
    /// choices.
    pub fn new(seed: u64, changes: usize) -> Self {
        let mut random = Random::new(seed);
        let changes = (0..changes).map(|_| random.below(CHOICES) as u64).collect();
        Self { random, by_actor: HashMap::new(), changes, choices: 0 }
    }

    fn priority(&mut self, actor: Actor) -> u64 {
        let Self { random, by_actor, .. } = self;
        *by_actor.entry(actor).or_insert_with(|| 1 << 32 | random.below(1 << 30) as u64)
    }
}

impl Chooser for Priorities {
    fn choose(&mut self, _: &dyn Fn() -> u64, actions: &[Action]) -> Option<usize> {
        let actors: Vec<_> = actions.iter().map(|action| action.actor()).collect();
        let priorities: Vec<_> = actors.iter().map(|&actor| self.priority(actor)).collect();
        let first = (0..actions.len()).max_by_key(|&index| priorities[index])?;
        self.choices += 1;
        if self.changes.contains(&self.choices) {
            // Lower than all that were lowered before.
            self.by_actor.insert(actors[first], CHOICES as u64 - self.choices.min(CHOICES as u64));
        }
        Some(first)
    }
}

impl Action {
    const fn actor(self) -> Actor {
        match self {
            Self::Step(cpu) => (0, cpu),
            Self::Interrupt(cpu) => (1, cpu),
            Self::Store(cpu, _) => (2, cpu),
        }
    }
}

/// Replays a list of actions. After its end, always chooses the first possible action.
#[derive(Clone, Debug)]
pub struct Replay {
    actions: std::vec::IntoIter<Action>,
}

impl Replay {
    /// Creates a chooser that replays these actions.
    pub fn new(actions: Vec<Action>) -> Self {
        Self { actions: actions.into_iter() }
    }
}

impl Chooser for Replay {
    fn choose(&mut self, _: &dyn Fn() -> u64, actions: &[Action]) -> Option<usize> {
        // Skip an action that is no longer possible, so that a schedule can be shortened.
        let next = self.actions.find_map(|next| actions.iter().position(|&it| it == next));
        Some(next.unwrap_or(0))
    }
}
