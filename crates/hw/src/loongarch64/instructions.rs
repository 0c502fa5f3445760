//! The instructions, each as a function. They need PLV0.

#![expect(unsafe_code, reason = "privileged instructions")]
#![allow(clippy::inline_always, reason = "one instruction each")]

use core::arch::asm;

use super::encoding::ASID_CSR;

/// Reads CSR.CRMD.
#[inline(always)]
pub(crate) fn read_mode() -> u64 {
    let value;
    // SAFETY: reading has no effect. It is not `pure`, because interrupts are masked and unmasked.
    unsafe { asm!("csrrd {}, 0x0", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Reads CSR.ASID.
#[inline(always)]
pub(crate) fn read_asid() -> u64 {
    let value;
    // SAFETY: reading has no effect. It is not `pure`, because the ASID changes.
    unsafe {
        asm!(
            "csrrd {}, {csr}", out(reg) value, csr = const ASID_CSR,
            options(nomem, nostack, preserves_flags),
        );
    }
    value
}

/// Writes CSR.ASID. `CSRWR` also returns the old value, which is not used.
///
/// # Safety
///
/// From now on, the TLB translates with the pairs that are cached under that ASID. They must be
/// valid.
#[inline(always)]
pub(crate) unsafe fn write_asid(operand: u64) {
    // SAFETY: the caller's promise. There is no `nomem`, so that the compiler moves no access
    // across.
    unsafe {
        asm!(
            "csrwr {}, {csr}", inout(reg) operand => _, csr = const ASID_CSR,
            options(nostack, preserves_flags),
        );
    }
}

/// Writes CSR.PGDL, the root of the lower half.
///
/// # Safety
///
/// `root` must be a valid page table, and stay valid while it is loaded.
#[inline(always)]
pub(crate) unsafe fn write_root(root: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("csrwr {}, 0x19", inout(reg) root => _, options(nostack, preserves_flags));
    }
}

/// Executes `INVTLB`. The compiler cannot rely on any translation that is dropped.
#[inline(always)]
pub(crate) fn invtlb<const OP: u32>(asid: u64, address: u64) {
    const { assert!(OP <= 6, "other operations are for hypervisors, or reserved") };
    // SAFETY: a dropped translation is loaded again when it is needed.
    unsafe {
        asm!(
            "invtlb {op}, {}, {}", in(reg) asid, in(reg) address, op = const OP,
            options(nostack, preserves_flags),
        );
    }
}

/// Executes `DBAR 0`: completes all earlier accesses before any later access.
#[inline(always)]
pub(crate) fn complete_all() {
    // SAFETY: a barrier changes no registers and no memory.
    unsafe { asm!("dbar 0", options(nostack, preserves_flags)) };
}

/// Writes 32 bits of an IOCSR, a register of the chip.
///
/// # Safety
///
/// The effect of the value must be safe.
#[inline(always)]
pub(crate) unsafe fn write_iocsr(register: u64, value: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("iocsrwr.w {}, {}", in(reg) value, in(reg) register,
            options(nostack, preserves_flags));
    }
}
