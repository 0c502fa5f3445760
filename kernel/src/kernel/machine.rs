//! The engine on this kernel: where a CPU's state lives, how it is interrupted, and where spaces go
//! that are dead.

#![expect(unsafe_code, reason = "the kernel's half of the engine's contract")]

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::Deref;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use shootdown::{CpuId, CpuSet, CpuState, PinnedCpu, Root, Shootdown, Space};
use shootdown_hw::{Bare, Kernel};

use crate::kernel::arch::{Arch, Architecture, Interrupt};
use crate::kernel::counts;
use crate::kernel::sync::{Once, masked};

/// What the engine is told of the processor: the one place to put another around it.
pub(crate) type Processor = <Arch as Architecture>::Processor;

/// The engine's machine.
pub(crate) type Machine = Bare<ThisKernel>;

static ENGINE: Once<Shootdown<Machine>> = Once::new();

/// The kernel's half of it.
pub(crate) struct ThisKernel {
    cpus: Box<[PerCpu]>,
    /// After how long a wait is for ever.
    stall_ns: u64,
}

/// What a CPU has for the engine.
struct PerCpu {
    state: CpuState<Machine>,
    /// Dead spaces that it let go of last. Only that CPU changes it, and never in a handler.
    dead: AtomicPtr<SpaceNode>,
    /// When it began to wait for other CPUs; 0 if it does not.
    waits_since_ns: AtomicU64,
}

/// A space, where the engine finds it, and the next dead one.
#[repr(C)]
pub(crate) struct SpaceNode {
    space: Space<Machine>,
    next_dead: AtomicPtr<Self>,
}

/// A space that stays where it is for as long as anybody has it.
#[derive(Clone)]
pub(crate) struct SharedSpace(Arc<SpaceNode>);

impl Deref for SharedSpace {
    type Target = Space<Machine>;

    fn deref(&self) -> &Self::Target {
        &self.0.space
    }
}

impl SharedSpace {
    /// A space whose page tables start at `root`.
    pub(crate) fn new(root: Root) -> Self {
        let next_dead = AtomicPtr::new(ptr::null_mut());
        Self(Arc::new(SpaceNode { space: engine().space(root), next_dead }))
    }

    /// The space, for the engine to keep until it [reclaims](Kernel::reclaim) it: one holder more.
    pub(crate) fn into_dying(self) -> NonNull<Space<Machine>> {
        // It comes first in its node.
        let node = Arc::into_raw(self.0).cast::<Space<Machine>>().cast_mut();
        NonNull::new(node).expect("nothing is at address 0")
    }
}

/// Makes the engine, for so many CPUs. Once, by the first of them.
pub(crate) fn set_up(cpus: u32, stall_ns: u64) {
    let per_cpu = |_| PerCpu {
        state: CpuState::new(),
        dead: AtomicPtr::new(ptr::null_mut()),
        waits_since_ns: AtomicU64::new(0),
    };
    let kernel = ThisKernel { cpus: (0..cpus).map(per_cpu).collect(), stall_ns };
    ENGINE.set(Shootdown::new(Bare::new(kernel, Arch::processor())));
}

/// The engine.
pub(crate) fn engine() -> &'static Shootdown<Machine> {
    ENGINE.get()
}

/// The engine's state of a CPU.
pub(crate) fn engine_of(cpu: u32) -> &'static CpuState<Machine> {
    engine().cpu(CpuId(cpu))
}

/// Calls `f` with the engine's token of this CPU.
pub(crate) fn with_here<R>(f: impl FnOnce(PinnedCpu<'static, Machine>) -> R) -> R {
    // SAFETY: interrupts are masked until `f` has returned, and the kernel has no others.
    masked(|| f(unsafe { engine().pin() }))
}

/// Waits for other CPUs, with interrupts masked: who waits answers its own bell, and is sent none.
pub(crate) fn wait_masked(wait: impl FnOnce()) {
    masked(|| {
        let pin = engine().machine().kernel().pin();
        pin.waits_since_ns.store(Arch::now_ns(), Ordering::Relaxed);
        wait();
        pin.waits_since_ns.store(0, Ordering::Relaxed);
    });
}

/// The root of a dead space that this CPU let go of last, whose tables it may free.
pub(crate) fn take_dead() -> Option<Root> {
    let dead = &engine().machine().kernel().pin().dead;
    let node = dead.load(Ordering::Relaxed);
    if node.is_null() {
        return None;
    }
    // SAFETY: it came from `into_dying` by way of `reclaim`, which the engine calls once.
    let node = unsafe { Arc::from_raw(node) };
    dead.store(node.next_dead.load(Ordering::Relaxed), Ordering::Relaxed);
    Some(node.space.root())
}

impl ThisKernel {
    fn pin(&self) -> &PerCpu {
        &self.cpus[Arch::cpu() as usize]
    }
}

// SAFETY: each CPU has its own element, by its number; the architecture sees to it that who takes
// an interrupt finds memory as it was when that was sent, and its handler answers.
unsafe impl Kernel for ThisKernel {
    type Processor = Processor;
    type CpuBits = [u64; 1];

    fn state(&self, cpu: CpuId) -> &CpuState<Machine> {
        &self.cpus[cpu.index()].state
    }

    fn cpu(&self) -> CpuId {
        CpuId(Arch::cpu())
    }

    fn cpu_limit(&self) -> usize {
        self.cpus.len()
    }

    fn root(&self) -> Root {
        Arch::kernel_root()
    }

    fn ring(&self, cpus: &CpuSet<Self::CpuBits>) {
        counts::pin().flush_interrupts_sent.add(cpus.len() as u64);
        Arch::send(&mut cpus.iter().map(|cpu| cpu.0), Interrupt::Flush);
    }

    fn reclaim(&self, space: NonNull<Space<Machine>>) {
        let (node, dead) = (space.cast::<SpaceNode>(), &self.pin().dead);
        // SAFETY: the engine gives it back, which holds a count of it: see `into_dying`.
        let next = unsafe { &node.as_ref().next_dead };
        next.store(dead.load(Ordering::Relaxed), Ordering::Relaxed);
        dead.store(node.as_ptr(), Ordering::Relaxed);
    }

    fn wait_hint(&self, waiting: &CpuSet<Self::CpuBits>) {
        let since_ns = self.pin().waits_since_ns.load(Ordering::Relaxed);
        let is_over = since_ns != 0 && Arch::now_ns().saturating_sub(since_ns) > self.stall_ns;
        assert!(!is_over, "waits for an answer of {waiting:?}, and none comes");
        Arch::spin_hint();
    }
}
