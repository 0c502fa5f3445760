//! The kernel that runs the paths: one thread, which sets the number of the CPU that it stands for.

#![expect(unsafe_code, reason = "implements `Kernel`")]

use alloc::vec::Vec;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

use shootdown::{CpuId, CpuSet, CpuState, Root, Space};
use shootdown_hw::{Bare, Kernel, Processor};

/// The engine's machine: a processor `P`, and CPU sets of `W` words. If `R`, it flushes at reuse.
pub type Counted<P, const W: usize, const R: bool = false> = Bare<Harness<P, W, R>>;

/// A kernel of up to `64 * W` CPUs, one of which runs.
#[derive(Debug)]
pub struct Harness<P: Processor, const W: usize, const R: bool = false> {
    cpus: Vec<CpuState<Counted<P, W, R>>>,
    current: AtomicU32,
    root: Root,
}

impl<P: Processor, const W: usize, const R: bool> Harness<P, W, R> {
    pub(crate) fn new(cpus: usize, root: Root) -> Self {
        Self {
            cpus: (0..cpus).map(|_| CpuState::new()).collect(),
            current: AtomicU32::new(0),
            root,
        }
    }

    /// Makes the thread stand for this CPU from now on.
    pub(crate) fn set_cpu(&self, cpu: CpuId) {
        self.current.store(cpu.0, Ordering::Relaxed);
    }
}

// SAFETY: there is one thread and one TLB. CPUs other than the first have no TLB of their own, so
// no interrupt is needed. The creator of the system keeps the root for ever.
unsafe impl<P: Processor, const W: usize, const R: bool> Kernel for Harness<P, W, R> {
    type Processor = P;
    type CpuBits = [u64; W];

    const ISOLATES: bool = true;
    const FLUSHES_AT_REUSE: bool = R;

    #[inline]
    fn state(&self, cpu: CpuId) -> &CpuState<Counted<P, W, R>> {
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
    fn ring(&self, _: &CpuSet<Self::CpuBits>) {}
    #[inline]
    fn wait_hint(&self, _: &CpuSet<Self::CpuBits>) {}
    #[inline]
    fn reclaim(&self, _: NonNull<Space<Counted<P, W, R>>>) {}
}
