//! The threads and words that the software machine is made of.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::base::ids::CpuId;
use crate::base::memory::Word;
use crate::state::machine::Lifetime;

/// The threads and words that the machine is made of.
pub trait Platform: Send + Sync + Sized + 'static {
    /// The shared words of the engine and of page tables.
    type Word: Word;
    /// The frames of pages and page tables.
    type Frame: Frame;
    /// A full barrier.
    fn fence();
    /// Lets other threads run.
    fn spin_hint();
    /// The CPU that this thread is, as set by [`set_cpu`](Self::set_cpu).
    fn cpu() -> CpuId;
    /// Makes this thread the CPU `cpu`.
    fn set_cpu(cpu: CpuId);
    /// See [`Machine::LIFETIME`](crate::Machine::LIFETIME).
    const LIFETIME: Lifetime = Lifetime::Handoff;
    /// See [`Machine::TRACES`](crate::Machine::TRACES). The machine then collects
    /// [traces](super::Soft::take_traces).
    const TRACES: bool = false;
}

/// A frame of memory, which counts how often it was reused.
///
/// A model checker's frame also checks that the engine's orderings put every use before the next
/// reuse.
pub trait Frame: Send + Sync {
    /// A frame that was not reused yet.
    fn new() -> Self;
    /// Uses the frame. Returns the number of times that it was reused.
    fn use_count(&self) -> u64;
    /// Frees the frame for another use.
    fn reuse(&self);
}

impl Frame for AtomicU64 {
    fn new() -> Self {
        Self::new(0)
    }
    fn use_count(&self) -> u64 {
        self.load(Relaxed)
    }
    fn reuse(&self) {
        self.fetch_add(1, Relaxed);
    }
}

/// The platform of the host's threads and atomics.
#[derive(Debug)]
pub struct Host;

std::thread_local! {
    static HOST_CPU: core::cell::Cell<CpuId> = const { core::cell::Cell::new(CpuId(0)) };
}

impl Platform for Host {
    type Word = AtomicU64;
    type Frame = AtomicU64;
    fn fence() {
        core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
    }
    fn spin_hint() {
        std::thread::yield_now();
    }
    fn cpu() -> CpuId {
        HOST_CPU.get()
    }
    fn set_cpu(cpu: CpuId) {
        HOST_CPU.set(cpu);
    }
}
