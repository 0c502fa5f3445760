//! An engine in the state in which paths begin.

#![expect(unsafe_code, reason = "creates pin guards, and switches to spaces")]

use alloc::boxed::Box;
use alloc::vec::Vec;

use shootdown::{CpuId, PinnedCpu, Root, Shootdown, Space};
use shootdown_hw::{Bare, Processor};

use crate::harness::{Counted, Harness};

/// Page tables that can be loaded. They map the code that runs the paths, and stay valid for ever.
///
/// If the processor's `load` does nothing, any number will do.
#[derive(Clone, Copy, Debug)]
pub struct Roots {
    /// Page tables of the kernel alone.
    pub kernel: Root,
    /// Page tables of spaces.
    pub spaces: [Root; Self::SPACES],
}

impl Roots {
    /// Number of spaces: more than [`Plain`](crate::Plain) has tags.
    pub const SPACES: usize = 8;

    /// Roots for a processor that loads nothing.
    pub const NONE: Self = Self { kernel: Root(0), spaces: [Root(0); Self::SPACES] };
}

/// An engine with some CPUs online and a few spaces, on CPU 0. It is never dropped.
#[derive(Debug)]
pub struct System<P: Processor + 'static, const W: usize, const R: bool = false> {
    engine: &'static Shootdown<Counted<P, W, R>>,
    spaces: &'static [Space<Counted<P, W, R>>],
    cpus: usize,
}

impl<P: Processor, const W: usize, const R: bool> Clone for System<P, W, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Processor, const W: usize, const R: bool> Copy for System<P, W, R> {}

impl<P: Processor, const W: usize, const R: bool> System<P, W, R> {
    /// Creates a system of two CPUs, in which CPU 0 runs space 0, and has run space 1 before.
    ///
    /// # Safety
    ///
    /// The processor must be usable here and able to load the roots. Interrupts must stay masked
    /// while the system is used.
    #[must_use]
    pub unsafe fn new(processor: P, roots: &Roots) -> Self {
        // SAFETY: the caller promises both.
        unsafe { Self::with_cpus(processor, roots, 2) }
    }

    /// As [`new`](Self::new), with `cpus` CPUs, at least 2 and at most `64 * W`.
    ///
    /// # Safety
    ///
    /// As for [`new`](Self::new).
    #[must_use]
    pub unsafe fn with_cpus(processor: P, roots: &Roots, cpus: usize) -> Self {
        let harness = Harness::new(cpus, roots.kernel);
        let engine: &Shootdown<_> =
            Box::leak(Box::new(Shootdown::new(Bare::new(harness, processor))));
        let spaces = Vec::leak(roots.spaces.iter().map(|&root| engine.space(root)).collect());
        let system = Self { engine, spaces, cpus };
        system.on_other_cpus(|system| system.pin().online());
        system.pin().online();
        system.switch(1);
        system.switch(0);
        system
    }

    /// The pin guard of the current CPU.
    pub(crate) fn pin(&self) -> PinnedCpu<'static, Counted<P, W, R>> {
        // SAFETY: there is one thread, and no interrupts.
        unsafe { self.engine.pin() }
    }

    pub(crate) fn machine(&self) -> &'static Counted<P, W, R> {
        self.engine.machine()
    }

    pub(crate) fn space(&self, index: usize) -> &'static Space<Counted<P, W, R>> {
        &self.spaces[index]
    }

    pub(crate) fn switch(&self, index: usize) {
        // SAFETY: the CPU is online, and the space lives for ever.
        unsafe { self.pin().switch(self.space(index)) };
    }

    /// Calls `act` on each CPU but CPU 0.
    pub(crate) fn on_other_cpus(&self, mut act: impl FnMut(&Self)) {
        let kernel = self.machine().kernel();
        for cpu in 1..self.cpus {
            kernel.set_cpu(CpuId(cpu as u32));
            act(self);
        }
        kernel.set_cpu(CpuId(0));
    }

    /// Switches to space 0 and enters lazy.
    pub(crate) fn enter_lazy(&self) {
        self.switch(0);
        self.pin().enter_lazy();
    }

    /// Runs the handler of the flush interrupt on each CPU but CPU 0.
    #[inline(never)]
    pub(crate) fn run_other_handlers(&self) {
        self.on_other_cpus(|system| system.pin().handle_flush_ipi());
    }
}
