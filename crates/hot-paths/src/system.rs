//! An engine in the state from which paths begin.

#![expect(unsafe_code, reason = "makes tokens, and switches")]

use alloc::boxed::Box;
use alloc::vec::Vec;

use shootdown::{CpuId, PinnedCpu, Root, Shootdown, Space};
use shootdown_hw::{Bare, Processor};

use crate::harness::{Counted, Harness};

/// Page tables to load. They map the code that runs the paths, and stay for ever.
///
/// Where loading does nothing, any number will do.
#[derive(Clone, Copy, Debug)]
pub struct Roots {
    /// Of the kernel alone.
    pub kernel: Root,
    /// Of spaces.
    pub spaces: [Root; Self::SPACES],
}

impl Roots {
    /// Number of spaces: more than [`Plain`](crate::Plain) has tags.
    pub const SPACES: usize = 8;

    /// For a processor that loads nothing.
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

    /// Makes a system in which CPU 0 runs space 0, and has run space 1 before.
    ///
    /// # Safety
    ///
    /// The processor can be used here, with interrupts masked for as long as the system is used,
    /// and can load the roots.
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

    /// The token of the current CPU.
    pub(crate) fn pin(&self) -> PinnedCpu<'static, Counted<P, W>> {
        // SAFETY: there is one thread and no interrupt.
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

    /// Runs `act` on CPU 1.
    pub(crate) fn on_other_cpu(&self, act: impl FnOnce(&Self)) {
        let kernel = self.machine().kernel();
        kernel.be(CpuId(1));
        act(self);
        kernel.be(CpuId(0));
    }
}
