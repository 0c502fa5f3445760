//! All executions of a program.

use std::collections::HashSet;

use super::{Execution, Program};

/// Results of an enumeration.
#[derive(Debug)]
pub(crate) struct Enumeration {
    /// Number of executions that satisfy the axioms.
    pub(crate) executions: usize,
    /// Number of those executions that have the outcome.
    pub(crate) with_outcome: usize,
    /// Number of prefixes of executions, the executions included.
    pub(crate) prefixes: usize,
    /// The first execution with the outcome.
    pub(crate) witness: Option<Execution>,
}

impl Enumeration {
    /// Returns `true` if the memory model allows the outcome.
    pub(crate) fn is_allowed(&self) -> bool {
        self.witness.is_some()
    }
}

/// Enumerates all executions of `program` and counts those with an outcome.
pub(crate) fn enumerate(program: &Program, outcome: impl Fn(&Execution) -> bool) -> Enumeration {
    let mut found = Enumeration { executions: 0, with_outcome: 0, prefixes: 1, witness: None };
    let mut seen = HashSet::new();
    let mut left = vec![Execution::new(program)];
    while let Some(execution) = left.pop() {
        let Some(longer) = execution.extensions() else {
            found.executions += 1;
            if outcome(&execution) {
                found.with_outcome += 1;
                found.witness.get_or_insert(execution);
            }
            continue;
        };
        for next in longer {
            if next.is_consistent() && seen.insert(next.key()) {
                found.prefixes += 1;
                left.push(next);
            }
        }
    }
    found
}
