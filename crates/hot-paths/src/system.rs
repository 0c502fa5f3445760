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

/// An engine with two CPUs online and a few spaces, on CPU 0. It is never dropped.
#[derive(Debug)]
pub struct System<P: Processor + 'static, const W: usize> {
    engine: &'static Shootdown<Counted<P, W>>,
    spaces: &'static [Space<Counted<P, W>>],
}

impl<P: Processor, const W: usize> System<P, W> {
    const CPUS: usize = 2;

    /// Creates a system in which CPU 0 runs space 0, and has run space 1 before.
    ///
    /// # Safety
    ///
    /// The processor must be usable here and able to load the roots. Interrupts must stay masked
    /// while the system is used.
    #[must_use]
    pub unsafe fn new(processor: P, roots: &Roots) -> Self {
        let harness = Harness::new(Self::CPUS, roots.kernel);
        let engine: &Shootdown<_> =
            Box::leak(Box::new(Shootdown::new(Bare::new(harness, processor))));
        let spaces = Vec::leak(roots.spaces.iter().map(|&root| engine.space(root)).collect());
        let system = Self { engine, spaces };
        system.on_other_cpu(|system| system.pin().online());
        system.pin().online();
        system.switch(1);
        system.switch(0);
        system
    }

    /// The pin guard of the current CPU.
    pub(crate) fn pin(&self) -> PinnedCpu<'static, Counted<P, W>> {
        // SAFETY: there is one thread, and no interrupts.
        unsafe { self.engine.pin() }
    }

    pub(crate) fn machine(&self) -> &'static Counted<P, W> {
        self.engine.machine()
    }

    pub(crate) fn space(&self, index: usize) -> &'static Space<Counted<P, W>> {
        &self.spaces[index]
    }

    pub(crate) fn switch(&self, index: usize) {
        // SAFETY: the CPU is online, and the space lives for ever.
        unsafe { self.pin().switch(self.space(index)) };
    }

    /// Calls `act` on CPU 1.
    pub(crate) fn on_other_cpu(&self, act: impl FnOnce(&Self)) {
        let kernel = self.machine().kernel();
        kernel.set_cpu(CpuId(1));
        act(self);
        kernel.set_cpu(CpuId(0));
    }
}
