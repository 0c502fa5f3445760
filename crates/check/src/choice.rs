//! Who decides what happens next: a search through everything that could, a generator of random
//! numbers, or a list of what happened before.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::BuildHasherDefault;

use crate::hash::{Ready, finish, mix};
use crate::world::Action;

/// Decides.
pub trait Chooser {
    /// Which of these actions is next, where `state` is a hash of all that is known. `None` to give
    /// this run up: all that could come was seen before.
    fn choose(&mut self, state: &dyn Fn() -> u64, actions: &[Action]) -> Option<usize>;
}

/// Everything, one after the other: each run goes as far as the last with all but its last choice
/// that had another one left.
///
/// A state that was seen before is not gone on from. A state is the memory, what hardware may
/// hold, and what each CPU has seen so far, which is all that its program knows. So schedules that
/// differ in the order of steps that have nothing to do with each other are gone through once.
#[derive(Debug, Default)]
pub struct Everything {
    has_begun: bool,
    trail: Vec<Node>,
    depth: usize,
    /// How often one may yet change from a CPU that could go on to another one, if that is bounded.
    changes_left: Option<u32>,
    changes_max: Option<u32>,
    /// With how many changes left each state was seen.
    seen: HashMap<u64, u32, BuildHasherDefault<Ready>>,
    last_cpu: Option<usize>,
    /// Of the last choice: kept for its room.
    possible: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    taken: usize,
    count: usize,
}

impl Everything {
    /// All there is.
    #[must_use]
    pub fn unbounded() -> Self {
        Self::default()
    }

    /// All in which a CPU that could go on is left for another one so often at most.
    #[must_use]
    pub fn with_changes(changes_max: u32) -> Self {
        Self { changes_max: Some(changes_max), ..Self::default() }
    }

    /// To be called before each run, the first included. Returns whether there is one left.
    pub fn next_run(&mut self) -> bool {
        self.depth = 0;
        self.last_cpu = None;
        self.changes_left = self.changes_max;
        if !std::mem::replace(&mut self.has_begun, true) {
            return true;
        }
        while let Some(node) = self.trail.last_mut() {
            node.taken += 1;
            if node.taken < node.count {
                return true;
            }
            self.trail.pop();
        }
        false
    }

    /// How many states were seen.
    #[must_use]
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

impl Chooser for Everything {
    fn choose(&mut self, state: &dyn Fn() -> u64, actions: &[Action]) -> Option<usize> {
        let goes_on = self.last_cpu.map(Action::Step).filter(|step| actions.contains(step));
        // Without changes left, whoever can go on does; hardware may do what it likes.
        let is_possible = |action: &Action| match action {
            Action::Step(_) => {
                self.changes_left != Some(0) || goes_on.is_none_or(|step| step == *action)
            }
            _ => true,
        };
        let mut possible = std::mem::take(&mut self.possible);
        possible.clear();
        possible.extend((0..actions.len()).filter(|&index| is_possible(&actions[index])));
        // Whoever was last, first: then the first thing that goes wrong does so with few changes.
        possible.sort_by_key(|&index| Some(actions[index]) != goes_on);
        let taken = if self.depth < self.trail.len() {
            self.trail[self.depth].taken
        } else {
            let left = self.changes_left.unwrap_or(0);
            let last = self.last_cpu.map_or(0, |cpu| cpu as u64 + 1);
            let key = if self.changes_max.is_some() { mix(state(), last) } else { state() };
            match self.seen.entry(key) {
                Entry::Occupied(seen) if *seen.get() >= left => return None,
                Entry::Occupied(mut seen) => {
                    seen.insert(left);
                }
                Entry::Vacant(new) => {
                    new.insert(left);
                }
            }
            self.trail.push(Node { taken: 0, count: possible.len() });
            0
        };
        self.depth += 1;
        let chosen = possible[taken];
        self.possible = possible;
        self.note(actions[chosen], goes_on.is_some());
        Some(chosen)
    }
}

/// At random, but that a CPU goes on more often than not: long stretches find what needs them.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
    last_cpu: Option<usize>,
}

impl Random {
    /// The same seed makes the same choices.
    #[must_use]
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
        let goes_on = actions.iter().position(|&action| Some(action) == last);
        let index = match goes_on {
            Some(index) if self.below(4) != 0 => index,
            _ => self.below(actions.len()),
        };
        if let Action::Step(cpu) = actions[index] {
            self.last_cpu = Some(cpu);
        }
        Some(index)
    }
}

/// By priorities: of all that could happen, what comes first is always the same CPU's step, or its
/// interrupt, or its store, but that a few times, at random, whatever was first becomes the last.
/// What goes wrong by so many changes is found with a probability that has a bound (Burckhardt and
/// others, ASPLOS 2010).
#[derive(Clone, Debug)]
pub struct Priorities {
    random: Random,
    /// The higher, the sooner.
    of: HashMap<Doer, u64>,
    /// After how many choices the first becomes the last.
    changes: Vec<u64>,
    choices: u64,
}

/// Whose an action is.
type Doer = (u8, usize);

/// So long a run is taken to be.
const CHOICES: usize = 2000;

impl Priorities {
    /// With so many changes. The same seed makes the same choices.
    #[must_use]
    pub fn new(seed: u64, changes: usize) -> Self {
        let mut random = Random::new(seed);
        let changes = (0..changes).map(|_| random.below(CHOICES) as u64).collect();
        Self { random, of: HashMap::new(), changes, choices: 0 }
    }

    fn of(&mut self, doer: Doer) -> u64 {
        let Self { random, of, .. } = self;
        *of.entry(doer).or_insert_with(|| 1 << 32 | random.below(1 << 30) as u64)
    }
}

impl Chooser for Priorities {
    fn choose(&mut self, _: &dyn Fn() -> u64, actions: &[Action]) -> Option<usize> {
        let doers: Vec<_> = actions.iter().map(|action| action.doer()).collect();
        let priorities: Vec<_> = doers.iter().map(|&doer| self.of(doer)).collect();
        let first = (0..actions.len()).max_by_key(|&index| priorities[index])?;
        self.choices += 1;
        if self.changes.contains(&self.choices) {
            // Behind all that became so before.
            self.of.insert(doers[first], CHOICES as u64 - self.choices.min(CHOICES as u64));
        }
        Some(first)
    }
}

impl Action {
    const fn doer(self) -> Doer {
        match self {
            Self::Step(cpu) => (0, cpu),
            Self::Interrupt(cpu) => (1, cpu),
            Self::Store(cpu, _) => (2, cpu),
        }
    }
}

/// What happened before, and after its end always the first thing that could.
#[derive(Clone, Debug)]
pub struct Again {
    actions: std::vec::IntoIter<Action>,
}

impl Again {
    /// These.
    #[must_use]
    pub fn new(actions: Vec<Action>) -> Self {
        Self { actions: actions.into_iter() }
    }
}

impl Chooser for Again {
    fn choose(&mut self, _: &dyn Fn() -> u64, actions: &[Action]) -> Option<usize> {
        // One that is not possible any more is left out: so schedules can be made shorter.
        let next = self.actions.find_map(|next| actions.iter().position(|&it| it == next));
        Some(next.unwrap_or(0))
    }
}
