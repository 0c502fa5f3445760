//! A machine with two spaces, for the programs of this test.

use std::sync::Arc;

use loom::thread;
use shootdown::soft::{Config, OnCpu, Soft, Touch};
use shootdown::{CpuId, Extent, Pending, Root, Shootdown, Space};

use crate::platform::Loom;

/// A machine with `W` words of CPUs. One is enough; with two, the top words of CPU sets are
/// explored as well.
pub(crate) type Machine<const W: usize> = Soft<Loom, W>;
pub(crate) type Cpu<'e, const W: usize> = OnCpu<'e, Loom, W>;

/// A machine with two spaces whose pages are all mapped, and its CPUs online.
pub(crate) struct System<const W: usize> {
    pub(crate) engine: Shootdown<Machine<W>>,
    pub(crate) a: Space<Machine<W>>,
    pub(crate) b: Space<Machine<W>>,
    cpus: u32,
}

impl<const W: usize> System<W> {
    pub(crate) fn new(config: Config) -> Arc<Self> {
        Self::with_cpus(0..config.cpus, config)
    }

    /// A system with only some of its CPUs online.
    pub(crate) fn with_cpus(online: impl IntoIterator<Item = u32>, config: Config) -> Arc<Self> {
        let engine = Machine::<W>::engine(config);
        let (a, b) = (engine.space(Root(0)), engine.space(Root(1)));
        let system = Self { engine, a, b, cpus: config.cpus };
        for page in 0..config.pages {
            system.machine().map(&system.a, page);
            system.machine().map(&system.b, page);
            system.machine().map_kernel(page);
        }
        for cpu in online {
            system.cpu(cpu).pin().online();
        }
        Arc::new(system)
    }

    /// A system on which CPU 1 uses `a` and has cached page 0.
    pub(crate) fn active(config: Config) -> Arc<Self> {
        let system = Self::new(config);
        let cpu = system.cpu(1);
        switch(&cpu, &system.a);
        assert_eq!(cpu.touch(0), Touch::Ok);
        drop(cpu);
        system
    }

    pub(crate) fn machine(&self) -> &Machine<W> {
        self.engine.machine()
    }

    pub(crate) const fn cpu_count(&self) -> u32 {
        self.cpus
    }

    pub(crate) fn cpu(&self, cpu: u32) -> Cpu<'_, W> {
        self.engine.enter(CpuId(cpu))
    }

    /// Unmaps a page of `a` and sends the flush.
    pub(crate) fn unmap<'e>(&self, cpu: &Cpu<'e, W>, page: usize) -> Pending<'e, Machine<W>> {
        self.machine().unmap(&self.a, page);
        cpu.pin().flush(&self.a, page_at(page))
    }

    /// Runs `one` on CPU 1 while CPU 0 runs `zero`. Returns the result of `zero`.
    pub(crate) fn race<'s, T>(
        self: &'s Arc<Self>,
        one: impl FnOnce(&Self, &Cpu<'_, W>) + 'static,
        zero: impl FnOnce(&Cpu<'s, W>) -> T,
    ) -> T {
        let other = Arc::clone(self);
        let racing = thread::spawn(move || one(&other, &other.cpu(1)));
        let result = zero(&self.cpu(0));
        racing.join().unwrap();
        result
    }

    /// Runs `one` on CPU 1 while CPU 0 flushes page 0, and [concludes](Self::conclude).
    pub(crate) fn race_flush(self: &Arc<Self>, one: impl FnOnce(&Self, &Cpu<'_, W>) + 'static) {
        self.conclude(self.race(one, |cpu| self.unmap(cpu, 0)));
    }

    /// Runs `one` on CPU 1 while CPU 0 flushes page 0, and frees the page if the flush is done
    /// immediately. Returns the flush otherwise.
    pub(crate) fn race_reuse(
        self: &Arc<Self>,
        one: impl FnOnce(&Self, &Cpu<'_, W>) + 'static,
    ) -> Option<Pending<'_, Machine<W>>> {
        self.race(one, |cpu| {
            let mut pending = self.unmap(cpu, 0);
            if !pending.poll() {
                return Some(pending);
            }
            self.machine().free(&self.a, 0);
            None
        })
    }

    /// Ends most programs, after all threads have ended: CPU 1 takes the interrupt if it was sent.
    /// The flush of page 0 must then be done. The page is freed, and CPU 1 must not use it.
    pub(crate) fn conclude(&self, pending: Pending<'_, Machine<W>>) {
        let cpu = self.cpu(1);
        cpu.interrupt_point();
        let mut pending = pending;
        if !pending.poll() {
            // The flush is a broadcast of CPU 0, which `poll` has interrupted to complete it.
            self.cpu(0).interrupt_point();
        }
        finish(pending);
        self.machine().free(&self.a, 0);
        assert_ne!(cpu.touch(0), Touch::Stale);
    }
}

pub(crate) fn page_at(page: usize) -> Extent {
    Extent::page((page as u64) << 12)
}

/// Asserts that the flush is done. Does not wait, because no CPU would answer any more.
pub(crate) fn finish<const W: usize>(mut pending: Pending<'_, Machine<W>>) {
    let done = pending.poll();
    if !done {
        // A drop would wait.
        std::mem::forget(pending);
    }
    assert!(done, "no CPU is left to answer");
}

/// Switches `cpu` to `space`, which outlives the CPU's use of it, as every space of a `System`
/// does.
pub(crate) fn switch<const W: usize>(cpu: &Cpu<'_, W>, space: &Space<Machine<W>>) {
    // SAFETY: the spaces of a `System` live as long as its machine, and do not move.
    unsafe { cpu.pin().switch(space) };
}
