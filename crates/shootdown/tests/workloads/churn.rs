//! A stress workload: CPUs map, unmap, switch, flush and reclaim at random.

use std::sync::atomic::Ordering::Relaxed;

use shootdown::soft::{Config, OnCpu, Platform, Soft};
use shootdown::{Batch, CpuId, Extent, PageSize, Root, Shootdown, Space, StaleWrites, Word};

use super::worker::{Random, StressReport, Worker, spin_until, unlock};

/// Spaces that all CPUs map, unmap, switch to and flush at random.
///
/// Each page and each set of page tables has a lock, as in a kernel. Pages are freed as soon as
/// their flush is done, and every use checks that its page was not freed.
pub(crate) struct Churn<P: Platform, const WORDS: usize = 1> {
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

impl<P: Platform, const WORDS: usize> Churn<P, WORDS> {
    /// One space per page table of the machine, which has this configuration, with every page
    /// mapped.
    pub(crate) fn new(engine: &Shootdown<Soft<P, WORDS>>, config: Config) -> Self {
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
    pub(crate) fn run(
        &self,
        engine: &Shootdown<Soft<P, WORDS>>,
        cpu: CpuId,
        seed: u64,
        steps: usize,
    ) -> StressReport {
        let mut worker = Worker::new(engine, cpu, seed);
        let id = u64::from(cpu.0);
        let mut current = None;
        let mut batches = 0;
        for _ in 0..steps {
            let Worker { cpu, random, .. } = &mut worker;
            cpu.interrupt_point();
            match random.below(32) {
                0..=2 => {
                    current = Some(self.space(random));
                    switch(&worker.cpu, current);
                }
                3..=5 => cpu.pin().enter_lazy(),
                6..=8 => switch(&worker.cpu, current),
                9 => {
                    cpu.pin().leave_space();
                    current = None;
                }
                10..=11 => self.replace_page(&mut worker),
                12 => {
                    batches += 1;
                    let number = batches << 32 | id;
                    self.reclaim_pages(&mut worker, number);
                }
                13 => self.replace_tables(&mut worker),
                14 => {
                    cpu.pin().trim_cpumask(&self.space(random).space);
                }
                15 if random.below(8) == 0 => {
                    cpu.pin().offline();
                    cpu.pin().online();
                    current = None;
                }
                16..=17 => cpu.speculate(),
                _ => {
                    // A lazy CPU must not touch pages, so it comes back to its space first.
                    switch(&worker.cpu, current);
                    let page = worker.random.index(self.pages);
                    worker.report.count(worker.cpu.touch(page));
                }
            }
        }
        worker.cpu.pin().offline();
        worker.report
    }

    /// A random space.
    fn space(&self, random: &mut Random) -> &LockedSpace<P, WORDS> {
        &self.spaces[random.index(self.spaces.len())]
    }

    /// Unmaps a page, frees its frame when the flush is done, and maps the page again.
    fn replace_page(&self, worker: &mut Worker<'_, P, WORDS>) {
        let LockedSpace { space, pages, batches, .. } = self.space(&mut worker.random);
        let page = worker.random.index(self.pages);
        let machine = worker.machine();
        worker.lock(&pages[page]);
        batches[page].store(0, Relaxed);
        let address = (page as u64) << 12;
        let extent = match worker.random.below(8) {
            0 => Extent::whole(),
            1 => Extent::pages(address, 1 + worker.random.index(40), PageSize::SIZE_4K),
            _ => Extent::page(address),
        };
        let pending = if machine.try_unmap(space, page) {
            worker.cpu.pin().flush(space, extent)
        } else {
            // The page is in a batch, which will find that it has been replaced.
            worker.cpu.pin().flush_if_batched(space, extent)
        };
        worker.wait(pending);
        machine.free(space, page);
        machine.map(space, page);
        unlock(&pages[page]);
        worker.report.flushes += 1;
    }

    /// Unmaps pages of several spaces, each under its lock, and flushes them together without a
    /// lock. Then frees the frames of those pages that have not been replaced since.
    fn reclaim_pages(&self, worker: &mut Worker<'_, P, WORDS>, number: u64) {
        let machine = worker.machine();
        let mut batch: Batch<&Space<_>, Vec<(&LockedSpace<P, WORDS>, usize)>, 2> = Batch::new();
        for _ in 0..=worker.random.below(6) {
            let locked = self.space(&mut worker.random);
            let page = worker.random.index(self.pages);
            let LockedSpace { space, pages, batches, .. } = locked;
            worker.lock(&pages[page]);
            let entry = batch.space(machine, &space).ok();
            if let Some(entry) = entry.filter(|_| machine.try_unmap(space, page)) {
                let extent = Extent::page((page as u64) << 12);
                let unmapped = entry.unmapped(&worker.cpu.pin(), extent, StaleWrites::Possible);
                batch.defer_free((locked, page));
                batches[page].store(number, Relaxed);
                worker.wait(unmapped);
            }
            unlock(&pages[page]);
        }
        let mut sent = batch.send(&worker.cpu.pin());
        let random = &mut worker.random;
        spin_until(&worker.cpu, || random.below(2) != 0 || sent.poll());
        for (LockedSpace { space, pages, batches, .. }, page) in sent.wait() {
            worker.lock(&pages[page]);
            if batches[page].load(Relaxed) == number {
                batches[page].store(0, Relaxed);
                machine.free(space, page);
                machine.map(space, page);
            }
            unlock(&pages[page]);
        }
        worker.report.flushes += 1;
    }

    /// Replaces the page tables of a space, and frees the old ones when the flush is done.
    fn replace_tables(&self, worker: &mut Worker<'_, P, WORDS>) {
        let LockedSpace { space, tables, .. } = self.space(&mut worker.random);
        worker.lock(tables);
        worker.machine().unhook_tables(space);
        worker.wait(worker.cpu.pin().flush(space, Extent::page(0).freeing_tables()));
        worker.machine().free_tables(space);
        unlock(tables);
        worker.report.flushes += 1;
    }
}

/// Switches to a space, if there is one.
fn switch<P: Platform, const WORDS: usize>(
    cpu: &OnCpu<'_, P, WORDS>,
    space: Option<&LockedSpace<P, WORDS>>,
) {
    let Some(LockedSpace { space, .. }) = space else { return };
    // SAFETY: the spaces of a `Churn` stay in place as long as it exists, which outlives the call
    // of `run`. At the end of this call, the CPU has left them.
    unsafe { cpu.pin().switch(space) };
}
