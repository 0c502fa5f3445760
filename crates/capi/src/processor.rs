//! Functions of the processor that a kernel calls: for interrupts between CPUs, for its handler of
//! page faults, and where it maps its own pages.

#![expect(unsafe_code, reason = "the C interface: the kernel promises what Rust's types enforce")]

use core::slice;

use shootdown_hw::{Ipi as _, Processor as _};

use crate::engine::engine;
use crate::errata::duties;
use crate::extent::ExtentWord;
use crate::machine::ipi;

/// Sends an interrupt to CPUs, with the barrier that the controller needs. For
/// `shootdown_os_ring`, in a kernel without a driver of its own. In a library with the feature
/// `processor`, like all functions below.
///
/// | processor | controller | `interrupt` | `targets` |
/// |---|---|---|---|
/// | x86-64 | local APIC in x2APIC mode | vector, 16 to 255 | x2APIC IDs |
/// | AArch64 | GICv3 or later, EOImode 0 | SGI, 0 to 15 | affinities, as in MPIDR_EL1 |
/// | RISC-V | firmware (SBI) | 0 | numbers of harts |
/// | RISC-V | ACLINT's SSWI | address of `SETSSIP` of hart 0 | indices of harts |
/// | RISC-V | CLINT, or ACLINT's MSWI | address of `MSIP` of hart 0 | indices of harts |
/// | LoongArch64 | IOCSR | 0 to 31 | numbers of cores |
///
/// Interrupts: yes. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 384.
///
/// The store to `MSIP` interrupts M-mode, whose handler stores 0 to the register and then sets
/// `mip.SSIP`. The address is one at which each root maps the registers on which the kernel runs.
///
/// # Safety
///
/// `targets` has `count` numbers. Each CPU has its controller set up as in the table, and has a
/// handler of the interrupt, which calls `shootdown_acknowledge_ipi` and then
/// `shootdown_handle_flush_ipi`.
///
/// # Panics
///
/// If `interrupt` is out of range, or if the firmware refuses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_send_ipi(interrupt: u64, targets: *const u64, count: usize) {
    // SAFETY: the caller's promises.
    unsafe { ipi(interrupt).send(slice::from_raw_parts(targets, count).iter().copied()) };
}

/// Acknowledges the interrupt `interrupt` of `shootdown_send_ipi` on the CPU that has taken it.
/// Call this before `shootdown_handle_flush_ipi`: a CPU that rings in the meantime then causes
/// another interrupt.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 128.
///
/// # Safety
///
/// In the handler of the interrupt. On AArch64, the handler has read the number from
/// `ICC_IAR1_EL1`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_acknowledge_ipi(interrupt: u64) {
    // SAFETY: the caller's promise.
    unsafe { ipi(interrupt) }.acknowledge();
}

/// The duties that errata of the processor leave to the kernel: flags `SHOOTDOWN_DUTY_…`; 0 if
/// there are none.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// Masked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_duties() -> u32 {
    duties(engine().machine().processor().workarounds())
}

/// Makes this CPU forget that an access to `address` was refused.
///
/// Call this in the handler of page faults, on the CPU that took the fault, before the access is
/// tried again. No flush follows a change that only makes more accesses valid, so a CPU that caches
/// refused accesses (Arm, RISC-V and LoongArch do) would fault again and again.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 256.
///
/// # Safety
///
/// Masked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_forget_refused(address: u64) {
    engine().machine().processor().forget_refused(address);
}

/// Makes new entries for the kernel's pages of `extent` usable by the next access of this CPU. The
/// entries must not have been valid before; otherwise, flush.
///
/// Before another CPU uses the pages, it must observe that they are mapped, by an acquiring load
/// for instance. On RISC-V and LoongArch, which cache missing pages, that CPU must also call this
/// function.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// Masked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_publish_kernel(extent: ExtentWord) {
    engine().machine().processor().publish_kernel(extent.extent());
}
