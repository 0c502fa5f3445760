//! Many processes on each CPU, which run in turn: there are more address spaces than the CPU has
//! tags.

use shootdown_sim::Rng;

use shootdown_program::operation::{AreaId, Operation, ProgramId, Steps, Workload};

use super::parts::{start_all, steps};

/// Processes of one thread each, the same number bound to each CPU. In each turn a process reads
/// its working set, computes, and yields the CPU to the next process.
///
/// Every process flushes [a few times](Self::FIRST_FLUSHES) before its first turn, as a starting
/// process does, while no other CPU has its address space. No address space is ever used by two
/// CPUs. No flush therefore has to notify another CPU, and no switch has to drop translations as
/// long as there are tags for all processes. Working sets are at different addresses, so that
/// several working sets fit in a TLB that has room for them.
#[derive(Clone, Copy, Debug)]
pub struct TimeShared {
    /// Number of CPUs.
    pub cpus: u32,
    /// Number of processes on each CPU.
    pub processes: u32,
    /// Number of turns that each process takes.
    pub turns: u64,
    /// Number of pages in each process's working set.
    pub pages: u64,
    /// Time that a process computes in each turn.
    pub compute_ns: u64,
    /// A process discards one page with `madvise` in one turn of this number; 0 means never after
    /// the first turn.
    pub turns_per_flush: u64,
    /// Seed of the delay of up to 20 µs after which each process starts, and of the turns in which
    /// it flushes.
    pub seed: u64,
}

impl TimeShared {
    /// Number of flushes before the first turn: more than an engine's flush log has entries.
    pub const FIRST_FLUSHES: u64 = 20;

    /// Returns the CPU of a process.
    fn cpu(&self, program: ProgramId) -> usize {
        ((program.0 - 1) % self.cpus) as usize
    }
}

impl Workload for TimeShared {
    fn name(&self) -> String {
        let Self { processes, turns_per_flush, .. } = self;
        let flushes = if *turns_per_flush == 0 { "quiet" } else { "flushing" };
        format!("time-shared-{processes}-{flushes}")
    }

    fn steps(&self, program: ProgramId) -> Steps {
        if program == ProgramId(0) {
            let all = (1..=self.cpus * self.processes).map(ProgramId);
            return start_all(all, Operation::Fork);
        }
        let Self { turns, pages, compute_ns, turns_per_flush, .. } = *self;
        let (area, padding) = (AreaId(0), AreaId(1));
        let mut random = Rng::stream(self.seed, u64::from(program.0));
        let start = [
            Operation::Migrate(self.cpu(program)),
            Operation::map_own(padding, u64::from(program.0) * pages),
            Operation::map_own(area, pages),
            Operation::write(area, 0..pages),
        ];
        let first_flush = move |flush: u64| {
            let pages = flush % pages..flush % pages + 1;
            [Operation::discard(area, pages.clone()), Operation::write(area, pages)]
        };
        let first_flushes = (0..Self::FIRST_FLUSHES).flat_map(first_flush);
        let head_start = [Operation::Compute(random.below(20_000))];
        let flushing_turn = random.below(turns_per_flush.max(1));
        let turn = move |turn: u64| {
            let page = turn % pages;
            let flushes = turns_per_flush != 0 && turn % turns_per_flush == flushing_turn;
            let discard = flushes.then_some(Operation::discard(area, page..page + 1));
            let read = Operation::read(area, 0..pages);
            [Some(read), Some(Operation::Compute(compute_ns)), discard, Some(Operation::Yield)]
                .into_iter()
                .flatten()
        };
        let end = [Operation::End { iterations: turns }];
        steps![start, first_flushes, head_start, (0..turns).flat_map(turn), end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARED: TimeShared = TimeShared {
        cpus: 3,
        processes: 4,
        turns: 10,
        pages: 8,
        compute_ns: 100,
        turns_per_flush: 5,
        seed: 1,
    };

    #[test]
    fn cpus_have_equal_numbers_of_processes() {
        let mut counts = [0; 3];
        (1..=12).for_each(|program| counts[SHARED.cpu(ProgramId(program))] += 1);
        assert_eq!(counts, [4; 3]);
    }

    #[test]
    fn process_flushes_first_and_then_regularly() {
        let flushes = |shared: TimeShared| {
            let steps = shared.steps(ProgramId(7));
            steps.filter(|step| matches!(step, Operation::Discard { .. })).count()
        };
        let first = TimeShared::FIRST_FLUSHES as usize;
        assert_eq!(flushes(SHARED), first + 2);
        assert_eq!(flushes(TimeShared { turns_per_flush: 0, ..SHARED }), first);
    }
}
