//! The kernel that the paths run in: one thread, which says which CPU it is.

#![expect(unsafe_code, reason = "implements `Kernel`")]

use alloc::vec::Vec;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

use shootdown::{Cpu, CpuId, CpuSet, Root, Space};
use shootdown_bare::{Bare, Kernel, Processor};

/// The engine's machine.
pub type Counted<P> = Bare<Harness<P>>;

/// Up to 64 CPUs, one of which runs.
#[derive(Debug)]
pub struct Harness<P: Processor> {
    cpus: Vec<Cpu<Counted<P>>>,
    current: AtomicU32,
    root: Root,
}

impl<P: Processor> Harness<P> {
    pub(crate) fn new(cpus: usize, root: Root) -> Self {
        Self { cpus: (0..cpus).map(|_| Cpu::new()).collect(), current: AtomicU32::new(0), root }
    }

    /// From here on, the thread is this CPU.
    pub(crate) fn be(&self, cpu: CpuId) {
        self.current.store(cpu.0, Ordering::Relaxed);
    }
}

// SAFETY: there is one thread, which is told from which CPU on another's TLB is meant; that CPU
// has none of its own, so that there is no interrupt to send. The root is whoever's it is who has
// made the system, for ever.
unsafe impl<P: Processor> Kernel for Harness<P> {
    type Processor = P;
    type CpuBits = [u64; 1];

    #[inline]
    fn state(&self, cpu: CpuId) -> &Cpu<Counted<P>> {
        &self.cpus[cpu.index()]
    }
    #[inline]
    fn cpu(&self) -> CpuId {
        CpuId(self.current.load(Ordering::Relaxed))
    }
    #[inline]
    fn root(&self) -> Root {
        self.root
    }
    #[inline]
    fn ring(&self, _: &CpuSet<Counted<P>>) {}
    #[inline]
    fn relax(&self, _: &CpuSet<Counted<P>>) {}
    #[inline]
    fn reclaim(&self, _: NonNull<Space<Counted<P>>>) {}
}
