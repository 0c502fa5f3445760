//! The kernel's half of the engine's machine: storage for the state of CPUs, flush interrupts, and
//! the lists of dead spaces.

#![expect(unsafe_code, reason = "implements the kernel's half of the engine's contract")]

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::Deref;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use shootdown::{
    CpuId, CpuSet, CpuState, EngineCell, Machine as _, PinnedCpu, Root, Shootdown, Space,
    StallReport,
};
use shootdown_hw::{Bare, Kernel};

use crate::kernel::arch::{Arch, Architecture, Interrupt};
use crate::kernel::counts;
use crate::kernel::load::{DiscardMode, Notify, Reclaim, Replicas, Settings};
use crate::kernel::sync::masked;

/// The processor as the engine sees it. To wrap the processor in another, change this alone.
pub(crate) type Processor = <Arch as Architecture>::Processor;

/// The engine's machine.
pub(crate) type Machine = Bare<ThisKernel>;

static ENGINE: EngineCell<Machine> = EngineCell::new();

/// The kernel's half of the machine.
pub(crate) struct ThisKernel {
    cpus: Box<[PerCpu]>,
    /// Time after which a wait is given up.
    stall_ns: u64,
    reclaim: Reclaim,
    discards: DiscardMode,
    replicas: Replicas,
    answers_early: bool,
}

/// State of a CPU for the engine.
struct PerCpu {
    state: CpuState<Machine>,
    /// List of the dead spaces that were reclaimed on this CPU. Only this CPU changes it, and never
    /// in a handler.
    dead: AtomicPtr<SpaceNode>,
    /// The time at which this CPU began to wait for other CPUs; 0 if it does not wait.
    waits_since_ns: AtomicU64,
}

/// A space, and a link for the list of dead spaces.
#[repr(C)]
pub(crate) struct SpaceNode {
    space: Space<Machine>,
    next_dead: AtomicPtr<Self>,
}

/// A reference-counted space at a fixed address.
#[derive(Clone)]
pub(crate) struct SharedSpace(Arc<SpaceNode>);

impl Deref for SharedSpace {
    type Target = Space<Machine>;

    fn deref(&self) -> &Self::Target {
        &self.0.space
    }
}

impl SharedSpace {
    /// Creates a space whose page tables start at `root`.
    pub(crate) fn new(root: Root) -> Self {
        let next_dead = AtomicPtr::new(ptr::null_mut());
        Self(Arc::new(SpaceNode { space: engine().space(root), next_dead }))
    }

    /// Gives the reference to the engine, which keeps it until it [reclaims](Kernel::reclaim) the
    /// space.
    pub(crate) fn into_dying(self) -> NonNull<Space<Machine>> {
        // The space is the first field of its node.
        let node = Arc::into_raw(self.0).cast::<Space<Machine>>().cast_mut();
        NonNull::new(node).expect("nothing is at address 0")
    }
}

/// Creates the engine. Call this once, on the first CPU.
pub(crate) fn set_up(settings: &Settings) {
    let &Settings { cpus, stall_ns, reclaim, discards, replicas, notify, .. } = settings;
    let per_cpu = |_| PerCpu {
        state: CpuState::new(),
        dead: AtomicPtr::new(ptr::null_mut()),
        waits_since_ns: AtomicU64::new(0),
    };
    let answers_early = notify == Notify::WithEarlyAnswers;
    let cpus = (0..cpus).map(per_cpu).collect();
    let kernel = ThisKernel { cpus, stall_ns, reclaim, discards, replicas, answers_early };
    // SAFETY: this is the first CPU, and no other one runs yet.
    unsafe { ENGINE.init(Bare::new(kernel, notify.processor())) };
}

/// The engine.
pub(crate) fn engine() -> &'static Shootdown<Machine> {
    &ENGINE
}

/// The flushes of reclaimed pages.
pub(crate) fn reclaim() -> Reclaim {
    engine().machine().kernel().reclaim
}

/// The release of pages that are discarded.
pub(crate) fn discards() -> DiscardMode {
    engine().machine().kernel().discards
}

/// The page tables that CPUs load.
pub(crate) fn replicas() -> Replicas {
    engine().machine().kernel().replicas
}

/// Executes a full barrier, which also orders page-table writes before later walks of this CPU.
pub(crate) fn full_barrier() {
    engine().machine().synchronize();
}

/// The engine's state of a CPU.
pub(crate) fn engine_of(cpu: u32) -> &'static CpuState<Machine> {
    engine().cpu(CpuId(cpu))
}

/// Calls `f` with the pin guard of this CPU, interrupts masked.
pub(crate) fn with_pinned<R>(f: impl FnOnce(PinnedCpu<'static, Machine>) -> R) -> R {
    // SAFETY: interrupts stay masked until `f` has returned, and the kernel has no others.
    masked(|| f(unsafe { engine().pin() }))
}

/// Calls `wait` with interrupts masked. A CPU that waits polls its own bell, so it needs no flush
/// interrupts.
pub(crate) fn wait_masked(wait: impl FnOnce()) {
    masked(|| {
        let this = engine().machine().kernel().this_cpu();
        this.waits_since_ns.store(Arch::now_ns(), Ordering::Relaxed);
        wait();
        this.waits_since_ns.store(0, Ordering::Relaxed);
    });
}

/// Takes a dead space from this CPU's list, and returns its root. The caller may free its page
/// tables.
pub(crate) fn pop_dead() -> Option<Root> {
    let dead = &engine().machine().kernel().this_cpu().dead;
    let node = dead.load(Ordering::Relaxed);
    if node.is_null() {
        return None;
    }
    // SAFETY: `into_dying` made the pointer from an `Arc`, and the engine passed it to `reclaim`
    // once.
    let node = unsafe { Arc::from_raw(node) };
    dead.store(node.next_dead.load(Ordering::Relaxed), Ordering::Relaxed);
    Some(node.space.root())
}

impl ThisKernel {
    fn this_cpu(&self) -> &PerCpu {
        &self.cpus[Arch::cpu() as usize]
    }
}

// SAFETY: each CPU has an element of its own, at its number. The architecture's `send` makes
// earlier stores visible to the CPU that takes the interrupt, and the handler there handles the
// flush.
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
        counts::this_cpu().flush_interrupts_sent.add(cpus.len() as u64);
        Arch::send(&mut cpus.iter().map(|cpu| cpu.0), Interrupt::Flush);
    }

    fn answers_early(&self) -> bool {
        self.answers_early
    }

    fn reclaim(&self, space: NonNull<Space<Machine>>) {
        let (node, dead) = (space.cast::<SpaceNode>(), &self.this_cpu().dead);
        // SAFETY: the engine returns the reference that `into_dying` gave it, so the node is alive.
        let next = unsafe { &node.as_ref().next_dead };
        next.store(dead.load(Ordering::Relaxed), Ordering::Relaxed);
        dead.store(node.as_ptr(), Ordering::Relaxed);
    }

    fn wait_hint(&self, waiting: &CpuSet<Self::CpuBits>) {
        let since_ns = self.this_cpu().waits_since_ns.load(Ordering::Relaxed);
        let is_stalled = since_ns != 0 && Arch::now_ns().saturating_sub(since_ns) > self.stall_ns;
        assert!(!is_stalled, "{}", StallReport::new(engine().machine(), waiting));
        Arch::spin_hint();
    }
}
