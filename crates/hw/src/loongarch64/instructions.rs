//! The instructions, each as a function. At PLV0 alone.

#![expect(unsafe_code, reason = "privileged instructions")]
#![allow(clippy::inline_always, reason = "one instruction each")]

use core::arch::asm;

use super::encoding::ASID_CSR;

/// CSR.CRMD.
#[inline(always)]
pub(crate) fn read_mode() -> u64 {
    let value;
    // SAFETY: reads a register. Not `pure`: interrupts are masked and let in between.
    unsafe { asm!("csrrd {}, 0x0", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// CSR.ASID.
#[inline(always)]
pub(crate) fn read_asid() -> u64 {
    let value;
    // SAFETY: as above.
    unsafe {
        asm!(
            "csrrd {}, {csr}", out(reg) value, csr = const ASID_CSR,
            options(nomem, nostack, preserves_flags),
        );
    }
    value
}

/// CSR.ASID. `CSRWR` gives back what was there, which nobody wants.
///
/// # Safety
///
/// What is translated from now on is what is cached under that ASID.
#[inline(always)]
pub(crate) unsafe fn write_asid(operand: u64) {
    // SAFETY: our caller's promise. No `nomem`: accesses stay on their side of it.
    unsafe {
        asm!(
            "csrwr {}, {csr}", inout(reg) operand => _, csr = const ASID_CSR,
            options(nostack, preserves_flags),
        );
    }
}

/// CSR.PGDL, the root of the lower half.
///
/// # Safety
///
/// It is a page table, and stays one.
#[inline(always)]
pub(crate) unsafe fn write_root(root: u64) {
    // SAFETY: our caller's promise.
    unsafe {
        asm!("csrwr {}, 0x19", inout(reg) root => _, options(nostack, preserves_flags));
    }
}

/// `INVTLB`. No translation that goes is one that the compiler could rely on.
#[inline(always)]
pub(crate) fn invtlb<const OP: u32>(asid: u64, address: u64) {
    const { assert!(OP <= 6, "the others are for hypervisors, or reserved") };
    // SAFETY: what is dropped is loaded anew when it is needed.
    unsafe {
        asm!(
            "invtlb {op}, {}, {}", in(reg) asid, in(reg) address, op = const OP,
            options(nostack, preserves_flags),
        );
    }
}

/// `DBAR 0`: completes all accesses before all that follow.
#[inline(always)]
pub(crate) fn complete_all() {
    // SAFETY: a barrier.
    unsafe { asm!("dbar 0", options(nostack, preserves_flags)) };
}
