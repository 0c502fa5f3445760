//! The two benchmarks of the study of x86's lazy TLB mode.

use shootdown_program::operation::{AreaId, Operation, ProgramId, Start, Steps, Workload};

use super::parts::{head_start, measured, on_cpu_0, start_all, steps};

/// "MADV_DONTNEED; touch the page; switch CPUs using sched_setaffinity": one thread, one page. This
/// is nearly a worst case: the CPU that the thread leaves is idle, with the address space loaded
/// lazily.
#[derive(Clone, Copy, Debug)]
pub struct MadviseMigrate {
    /// Number of CPUs. The thread visits them in order.
    pub cpus: usize,
    /// Number of times that the thread performs the three operations.
    pub iterations: u64,
}

impl Workload for MadviseMigrate {
    fn name(&self) -> String {
        "madvise-migrate".to_owned()
    }

    fn processes(&self) -> Vec<Start> {
        on_cpu_0()
    }

    fn steps(&self, _program: ProgramId) -> Steps {
        const AREA: AreaId = AreaId(0);
        let Self { cpus, iterations } = *self;
        let touch = || Operation::write(AREA, 0..1);
        let before = [Operation::map_own(AREA, 1), touch()];
        let turn = move |index: u64| {
            let next = (index as usize + 1) % cpus;
            [Operation::discard(AREA, 0..1), touch(), Operation::Migrate(next)]
        };
        // The thread visits every CPU once before the measurement.
        let warm = cpus as u64;
        let before = before.into_iter().chain((0..warm).flat_map(turn));
        measured(before, (warm..warm + iterations).flat_map(turn), iterations)
    }
}

/// The pages of each mapping that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touched {
    /// Only the first page.
    First,
    /// Every page.
    All,
}

/// Vitaly Kuznetsov's `pthread_mmap`: threads of one process that map memory, write to it, and
/// unmap it, "with 8 threads (on four cores), nrounds = 100, 256M data".
///
/// Its source is in no public archive that could be searched. Here each round maps 256 MB, writes
/// the first word, and unmaps the memory, [129 times](Self::published). This number was fitted to
/// the published time *before* the change. It scales the times before and after the change equally,
/// and does not affect their ratio. In another interpretation, a round writes every page of its
/// part of one mapping of 256 MB: use [`Touched::All`]. That interpretation has only 800 flushes,
/// which cannot cost the 0.8 s that the change saved.
#[derive(Clone, Copy, Debug)]
pub struct PthreadMmap {
    /// Number of threads.
    pub threads: u32,
    /// Number of rounds of each thread.
    pub rounds: u64,
    /// Mappings per round, one after the other.
    pub mappings: u32,
    /// Pages per mapping.
    pub pages: u64,
    /// The pages that are written.
    pub touched: Touched,
    /// Seed of the delay of up to 20 µs after which each thread begins.
    pub seed: u64,
}

impl PthreadMmap {
    /// The published parameters, with the number of mappings per round that was fitted to the
    /// published time before the change.
    #[must_use]
    pub const fn published() -> Self {
        let (touched, seed) = (Touched::First, 1);
        Self { threads: 8, rounds: 100, mappings: 129, pages: 1 << 16, touched, seed }
    }
}

impl Workload for PthreadMmap {
    fn name(&self) -> String {
        "pthread-mmap".to_owned()
    }

    fn steps(&self, program: ProgramId) -> Steps {
        let Self { threads, rounds, mappings, pages, touched, seed } = *self;
        if program == ProgramId(0) {
            let threads = start_all((1..=threads).map(ProgramId), Operation::Spawn);
            return steps![threads, [Operation::End { iterations: 1 }]];
        }
        // Each thread has an area of its own.
        let area = AreaId(program.0);
        let written = if touched == Touched::All { 0..pages } else { 0..1 };
        let turn = move |_| {
            [
                Operation::map_own(area, pages),
                Operation::write(area, written.clone()),
                Operation::unmap(area, 0..pages),
            ]
        };
        let turns = (0..rounds * u64::from(mappings)).flat_map(turn);
        steps![head_start(seed, program), turns]
    }
}
