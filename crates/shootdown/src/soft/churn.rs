//! A workload that does everything at once, for stress tests.

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

/// Spaces that all CPUs map, unmap, switch to and flush as chance has it.
///
/// Each page and each set of page tables has a lock, as in a kernel. Pages are given away as soon
/// as their flush is done, and every use checks that its page was not.
pub struct Churn<P: Platform, const WORDS: usize = 1> {
    spaces: Vec<Locked<P, WORDS>>,
    pages: usize,
}

struct Locked<P: Platform, const WORDS: usize> {
    space: Space<Soft<P, WORDS>>,
    /// One lock per page.
    pages: Vec<P::Word>,
    /// Which batch has taken each page, under its lock; 0 for none.
    taken_by: Vec<P::Word>,
    tables: P::Word,
}

/// What one CPU saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChurnReport {
    /// Uses of mapped pages.
    pub touches: u64,
    /// Uses of pages that had been given away.
    pub stale: u64,
    /// Flushes waited for.
    pub flushes: u64,
}

impl core::ops::AddAssign for ChurnReport {
    fn add_assign(&mut self, other: Self) {
        self.touches += other.touches;
        self.stale += other.stale;
        self.flushes += other.flushes;
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
            Locked { space, pages: words(), taken_by: words(), tables: lock() }
        });
        Self { spaces: spaces.collect(), pages: config.pages }
    }

    /// Is CPU `cpu` for `steps` steps, then goes offline.
    pub fn run(
        &self,
        engine: &Shootdown<Soft<P, WORDS>>,
        cpu: CpuId,
        seed: u64,
        mut steps: usize,
    ) -> ChurnReport {
        self.run_watched(engine, cpu, seed, |_| {
            steps = steps.wrapping_sub(1);
            steps != usize::MAX
        })
    }

    /// Is CPU `cpu` for as long as `go_on` says, which is shown the report so far; then goes
    /// offline.
    pub fn run_watched(
        &self,
        engine: &Shootdown<Soft<P, WORDS>>,
        cpu: CpuId,
        seed: u64,
        mut go_on: impl FnMut(&ChurnReport) -> bool,
    ) -> ChurnReport {
        let mut random = Random::new(seed, cpu);
        let cpu = engine.enter(cpu);
        cpu.pin().online();
        let mut report = ChurnReport::default();
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
                    // A lazy CPU uses nothing; one that uses something is not lazy.
                    if let Some(space) = current {
                        self.switch(&cpu, space);
                    }
                    match cpu.touch(random.index(self.pages)) {
                        Touch::Ok => report.touches += 1,
                        Touch::Stale => report.stale += 1,
                        Touch::Fault => {}
                    }
                }
            }
        }
        cpu.pin().offline();
        report
    }

    fn switch(&self, cpu: &OnCpu<'_, P, WORDS>, space: usize) -> usize {
        // SAFETY: the spaces stay in place as long as `self`, which outlives `run`, at the end of
        // which the CPU has left them.
        unsafe { cpu.pin().switch(&self.spaces[space].space) };
        space
    }

    /// Unmaps a page, gives its frame away when that is safe, and maps another.
    fn replace_page(
        &self,
        engine: &Shootdown<Soft<P, WORDS>>,
        cpu: &OnCpu<'_, P, WORDS>,
        space: usize,
        page: usize,
        random: &mut Random,
    ) {
        let Locked { space, pages, taken_by, .. } = &self.spaces[space];
        lock(cpu, &pages[page]);
        taken_by[page].store(0, Relaxed);
        let address = (page as u64) << 12;
        let extent = match random.below(8) {
            0 => Extent::whole(),
            1 => Extent::pages(address, 1 + random.index(40), PageSize::SIZE_4K),
            _ => Extent::page(address),
        };
        let pending = if engine.machine().take(space, page) {
            cpu.pin().flush(space, extent)
        } else {
            // It is in a batch, which will find that it has been replaced.
            cpu.pin().flush_if_batched(space, extent)
        };
        finish(cpu, pending, random);
        engine.machine().free(space, page);
        engine.machine().map(space, page);
        unlock(&pages[page]);
    }

    /// Unmaps pages of several spaces, each under its lock, and flushes them together without one.
    /// Gives their frames away when that is safe, unless that was done meanwhile.
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
            let Locked { space, pages, taken_by, .. } = &self.spaces[index];
            lock(cpu, &pages[page]);
            if let Ok(in_batch) = batch.space(engine.machine(), &space)
                && engine.machine().take(space, page)
            {
                let extent = Extent::page((page as u64) << 12);
                let unmapped = in_batch.unmapped(&cpu.pin(), extent, StaleWrites::Possible);
                batch.defer_free((index, page));
                taken_by[page].store(number, Relaxed);
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
            let Locked { space, pages, taken_by, .. } = &self.spaces[index];
            lock(cpu, &pages[page]);
            if taken_by[page].load(Relaxed) == number {
                taken_by[page].store(0, Relaxed);
                engine.machine().free(space, page);
                engine.machine().map(space, page);
            }
            unlock(&pages[page]);
        }
    }

    /// Replaces the page tables, and gives the old ones away when that is safe.
    fn replace_tables(
        &self,
        engine: &Shootdown<Soft<P, WORDS>>,
        cpu: &OnCpu<'_, P, WORDS>,
        space: usize,
        random: &mut Random,
    ) {
        let Locked { space, tables, .. } = &self.spaces[space];
        lock(cpu, tables);
        engine.machine().unhook_tables(space);
        finish(cpu, cpu.pin().flush(space, Extent::page(0).freeing_tables()), random);
        engine.machine().free_tables(space);
        unlock(tables);
    }
}

/// Waits with interrupts masked, or taking them, as chance has it.
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

/// xorshift64*: the same numbers everywhere for the same seed.
pub(super) struct Random(u64);

impl Random {
    /// Another one for each CPU and seed.
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
