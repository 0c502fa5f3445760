//! Processes that all flush at the same time, and threads that compute while another thread of
//! their process flushes.

use shootdown_program::operation::{Operation, ProgramId, Steps, Workload};

use super::parts::{start_all, steps};

use super::{Kind, Loop, Tasks};

/// Processes of several threads each. Every thread repeats the same operations.
///
/// The processes share only the machine, so that their flushes can delay each other only there.
#[derive(Clone, Copy, Debug)]
pub struct Crowd {
    /// The operations of each thread: any kind except [`Kind::ContextSwitch`].
    pub kind: Kind,
    /// Number of processes.
    pub processes: u32,
    /// Number of threads of each process.
    pub threads: u32,
    /// Number of times that each thread repeats the operations.
    pub iterations: u64,
    /// Seed of the threads' delays, as in [`Loop`].
    pub seed: u64,
}

impl Workload for Crowd {
    fn name(&self) -> String {
        format!("{}-{}x{}-threads", self.kind.name(), self.processes, self.threads)
    }

    fn steps(&self, program: ProgramId) -> Steps {
        let Self { kind, processes, threads, iterations, seed } = *self;
        // The first thread of each process starts the others, and waits for them.
        let size = 1 + threads;
        if program == ProgramId(0) {
            let all = (0..processes).map(move |process| ProgramId(1 + process * size));
            return start_all(all, Operation::Fork);
        }
        if (program.0 - 1).is_multiple_of(size) {
            let others = (1..size).map(move |thread| ProgramId(program.0 + thread));
            return steps![others.clone().map(Operation::Spawn), others.map(Operation::Join)];
        }
        Loop { kind, tasks: Tasks::Threads, count: threads, iterations, seed }.steps(program)
    }
}

/// One thread discards pages with `madvise`, and other threads of its process compute. They lose
/// the time that its flushes take from them.
#[derive(Clone, Copy, Debug)]
pub struct MadviseAndCompute {
    /// Number of threads that compute.
    pub others: u32,
    /// Number of times that the first thread discards a page.
    pub iterations: u64,
    /// Time that each of the others computes, for each of these iterations.
    pub compute_ns: u64,
    /// Seed of the threads' delays, as in [`Loop`].
    pub seed: u64,
}

impl Workload for MadviseAndCompute {
    fn name(&self) -> String {
        format!("madvise-beside-{}", self.others)
    }

    fn steps(&self, program: ProgramId) -> Steps {
        let Self { others, iterations, compute_ns, seed } = *self;
        if program.0 > 1 {
            let compute = (0..iterations).map(move |_| Operation::Compute(compute_ns));
            return steps![compute, [Operation::End { iterations }]];
        }
        let (kind, tasks) = (Kind::Madvise, Tasks::Threads);
        Loop { kind, tasks, count: 1 + others, iterations, seed }.steps(program)
    }
}
