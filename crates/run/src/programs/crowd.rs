//! Who flushes beside whom: processes that all flush at the same time, and threads that flush
//! beside others that only compute.

use shootdown_program::operation::{Operation, ProgramId, Steps, Workload};

use super::parts::{start_all, steps};

use super::{Kind, Loop, Tasks};

/// Processes of several threads each, of which every thread does the same over and over.
///
/// They have nothing in common but the machine: where their flushes hold each other up, it is
/// there.
#[derive(Clone, Copy, Debug)]
pub struct Crowd {
    /// What each thread does: anything but [`Kind::ContextSwitch`].
    pub kind: Kind,
    /// How many processes.
    pub processes: u32,
    /// Of how many threads each.
    pub threads: u32,
    /// How often each thread does it.
    pub iterations: u64,
    /// As of [`Loop`].
    pub seed: u64,
}

impl Workload for Crowd {
    fn name(&self) -> String {
        format!("{}-{}x{}-threads", self.kind.name(), self.processes, self.threads)
    }

    fn steps(&self, program: ProgramId) -> Steps {
        let Self { kind, processes, threads, iterations, seed } = *self;
        // The first thread of each starts the others, and waits for them.
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

/// One thread gives pages back with `madvise` over and over; others of its process compute, and
/// lose what time it takes from them.
#[derive(Clone, Copy, Debug)]
pub struct Beside {
    /// How many compute.
    pub others: u32,
    /// How often the one gives a page back.
    pub iterations: u64,
    /// What each of the others computes, for each of these iterations.
    pub compute_ns: u64,
    /// As of [`Loop`].
    pub seed: u64,
}

impl Workload for Beside {
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
