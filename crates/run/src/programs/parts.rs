//! The parts that programs have in common.

use shootdown_program::operation::{Operation, ProgramId, Steps};

/// Steps, one part after the other.
macro_rules! steps {
    ($first:expr $(, $next:expr)* $(,)?) => { Box::new($first.into_iter()$(.chain($next))*) };
}

pub(super) use steps;

/// Begins the measurement, starts programs, and waits for all.
pub(super) fn start_all(
    all: impl Iterator<Item = ProgramId> + Clone + 'static,
    start: impl FnMut(ProgramId) -> Operation + 'static,
) -> Steps {
    steps![[Operation::Begin], all.clone().map(start), all.map(Operation::Join)]
}
