//! Threads with an arena each, as in allocators that return memory to the kernel.

use shootdown_program::operation::{AreaId, Operation, ProgramId, Steps, Workload};

use super::parts::{head_start, start_all, steps};

/// Threads of one process that discard pages which only they have used, use some of these pages
/// again, and look at all of them after a pause.
#[derive(Clone, Copy, Debug)]
pub struct ArenaPerThread {
    /// Number of threads.
    pub threads: u32,
    /// Number of discards of each thread.
    pub iterations: u64,
    /// The pause, in nanoseconds.
    pub pause_ns: u64,
    /// Seed of the threads' delays, as in [`Loop`](super::Loop).
    pub seed: u64,
}

/// Number of pages in a discard. In each iteration, half of them are used again.
const PAGES: u64 = 8;
/// Number of iterations from one pause to the next.
const PAUSE_EVERY: u64 = 16;

impl Workload for ArenaPerThread {
    fn name(&self) -> String {
        format!("arena-per-thread-{}", self.threads)
    }

    fn steps(&self, program: ProgramId) -> Steps {
        let Self { threads, iterations, pause_ns, seed } = *self;
        if program == ProgramId(0) {
            return start_all((1..=threads).map(ProgramId), Operation::Spawn);
        }
        let area = AreaId(program.0);
        let turn = move |turn: u64| {
            let pause = turn.is_multiple_of(PAUSE_EVERY).then_some(Operation::Sleep(pause_ns));
            let discard = [
                Operation::write(area, 0..PAGES),
                Operation::discard(area, 0..PAGES),
                Operation::write(area, 0..PAGES / 2),
            ];
            discard.into_iter().chain(pause).chain([Operation::read(area, 0..PAGES)])
        };
        let map = [Operation::map_own(area, PAGES)];
        let end = [Operation::End { iterations }];
        steps![head_start(seed, program), map, (0..iterations).flat_map(turn), end]
    }
}
