//! The instructions, each as a function. They need S-mode.
//!
//! All but the reads of registers are also compiler barriers: earlier stores to page tables are not
//! moved after them.

#![expect(unsafe_code, reason = "privileged instructions")]
#![allow(clippy::inline_always, reason = "one instruction each")]

use core::arch::asm;

use super::sbi::Call;

/// Runs an instruction that drops cached translations or orders accesses.
macro_rules! run {
    ($instruction:expr $(, $operand:expr)*) => {
        // SAFETY: a dropped translation is walked again when it is needed, and a barrier changes no
        // registers and no memory.
        unsafe { asm!($instruction, $(in(reg) $operand,)* options(nostack, preserves_flags)) }
    };
}

/// An instruction of Svinval, for which the compiler's target need not have the extension.
macro_rules! svinval {
    ($instruction:literal) => {
        concat!(".option push\n.option arch, +svinval\n", $instruction, "\n.option pop")
    };
}

/// Reads `satp`.
#[inline(always)]
pub(crate) fn satp() -> u64 {
    let value;
    // SAFETY: reading has no effect. It is not `pure`, because the register changes.
    unsafe { asm!("csrr {}, satp", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Writes `satp`.
///
/// # Safety
///
/// The root in `value` must be a valid page table that maps the kernel, and stay valid while it is
/// loaded. The translations that are cached under the ASID must be valid.
#[inline(always)]
pub(crate) unsafe fn set_satp(value: u64) {
    // SAFETY: the caller's promise.
    unsafe { asm!("csrw satp, {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// Returns `true` if `sstatus.SIE` is clear.
#[inline(always)]
pub(crate) fn interrupts_masked() -> bool {
    const SIE: u64 = 1 << 1;
    let value: u64;
    // SAFETY: reading has no effect.
    unsafe { asm!("csrr {}, sstatus", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value & SIE == 0
}

/// `SFENCE.VMA` for everything.
#[inline(always)]
pub(crate) fn drop_all() {
    run!("sfence.vma");
}

/// `SFENCE.VMA` for an ASID.
#[inline(always)]
pub(crate) fn drop_asid(asid: u64) {
    run!("sfence.vma x0, {}", asid);
}

/// `SFENCE.VMA` for an address, under an ASID or all.
#[inline(always)]
pub(crate) fn drop_page(address: u64, asid: Option<u64>) {
    match asid {
        Some(asid) => run!("sfence.vma {}, {}", address, asid),
        None => run!("sfence.vma {}", address),
    }
}

/// `SFENCE.W.INVAL`: completes earlier stores before each [`invalidate_page`] that follows.
#[inline(always)]
pub(crate) fn begin_invalidations() {
    run!(svinval!("sfence.w.inval"));
}

/// `SINVAL.VMA` for an address, under an ASID or all.
#[inline(always)]
pub(crate) fn invalidate_page(address: u64, asid: Option<u64>) {
    match asid {
        Some(asid) => run!(svinval!("sinval.vma {}, {}"), address, asid),
        None => run!(svinval!("sinval.vma {}, x0"), address),
    }
}

/// `SFENCE.INVAL.IR`: completes each earlier [`invalidate_page`] before any later walk.
#[inline(always)]
pub(crate) fn end_invalidations() {
    run!(svinval!("sfence.inval.ir"));
}

/// An instruction of the hypervisor extension, for which the compiler's target need not have it.
macro_rules! hypervisor {
    ($instruction:literal) => {
        concat!(".option push\n.option arch, +h\n", $instruction, "\n.option pop")
    };
}

/// Reads `hgatp`.
#[inline(always)]
pub(crate) fn hgatp() -> u64 {
    let value;
    // SAFETY: reading has no effect. (0x680 is the register's number.)
    unsafe { asm!("csrr {}, 0x680", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Writes `hgatp`.
///
/// # Safety
///
/// The root in `value` must be a valid table of the second stage, and stay valid while it is
/// loaded. The translations that are cached under the VMID must be valid.
#[inline(always)]
pub(crate) unsafe fn set_hgatp(value: u64) {
    // SAFETY: the caller's promise.
    unsafe { asm!("csrw 0x680, {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// `HFENCE.GVMA` for everything.
#[inline(always)]
pub(crate) fn drop_all_guests() {
    run!(hypervisor!("hfence.gvma x0, x0"));
}

/// `HFENCE.GVMA` for a VMID.
#[inline(always)]
pub(crate) fn drop_guest(vmid: u64) {
    run!(hypervisor!("hfence.gvma x0, {}"), vmid);
}

/// `HFENCE.GVMA` for a guest physical address, which is shifted right by two bits, under a VMID.
#[inline(always)]
pub(crate) fn drop_guest_page(shifted: u64, vmid: u64) {
    run!(hypervisor!("hfence.gvma {}, {}"), shifted, vmid);
}

/// `HFENCE.VVMA` for everything under the VMID that is loaded.
#[inline(always)]
pub(crate) fn drop_guests_own() {
    run!(hypervisor!("hfence.vvma x0, x0"));
}

/// Completes earlier stores before any later access to memory.
#[inline(always)]
pub(crate) fn fence_stores() {
    run!("fence w, rw");
}

/// Completes all accesses to memory before any later one.
#[inline(always)]
pub(crate) fn fence_memory() {
    run!("fence rw, rw");
}

/// Completes all accesses to memory and devices before any later one.
#[inline(always)]
pub(crate) fn fence_all() {
    run!("fence iorw, iorw");
}

/// Stores to a register of a device, after all earlier accesses in program order.
///
/// # Safety
///
/// The register must exist, and the effect of the value must be safe.
#[inline(always)]
pub(crate) unsafe fn store_to_device(address: usize, value: u32) {
    // SAFETY: the caller's promise. Any access of a pointer may follow from the block.
    unsafe {
        asm!("sw {}, ({})", in(reg) value, in(reg) address, options(nostack, preserves_flags));
    }
}

/// Clears `sip.SSIP`.
#[inline(always)]
pub(crate) fn clear_software_interrupt() {
    const SSIP: u64 = 1 << 1;
    // SAFETY: the caller handles the interrupt.
    unsafe { asm!("csrc sip, {}", in(reg) SSIP, options(nostack, preserves_flags)) };
}

/// Calls the firmware, and returns the value or the error.
#[inline]
pub(crate) fn call_firmware(call: Call) -> Result<u64, i64> {
    let Call { extension, function, arguments: [a0, a1, a2, a3, a4] } = call;
    let (error, value): (i64, u64);
    // SAFETY: interrupts and fences change no memory. Firmware preserves all registers but a0 and
    // a1.
    unsafe {
        asm!(
            "ecall",
            inlateout("a0") a0 => error, inlateout("a1") a1 => value,
            in("a2") a2, in("a3") a3, in("a4") a4, in("a6") function, in("a7") extension,
            options(nostack),
        );
    }
    if error == 0 { Ok(value) } else { Err(error) }
}
