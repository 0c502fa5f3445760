//! The framework's half of the engine's machine.

use alloc::boxed::Box;
use core::ptr::NonNull;

use shootdown::{
    CpuId, CpuSet, CpuState, ExtentSet, Pending, PinnedCpu, Root, Shootdown, Space, Tag,
};
use shootdown_hw::{Bare, Kernel, Processor};
use spin::Once;

use super::{
    processor::{self, Detected},
    table,
};
use crate::{
    arch::irq::flush_ipi,
    cpu, irq,
    mm::{kspace::KERNEL_PAGE_TABLE, measure},
    smp,
};

pub(super) type Machine = Bare<Ostd>;

/// A flush that was sent.
pub(in crate::mm) type FlushPending = Pending<'static, Machine>;

static ENGINE: Once<Shootdown<Machine>> = Once::new();

/// The framework, as the engine's kernel.
pub(in crate::mm) struct Ostd {
    cpus: Box<[CpuState<Machine>]>,
}

// SAFETY: each CPU has its own element, at its number. `flush_ipi` sends the interrupt whose
// handler is `handle_flush_ipi`, after a barrier.
unsafe impl Kernel for Ostd {
    type Processor = Detected;
    /// As many CPUs as an APIC without x2APIC's wider identifiers can name.
    type CpuBits = [u64; 4];

    #[inline]
    fn state(&self, cpu: CpuId) -> &CpuState<Machine> {
        debug_assert!(cpu.index() < self.cpus.len(), "no CPU has this number");
        // SAFETY: there is an element for each CPU, and the engine asks for no other number.
        unsafe { self.cpus.get_unchecked(cpu.index()) }
    }

    #[inline]
    fn cpu(&self) -> CpuId {
        #[cfg(target_arch = "x86_64")]
        let cpu = cpu::CpuId::current_racy();
        // Elsewhere, `current_racy` masks interrupts, which are masked already.
        #[cfg(target_arch = "riscv64")]
        let cpu = cpu::CpuId::current_masked();
        CpuId(cpu.into())
    }

    fn cpu_limit(&self) -> usize {
        self.cpus.len()
    }

    fn root(&self) -> Root {
        Root(KERNEL_PAGE_TABLE.get().expect("the engine starts after paging").root_paddr() as u64)
    }

    fn ring(&self, cpus: &CpuSet<Self::CpuBits>) {
        let guard = irq::disable_local();
        let sender = smp::IPI_SENDER.get().expect("the engine starts after `IPI_SENDER`");
        flush_ipi::send(cpus.iter().map(|cpu| sender.hw_cpu_ids[cpu.index()]), &guard);
    }

    fn reclaim(&self, space: NonNull<Space<Machine>>) {
        table::reclaim(space);
    }
}

pub(in crate::mm) fn engine() -> &'static Shootdown<Machine> {
    ENGINE.get().expect("`init` has made the engine")
}

/// Runs `f` with the pin guard of this CPU.
#[inline]
pub(super) fn with_pinned<R>(f: impl FnOnce(PinnedCpu<'static, Machine>) -> R) -> R {
    with_pinned_of(engine(), f)
}

/// As [`with_pinned`], for a space of the engine.
#[inline]
pub(super) fn with_space_pinned<R>(
    _: &Space<Machine>,
    f: impl FnOnce(PinnedCpu<'static, Machine>) -> R,
) -> R {
    // SAFETY: `engine` has made the space, so the engine exists.
    with_pinned_of(unsafe { ENGINE.get_unchecked() }, f)
}

#[inline]
fn with_pinned_of<R>(
    engine: &'static Shootdown<Machine>,
    f: impl FnOnce(PinnedCpu<'static, Machine>) -> R,
) -> R {
    let _guard = irq::disable_local();
    // SAFETY: interrupts stay masked until `f` has returned, and no NMI handler calls this.
    f(unsafe { engine.pin() })
}

/// Returns the pin guard of this CPU, for as long as interrupts are masked. A space must exist.
#[inline]
pub(super) fn pin(_: &irq::DisabledLocalIrqGuard) -> PinnedCpu<'_, Machine> {
    // SAFETY: a space is in use, whose engine exists.
    let engine = unsafe { ENGINE.get_unchecked() };
    // SAFETY: interrupts stay masked until the result is gone, and no NMI handler calls this.
    unsafe { engine.pin() }
}

/// Makes the engine. Call this once, when the number of CPUs is known and `IPI_SENDER` is set.
pub(crate) fn init() {
    ENGINE.call_once(|| {
        let cpus: Box<[_]> = (0..cpu::num_cpus()).map(|_| CpuState::new()).collect();
        let capacity = CpuSet::<<Ostd as Kernel>::CpuBits>::capacity();
        assert!(cpus.len() <= capacity, "{} CPUs, of at most {capacity}", cpus.len());
        // SAFETY: `online` sets up every CPU. All kernel pages have the global bit.
        let processor = unsafe { processor::detect() };
        Shootdown::new(Bare::new(Ostd { cpus }, processor))
    });
}

/// From here on, flushes notify this CPU.
pub(crate) fn online() {
    with_pinned(|pin| {
        // SAFETY: interrupts are masked. The kernel's root is loaded, on x86-64 with no flags in
        // CR3. Nothing else changes CR4's bits for PCIDs and global pages after boot.
        unsafe { engine().machine().processor().set_up_cpu() };
        pin.online();
    });
}

/// Makes this CPU forget that an access to `address` was refused. The handler of page faults calls
/// this before it unmasks interrupts.
#[cfg(target_arch = "riscv64")]
pub(crate) fn forget_refused(address: usize) {
    if let Some(engine) = ENGINE.get() {
        engine.machine().processor().forget_refused(address as u64);
    }
}

/// Handles the flush interrupt. An interrupt that comes before the engine exists is not its own.
pub(crate) fn handle_flush_ipi() {
    if let Some(engine) = ENGINE.get() {
        with_pinned_of(engine, |pin| pin.handle_flush_ipi());
    }
}

/// Drops the translations under the loaded tag, of user memory and of kernel pages that are not
/// global. With PCIDs, the root must be loaded again with its tag.
pub(crate) fn reload_current_root() {
    if let Some(engine) = ENGINE.get() {
        engine.machine().processor().invalidate_tag(Tag::KERNEL);
    } else {
        crate::arch::mm::tlb_flush_all_excluding_global();
    }
}

/// Waits until the flush is done, with interrupts masked: then two CPUs that flush at the same time
/// answer each other without an interrupt.
pub(in crate::mm) fn wait(pending: &mut FlushPending) {
    if !pending.waiting().is_empty() {
        let _guard = irq::disable_local();
        pending.wait();
    }
}

/// Flushes kernel pages on all CPUs. `None` if that is done already: before the engine exists, no
/// other CPU runs, and a CPU that comes online later empties its TLB.
pub(in crate::mm) fn flush_kernel(extents: &ExtentSet) -> Option<FlushPending> {
    let Some(engine) = ENGINE.get().filter(|_| measure::notifies()) else {
        crate::arch::mm::tlb_flush_all_including_global();
        return None;
    };
    let mut pending = Pending::done(engine);
    with_pinned(|pin| {
        for &extent in extents.as_slice() {
            pending.join(pin.flush_kernel(extent));
        }
    });
    Some(pending)
}
