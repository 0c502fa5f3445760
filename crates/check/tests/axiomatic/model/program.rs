//! Programs as data.

use std::sync::atomic::Ordering;

use shootdown::Rule;
use shootdown::rules::Kind;

/// The name of a location, a thread or a loaded value.
pub(crate) type Name = &'static str;

/// Ordering of an access or a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Not atomic: an access that may [race](super::Execution::has_race).
    Plain,
    /// Atomic, with this ordering.
    Atomic(Ordering),
    /// The ordering of one of the engine's rules.
    Rule(Rule),
}

impl From<Ordering> for Access {
    fn from(ordering: Ordering) -> Self {
        Self::Atomic(ordering)
    }
}

impl From<Rule> for Access {
    fn from(rule: Rule) -> Self {
        Self::Rule(rule)
    }
}

impl Access {
    /// The ordering; `None` if the access is not atomic.
    pub(super) fn ordering(self) -> Option<Ordering> {
        match self {
            Self::Plain => None,
            Self::Atomic(ordering) => Some(ordering),
            Self::Rule(rule) => match rule.kind() {
                Kind::Ordering(ordering) => Some(ordering),
                Kind::Fence => Some(Ordering::SeqCst),
                Kind::Step => panic!("{rule:?} does not order an access"),
            },
        }
    }
}

/// Effect of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Load,
    Store(u64),
    Add(u64),
    Swap(u64),
    /// Stores the second value where it finds the first. Loads relaxed where it does not.
    CompareExchange(u64, u64),
    Fence,
}

impl Action {
    pub(super) fn reads(self) -> bool {
        !matches!(self, Self::Store(_) | Self::Fence)
    }

    /// The value that is written over the value that was `read`, if one is.
    pub(super) fn written(self, read: u64) -> Option<u64> {
        match self {
            Self::Load | Self::Fence => None,
            Self::Store(value) | Self::Swap(value) => Some(value),
            Self::Add(amount) => Some(read + amount),
            Self::CompareExchange(expected, new) => (read == expected).then_some(new),
        }
    }
}

/// A step that is ordered by a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    /// The rule.
    pub(crate) rule: Rule,
    /// The name of the thread.
    pub(crate) thread: Name,
    /// The line of the engine that the step stands for.
    pub(crate) line: Name,
}

/// One step of a thread.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(super) action: Action,
    /// The location; empty for a fence.
    pub(super) at: Name,
    pub(super) access: Access,
    /// The thread continues only if it has loaded one of these values.
    pub(super) continues_on: Option<Vec<u64>>,
    /// The name of the loaded value.
    pub(super) name: Name,
    /// The line of the engine that the step stands for.
    pub(super) line: Name,
}

impl Step {
    fn new(action: Action, at: Name, access: Access) -> Self {
        Self { action, at, access, continues_on: None, name: "", line: "" }
    }

    fn site(&self, thread: Name) -> Option<Site> {
        match self.access {
            Access::Rule(rule) => Some(Site { rule, thread, line: self.line }),
            Access::Plain | Access::Atomic(_) => None,
        }
    }

    /// Gives the loaded value a name.
    pub(crate) fn named(self, name: Name) -> Self {
        Self { name, ..self }
    }

    /// The thread stops after this step unless it has loaded one of `values`.
    pub(crate) fn only_if(self, values: &[u64]) -> Self {
        Self { continues_on: Some(values.to_vec()), ..self }
    }

    /// Names the line of the engine that the step stands for.
    pub(crate) fn line(self, line: Name) -> Self {
        Self { line, ..self }
    }
}

/// A load.
pub(crate) fn load(at: Name, access: impl Into<Access>) -> Step {
    Step::new(Action::Load, at, access.into())
}

/// A store of a value.
pub(crate) fn store(at: Name, value: u64, access: impl Into<Access>) -> Step {
    Step::new(Action::Store(value), at, access.into())
}

/// An atomic addition.
pub(crate) fn add(at: Name, amount: u64, access: impl Into<Access>) -> Step {
    Step::new(Action::Add(amount), at, access.into())
}

/// An atomic exchange.
pub(crate) fn swap(at: Name, value: u64, access: impl Into<Access>) -> Step {
    Step::new(Action::Swap(value), at, access.into())
}

/// A compare-and-exchange. Where it fails, it is a relaxed load, and the thread stops.
pub(crate) fn compare_exchange(
    at: Name,
    expected: u64,
    new: u64,
    access: impl Into<Access>,
) -> Step {
    Step::new(Action::CompareExchange(expected, new), at, access.into()).only_if(&[expected])
}

/// A fence.
pub(crate) fn fence(access: impl Into<Access>) -> Step {
    Step::new(Action::Fence, "", access.into())
}

/// A thread: its name and its steps.
pub(crate) type Thread = (Name, Vec<Step>);

/// Some threads. A location begins with 0 unless another value is given.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(super) initial: Vec<(Name, u64)>,
    pub(super) threads: Vec<Thread>,
}

impl Program {
    /// A program with these initial values.
    pub(crate) fn new(initial: &[(Name, u64)], threads: Vec<Thread>) -> Self {
        let mut initial = initial.to_vec();
        for step in threads.iter().flat_map(|(_, steps)| steps) {
            let is_known = initial.iter().any(|&(at, _)| at == step.at);
            if !is_known && step.action != Action::Fence {
                initial.push((step.at, 0));
            }
        }
        Self { initial, threads }
    }

    /// The steps that are ordered by a rule.
    pub(crate) fn sites(&self) -> impl Iterator<Item = Site> + '_ {
        self.threads
            .iter()
            .flat_map(|(thread, steps)| steps.iter().filter_map(|step| step.site(thread)))
    }

    /// The program with rules broken at some sites: orderings relaxed, and fences removed.
    pub(crate) fn without(&self, is_broken: impl Fn(Site) -> bool) -> Self {
        let weaken = |thread: Name, step: &Step| {
            if !step.site(thread).is_some_and(&is_broken) {
                return Some(step.clone());
            }
            let relaxed = Step { access: Access::Atomic(Ordering::Relaxed), ..step.clone() };
            (step.action != Action::Fence).then_some(relaxed)
        };
        let threads = self.threads.iter().map(|(thread, steps)| {
            (*thread, steps.iter().filter_map(|step| weaken(thread, step)).collect())
        });
        Self { initial: self.initial.clone(), threads: threads.collect() }
    }
}
