//! The flush interrupt, which is the software interrupt that all calls of other CPUs share.
//!
//! The framework's general inter-processor call takes a lock and may allocate. The engine's handler
//! must do neither, and so comes before the general one.

use riscv::register::sip;

use super::{HwCpuId, ipi};
use crate::{cpu::PinCurrentCpu, mm::coherence, smp};

/// Handles a software interrupt. Returns whether other CPUs have requested general calls as well.
pub(in crate::arch) fn handle() -> bool {
    // Cleared before the work: an interrupt that is sent from now on comes again.
    // SAFETY: the lines below, and the caller, do the work.
    unsafe { sip::clear_ssoft() };
    order_after_clear();
    coherence::handle_flush_ipi();
    smp::has_calls()
}

/// Orders the write of a register, which counts as output to a device, before later accesses to
/// memory.
fn order_after_clear() {
    // SAFETY: a barrier changes no registers and no memory.
    unsafe { core::arch::asm!("fence iorw, iorw", options(nostack, preserves_flags)) };
}

/// Sends the flush interrupt to `targets`. Each handler observes all earlier stores of this CPU.
pub(crate) fn send(targets: impl Iterator<Item = HwCpuId>, _: &dyn PinCurrentCpu) {
    shootdown_hw::riscv64::sbi::send_ipis(targets.map(|target| ipi::number(target).into()));
}
