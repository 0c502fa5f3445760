//! Parts that several programs share.

use core::ops::Range;

use shootdown_program::operation::{AreaId, Operation, ProgramId, Start, Steps};
use shootdown_sim::Rng;

/// Concatenates parts to the steps of a program.
macro_rules! steps {
    ($first:expr $(, $next:expr)* $(,)?) => { Box::new($first.into_iter()$(.chain($next))*) };
}

pub(super) use steps;

/// Number of pages that a program touches between two points at which its time slice may end.
pub(super) const CHUNK: u64 = 16;

/// Returns pages from 0 on, in chunks.
pub(super) fn chunks(pages: u64) -> impl Iterator<Item = Range<u64>> {
    (0..pages).step_by(CHUNK as usize).map(move |first| first..pages.min(first + CHUNK))
}

/// Starts one process, with program 0 on CPU 0.
pub(super) fn on_cpu_0() -> Vec<Start> {
    vec![Start { program: ProgramId(0), cpu: Some(0) }]
}

/// Begins the measurement, starts programs, and waits for their ends.
pub(super) fn start_all(
    all: impl Iterator<Item = ProgramId> + Clone + 'static,
    start: impl FnMut(ProgramId) -> Operation + 'static,
) -> Steps {
    steps![[Operation::Begin], all.clone().map(start), all.map(Operation::Join)]
}

/// Performs steps that are not measured, and then steps that are.
pub(super) fn measured(
    before: impl IntoIterator<Item = Operation, IntoIter: 'static>,
    turns: impl IntoIterator<Item = Operation, IntoIter: 'static>,
    iterations: u64,
) -> Steps {
    steps![before, [Operation::Begin], turns, [Operation::End { iterations }]]
}

/// Computes for a random time of up to 20 µs. Which threads collide depends on such delays, and a
/// comparison must not depend on one choice of them.
pub(super) fn head_start(seed: u64, program: ProgramId) -> [Operation; 1] {
    [Operation::Compute(Rng::stream(seed, program.0.into()).below(20_000))]
}

/// Writes a page, discards it, and reads it again.
pub(super) fn discard_page(area: AreaId, page: u64) -> [Operation; 3] {
    let page = || page..page + 1;
    [
        Operation::write(area, page()),
        Operation::discard(area, page()),
        Operation::read(area, page()),
    ]
}
