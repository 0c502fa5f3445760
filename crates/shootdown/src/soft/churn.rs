//! A stress workload: CPUs map, unmap, switch, flush and reclaim at random.

use core::ops::AddAssign;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::vec::Vec;

use super::{OnCpu, Platform, Soft, Touch};
use crate::engine::Shootdown;
use crate::extent::{Extent, PageSize};
use crate::ids::{CpuId, Root};
use crate::memory::Word;
use crate::pending::Pending;
use crate::reclaim::{Batch, StaleWrites};
use crate::space::Space;

/// Spaces that all CPUs map, unmap, switch to and flush at random.
///
/// Each page and each set of page tables has a lock, as in a kernel. Pages are freed as soon as
/// their flush is done, and every use checks that its page was not freed.
pub struct Churn<P: Platform, const WORDS: usize = 1> {
    spaces: Vec<LockedSpace<P, WORDS>>,
    pages: usize,
}

struct LockedSpace<P: Platform, const WORDS: usize> {
    space: Space<Soft<P, WORDS>>,
    /// One lock per page.
    pages: Vec<P::Word>,
    /// For each page, the number of the batch that has unmapped it; 0 for none. Guarded by the
    /// page's lock.
    batches: Vec<P::Word>,
    /// The lock of the page tables.
    tables: P::Word,
}

/// Results of a stress workload on one CPU, or their sum over several CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StressReport {
    /// Number of uses of mapped pages.
    pub touches: u64,
    /// Number of uses of pages that had been freed.
    pub stale: u64,
    /// Number of flushes that [`Churn`] waited for.
    pub flushes: u64,
    /// Number of spaces that [`Lifecycles`](super::Lifecycles) created.
    pub created: u64,
    /// Number of spaces that [`Lifecycles`](super::Lifecycles) freed.
    pub freed: u64,
    /// Number of times that [`Lifecycles`](super::Lifecycles) deferred the freeing of tables.
    pub deferred: u64,
    /// Number of times that a later flush cleared such tables without an interrupt.
    pub cleared: u64,
}

impl StressReport {
    pub(super) fn count(&mut self, touch: Touch) {
        match touch {
            Touch::Ok => self.touches += 1,
            Touch::Stale => self.stale += 1,
            Touch::Fault => {}
        }
    }
}

impl AddAssign for StressReport {
    fn add_assign(&mut self, other: Self) {
        self.touches += other.touches;
        self.stale += other.stale;
        self.flushes += other.flushes;
        self.created += other.created;
        self.freed += other.freed;
        self.deferred += other.deferred;
        self.cleared += other.cleared;
    }
}

impl<P: Platform, const WORDS: usize> Churn<P, WORDS> {
    /// One space per page table of the machine, with every page mapped.
    pub fn new(engine: &Shootdown<Soft<P, WORDS>>) -> Self {
        let config = engine.machine().config;
        let lock = || P::Word::new(0);
        let spaces = (0..config.tables).map(|table| {
            let space = engine.space(Root(table as u64));
            (0..config.pages).for_each(|page| engine.machine().map(&space, page));
            let words = || (0..config.pages).map(|_| lock()).collect();
            LockedSpace { space, pages: words(), batches: words(), tables: lock() }
        });
        Self { spaces: spaces.collect(), pages: config.pages }
    }

    /// Runs CPU `cpu` for `steps` random steps on this thread, then takes it offline.
    pub fn run(
        &self,
        engine: &Shootdown<Soft<P, WORDS>>,
        cpu: CpuId,
        seed: u64,
        mut steps: usize,
    ) -> StressReport {
        self.run_while(engine, cpu, seed, |_| {
            steps = steps.wrapping_sub(1);
            steps != usize::MAX
        })
    }

    /// Runs CPU `cpu` on this thread while `go_on` returns `true`, then takes it offline. `go_on`
    /// gets the report so far.
    pub fn run_while(
        &self,
        engine: &Shootdown<Soft<P, WORDS>>,
        cpu: CpuId,
        seed: u64,
        mut go_on: impl FnMut(&StressReport) -> bool,
    ) -> StressReport {
        let mut random = Random::new(seed, cpu);
        let cpu = engine.enter(cpu);
        cpu.pin().online();
        let mut report = StressReport::default();
        let mut current = None;
        let mut batches = 0;
        while go_on(&report) {
            cpu.interrupt_point();
            match random.below(32) {
                0..=2 => current = Some(self.switch(&cpu, random.index(self.spaces.len()))),
                3..=5 => cpu.pin().enter_lazy(),
                6..=8 => {
                    if let Some(space) = current {
                        self.switch(&cpu, space);
                    }
                }
                9 => {
                    cpu.pin().leave_space();
                    current = None;
                }
                10..=11 => {
                    let (space, page) = (random.index(self.spaces.len()), random.index(self.pages));
                    self.replace_page(engine, &cpu, space, page, &mut random);
                    report.flushes += 1;
                }
                12 => {
                    batches += 1;
                    let batch = batches << 32 | u64::from(cpu.cpu.0);
                    self.reclaim_pages(engine, &cpu, batch, &mut random);
                    report.flushes += 1;
                }
                13 => {
                    let space = random.index(self.spaces.len());
                    self.replace_tables(engine, &cpu, space, &mut random);
                    report.flushes += 1;
                }
                14 => {
                    cpu.pin().trim_cpumask(&self.spaces[random.index(self.spaces.len())].space);
                }
                15 if random.below(8) == 0 => {
                    cpu.pin().offline();
                    cpu.pin().online();
                    current = None;
                }
                16..=17 => cpu.speculate(),
                _ => {
                    // A lazy CPU must not touch pages, so it comes back to its space first.
                    if let Some(space) = current {
                        self.switch(&cpu, space);
                    }
                    report.count(cpu.touch(random.index(self.pages)));
                }
            }
        }
        cpu.pin().offline();
        report
    }

    fn switch(&self, cpu: &OnCpu<'_, P, WORDS>, space: usize) -> usize {
        // SAFETY: the spaces stay in place as long as `self` exists, which outlives the call of
        // `run_while`. At the end of this call, the CPU has left them.
        unsafe { cpu.pin().switch(&self.spaces[space].space) };
        space
    }

    /// Unmaps a page, frees its frame when the flush is done, and maps the page again.
    fn replace_page(
        &self,
        engine: &Shootdown<Soft<P, WORDS>>,
        cpu: &OnCpu<'_, P, WORDS>,
        space: usize,
        page: usize,
        random: &mut Random,
    ) {
        let LockedSpace { space, pages, batches, .. } = &self.spaces[space];
        lock(cpu, &pages[page]);
        batches[page].store(0, Relaxed);
        let address = (page as u64) << 12;
        let extent = match random.below(8) {
            0 => Extent::whole(),
            1 => Extent::pages(address, 1 + random.index(40), PageSize::SIZE_4K),
            _ => Extent::page(address),
        };
        let pending = if engine.machine().try_unmap(space, page) {
            cpu.pin().flush(space, extent)
        } else {
            // The page is in a batch, which will find that it has been replaced.
            cpu.pin().flush_if_batched(space, extent)
        };
        finish(cpu, pending, random);
        engine.machine().free(space, page);
        engine.machine().map(space, page);
        unlock(&pages[page]);
    }

    /// Unmaps pages of several spaces, each under its lock, and flushes them together without a
    /// lock. Then frees the frames of those pages that have not been replaced since.
    fn reclaim_pages(
        &self,
        engine: &Shootdown<Soft<P, WORDS>>,
        cpu: &OnCpu<'_, P, WORDS>,
        number: u64,
        random: &mut Random,
    ) {
        let mut batch: Batch<&Space<_>, Vec<(usize, usize)>, 2> = Batch::new();
        for _ in 0..=random.below(6) {
            let (index, page) = (random.index(self.spaces.len()), random.index(self.pages));
            let LockedSpace { space, pages, batches, .. } = &self.spaces[index];
            lock(cpu, &pages[page]);
            if let Ok(entry) = batch.space(engine.machine(), &space)
                && engine.machine().try_unmap(space, page)
            {
                let extent = Extent::page((page as u64) << 12);
                let unmapped = entry.unmapped(&cpu.pin(), extent, StaleWrites::Possible);
                batch.defer_free((index, page));
                batches[page].store(number, Relaxed);
                finish(cpu, unmapped, random);
            }
            unlock(&pages[page]);
        }
        let mut sent = batch.send(&cpu.pin());
        while random.below(2) == 0 && !sent.poll() {
            cpu.interrupt_point();
            P::spin_hint();
        }
        for (index, page) in sent.wait() {
            let LockedSpace { space, pages, batches, .. } = &self.spaces[index];
            lock(cpu, &pages[page]);
            if batches[page].load(Relaxed) == number {
                batches[page].store(0, Relaxed);
                engine.machine().free(space, page);
                engine.machine().map(space, page);
            }
            unlock(&pages[page]);
        }
    }

    /// Replaces the page tables of a space, and frees the old ones when the flush is done.
    fn replace_tables(
        &self,
        engine: &Shootdown<Soft<P, WORDS>>,
        cpu: &OnCpu<'_, P, WORDS>,
        space: usize,
        random: &mut Random,
    ) {
        let LockedSpace { space, tables, .. } = &self.spaces[space];
        lock(cpu, tables);
        engine.machine().unhook_tables(space);
        finish(cpu, cpu.pin().flush(space, Extent::page(0).freeing_tables()), random);
        engine.machine().free_tables(space);
        unlock(tables);
    }
}

/// Waits for a flush, at random with the interrupt masked or while taking it.
pub(super) fn finish<P: Platform, const WORDS: usize>(
    cpu: &OnCpu<'_, P, WORDS>,
    mut pending: Pending<'_, Soft<P, WORDS>>,
    random: &mut Random,
) {
    if random.below(2) == 0 {
        return pending.wait();
    }
    while !pending.poll() {
        cpu.interrupt_point();
        P::spin_hint();
    }
}

pub(super) fn lock<P: Platform, const WORDS: usize>(cpu: &OnCpu<'_, P, WORDS>, lock: &P::Word) {
    while lock.swap(1, Acquire) != 0 {
        cpu.interrupt_point();
        P::spin_hint();
    }
}

pub(super) fn unlock<W: Word>(lock: &W) {
    lock.store(0, Release);
}

/// A xorshift64* generator: the same seed gives the same numbers on every host.
pub(super) struct Random(u64);

impl Random {
    /// A generator that differs for each CPU and seed.
    pub(super) fn new(seed: u64, cpu: CpuId) -> Self {
        Self(seed ^ (u64::from(cpu.0) << 32) ^ 0x9e37_79b9_7f4a_7c15)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) * bound) >> 32
    }

    pub(super) fn index(&mut self, bound: usize) -> usize {
        self.below(bound as u64) as usize
    }
}

impl<P: Platform, const WORDS: usize> core::fmt::Debug for Churn<P, WORDS> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Churn").field("spaces", &self.spaces.len()).finish_non_exhaustive()
    }
}
