//! The two benchmarks of the study of x86's lazy TLB mode.

use shootdown_sim::Rng;

use shootdown_program::operation::{AreaId, Operation, ProgramId, Start, Steps, Workload};

use super::parts::{start_all, steps};

/// "MADV_DONTNEED; touch the page; switch CPUs using sched_setaffinity": one thread, one page. A
/// nearly worst case: the CPU that it came from is idle, with the space loaded lazily.
#[derive(Clone, Copy, Debug)]
pub struct MadviseMigrate {
    /// CPUs, which the thread visits in order.
    pub cpus: usize,
    /// How often it does the three things.
    pub iterations: u64,
}

impl Workload for MadviseMigrate {
    fn name(&self) -> String {
        "madvise-migrate".to_owned()
    }

    fn processes(&self) -> Vec<Start> {
        vec![Start { program: ProgramId(0), cpu: Some(0) }]
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
        // Once around first, so that every CPU has been there when the clock starts.
        let warm = cpus as u64;
        let warm_up = (0..warm).flat_map(turn);
        let measured = (warm..warm + iterations).flat_map(turn);
        steps![before, warm_up, [Operation::Begin], measured, [Operation::End { iterations }]]
    }
}

/// Which pages of each mapping are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touched {
    /// The first.
    First,
    /// Every one.
    All,
}

/// Vitaly Kuznetsov's `pthread_mmap`: threads of one process that map memory, write to it, and
/// unmap it, "with 8 threads (on four cores), nrounds = 100, 256M data".
///
/// Its source is in no public archive that could be searched. Here each round maps 256 MB, writes
/// the first word, and unmaps it again, some [98 times](Self::published): a number that was fitted
/// to the published time *before* the change. It scales both times alike, so that their ratio is
/// none of its doing. The other reading, in which a round writes every page of its part of one
/// mapping of 256 MB, can be had with [`Touched::All`]; it makes but 800 flushes, which cannot cost
/// the 0.8 s that the change saved.
#[derive(Clone, Copy, Debug)]
pub struct PthreadMmap {
    /// Threads of one process.
    pub threads: u32,
    /// How often each does it all.
    pub rounds: u64,
    /// Mappings per round, one after the other.
    pub mappings: u32,
    /// Pages per mapping.
    pub pages: u64,
    /// Which of them are written.
    pub touched: Touched,
    /// Each thread computes for a while first, up to 20 µs, depending on this.
    pub seed: u64,
}

impl PthreadMmap {
    /// With the published parameters, and with as many mappings per round as take the published
    /// time before the change.
    #[must_use]
    pub const fn published() -> Self {
        let (touched, seed) = (Touched::First, 1);
        Self { threads: 8, rounds: 100, mappings: 98, pages: 1 << 16, touched, seed }
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
        // Each thread's area has a name of its own.
        let area = AreaId(program.0);
        let written = if touched == Touched::All { 0..pages } else { 0..1 };
        let turn = move |_| {
            [
                Operation::map_own(area, pages),
                Operation::write(area, written.clone()),
                Operation::unmap(area, 0..pages),
            ]
        };
        let head_start = Rng::stream(seed, u64::from(program.0)).below(20_000);
        steps![[Operation::Compute(head_start)], (0..rounds * u64::from(mappings)).flat_map(turn)]
    }
}
