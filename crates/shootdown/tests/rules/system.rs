//! A machine with two spaces, for small programs.

use std::sync::Arc;

use shootdown::soft::{Config, OnCpu, Soft, Touch};
use shootdown::{CpuId, Extent, Pending, Root, Shootdown, Space};

use crate::platform::Loom;

/// With `W` words of CPUs. One would do; with two, the sets' summaries are explored as well.
pub(crate) type Machine<const W: usize> = Soft<Loom, W>;
pub(crate) type Cpu<'e, const W: usize> = OnCpu<'e, Loom, W>;

/// A machine with two spaces whose pages are all mapped, and its CPUs online.
pub(crate) struct System<const W: usize> {
    pub(crate) engine: Shootdown<Machine<W>>,
    pub(crate) a: Space<Machine<W>>,
    pub(crate) b: Space<Machine<W>>,
}

impl<const W: usize> System<W> {
    pub(crate) fn new(config: Config) -> Arc<Self> {
        let engine = Machine::<W>::engine(config);
        let (a, b) = (engine.space(Root(0)), engine.space(Root(1)));
        let system = Self { engine, a, b };
        for page in 0..config.pages {
            system.machine().map(&system.a, page);
            system.machine().map(&system.b, page);
            system.machine().map_kernel(page);
        }
        for cpu in 0..config.cpus {
            system.cpu(cpu).here().online();
        }
        Arc::new(system)
    }

    pub(crate) fn machine(&self) -> &Machine<W> {
        self.engine.machine()
    }

    pub(crate) fn cpu(&self, cpu: u32) -> Cpu<'_, W> {
        self.engine.enter(CpuId(cpu))
    }

    /// Unmaps a page of `a` and sends the flush.
    pub(crate) fn unmap<'e>(&self, cpu: &Cpu<'e, W>, page: usize) -> Pending<'e, Machine<W>> {
        self.machine().unmap(&self.a, page);
        cpu.here().flush(&self.a, page_at(page))
    }

    /// The end of every program, when all threads have: CPU 1 takes the interrupt that may be on
    /// its way, the flush of page 0 is done, the page is given away, and CPU 1 must not use it.
    pub(crate) fn conclude(&self, pending: Pending<'_, Machine<W>>) {
        let cpu = self.cpu(1);
        cpu.interrupt_point();
        finish(pending);
        self.machine().free(&self.a, 0);
        assert_ne!(cpu.touch(0), Touch::Stale);
    }
}

pub(crate) fn page_at(page: usize) -> Extent {
    Extent::page((page as u64) << 12)
}

/// Everybody has answered, or will not: a wait would spin for ever.
pub(crate) fn finish<const W: usize>(mut pending: Pending<'_, Machine<W>>) {
    let done = pending.poll();
    if !done {
        // Dropping it would wait.
        std::mem::forget(pending);
    }
    assert!(done, "nobody is left to answer");
}

/// Switches CPU `cpu`; every space here outlives every CPU's use of it.
pub(crate) fn switch<const W: usize>(cpu: &Cpu<'_, W>, space: &Space<Machine<W>>) {
    // SAFETY: the spaces of a `System` live as long as its machine, and do not move.
    unsafe { cpu.here().switch(space) };
}
