//! The hypervisor's second engine, whose spaces are guests.

#![expect(unsafe_code, reason = "implements the kernel's half of the engine's contract")]

use core::ptr::NonNull;

use shootdown::{CpuId, CpuSet, CpuState, EngineCell, Extent, PinnedCpu, Root, Shootdown, Space};
use shootdown_hw::{Bare, Kernel, LastVcpu, Processor as _, Stage2 as _, Vcpu};

use crate::kernel::arch::{Arch, Architecture, Interrupt, guest};
use crate::kernel::boot_memory::BootMemory;
use crate::kernel::fault_injection::fault::{Fault, Faulty, is_injected};
use crate::kernel::sync::masked;

pub(super) type Machine = Bare<Hypervisor>;

/// The kernel's half of the second machine.
#[derive(Debug)]
pub(super) struct Hypervisor {
    cpus: &'static [CpuState<Machine>],
    empty: Root,
}

// SAFETY: CPUs keep their numbers, and their states stay allocated. The architecture's `send` makes
// earlier stores visible to the CPU that takes the interrupt. The empty table is never freed.
unsafe impl Kernel for Hypervisor {
    type Processor = Faulty<guest::Stage2>;
    type CpuBits = [u64; 1];

    fn state(&self, cpu: CpuId) -> &CpuState<Machine> {
        &self.cpus[cpu.index()]
    }
    fn cpu(&self) -> CpuId {
        CpuId(Arch::cpu())
    }
    /// Fewer than VMIDs, without which the engine does not broadcast.
    fn cpu_limit(&self) -> usize {
        self.cpus.len()
    }
    fn root(&self) -> Root {
        self.empty
    }
    fn ring(&self, cpus: &CpuSet<Self::CpuBits>) {
        Arch::send(&mut cpus.iter().map(|cpu| cpu.0), Interrupt::Flush);
    }
    fn wait_hint(&self, _: &CpuSet<Self::CpuBits>) {
        Arch::spin_hint();
    }
    fn reclaim(&self, _: NonNull<Space<Machine>>) {
        unreachable!("guests are not retired");
    }
}

// In the architecture's assembly.
unsafe extern "C" {
    static guest_code_start: u8;
    static guest_code_end: u8;
}

/// The code of guests, which is position-independent.
pub(super) fn guest_code() -> &'static [u8] {
    let (start, end) = (&raw const guest_code_start, &raw const guest_code_end);
    // SAFETY: the code lies between the two symbols, and is never written.
    unsafe { core::slice::from_raw_parts(start, end.addr() - start.addr()) }
}

static ENGINE: EngineCell<Machine> = EngineCell::new();

/// Creates the engine. Call this on the first CPU, before there are others.
pub(super) fn set_up(memory: &mut BootMemory, cpus: u32) {
    let cpus = memory.keep(cpus as usize, |_| CpuState::new());
    let empty = Root(memory.guest_root().address());
    let processor = Faulty { processor: guest::processor(empty), drop_in_part };
    // SAFETY: this is the first CPU, and no other one runs yet.
    unsafe { ENGINE.init(Bare::new(Hypervisor { cpus, empty }, processor)) };
}

/// Drops what the injected fault leaves, if it is one that drops a part.
fn drop_in_part(processor: &guest::Stage2, extent: Extent) -> bool {
    if is_injected(Fault::CombinedIsKept) {
        guest::drop_stage_2_alone(extent);
    } else if is_injected(Fault::Stage2IsKept) {
        processor.invalidate_vcpu(0);
    } else {
        return false;
    }
    true
}

/// Returns `true` if there is an engine.
pub(super) fn exists() -> bool {
    ENGINE.find().is_some()
}

pub(super) fn engine() -> &'static Shootdown<Machine> {
    &ENGINE
}

/// The processor without a fault.
pub(super) fn processor() -> &'static guest::Stage2 {
    &engine().machine().processor().processor
}

/// Takes this CPU online in the engine.
pub(super) fn come_online() {
    guest::set_up_cpu(engine().machine().kernel().empty);
    // SAFETY: `boot.s` and `guest::set_up_cpu` have set up this CPU.
    unsafe { processor().set_up_cpu() };
    with_pinned(PinnedCpu::online);
}

/// Makes this CPU use a guest, for a virtual CPU. `last` is the guest's record on this CPU. Call
/// this with interrupts masked.
pub(super) fn enter(guest: &'static Space<Machine>, vcpu: &Vcpu, last: &LastVcpu) {
    // SAFETY: guests and their tables stay allocated.
    with_pinned(|pin| unsafe { pin.switch(guest) });
    if !is_injected(Fault::MoveIsIgnored) {
        processor().enter_vcpu(CpuId(Arch::cpu()), vcpu, last);
    }
}

/// Calls `f` with the pin guard of this CPU and with interrupts masked.
pub(super) fn with_pinned<R>(f: impl FnOnce(&PinnedCpu<'static, Machine>) -> R) -> R {
    // SAFETY: interrupts are masked, and nothing moves this thread to another CPU.
    masked(|| f(&unsafe { engine().pin() }))
}
