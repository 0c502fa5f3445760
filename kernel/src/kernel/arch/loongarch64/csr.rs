//! Control and status registers, and registers of the chip, which a core accesses by `IOCSR`.

#![expect(unsafe_code, reason = "privileged registers")]

use core::arch::asm;

/// Current mode: privilege, interrupts, translation.
pub(super) const CRMD: u32 = 0x0;
/// The extension units that are enabled.
pub(super) const EUEN: u32 = 0x2;
/// The interrupts that are enabled.
pub(super) const ECFG: u32 = 0x4;
/// The cause of an exception, and the pending interrupts.
pub(super) const ESTAT: u32 = 0x5;
/// The address that could not be translated.
pub(super) const BADV: u32 = 0x7;
/// The instruction that raised an exception.
pub(super) const BADI: u32 = 0x8;
/// Address of the exception handler.
pub(super) const EENTRY: u32 = 0xc;
/// Index and page size for TLB instructions.
pub(super) const TLBIDX: u32 = 0x10;
pub(super) const ASID: u32 = 0x18;
/// Roots of the lower and of the upper half.
pub(super) const PGDL: u32 = 0x19;
pub(super) const PGDH: u32 = 0x1a;
pub(super) const PWCL: u32 = 0x1c;
pub(super) const PWCH: u32 = 0x1d;
/// Page size of the set-associative part of the TLB.
pub(super) const STLBPS: u32 = 0x1e;
pub(super) const CPUID: u32 = 0x20;
pub(super) const TCFG: u32 = 0x41;
pub(super) const TICLR: u32 = 0x44;
/// Address of the TLB refill handler, and the page size for refills.
pub(super) const TLBRENTRY: u32 = 0x88;
pub(super) const TLBREHI: u32 = 0x8e;

/// Reads a register.
#[inline]
pub(super) fn read<const CSR: u32>() -> u64 {
    let value;
    // SAFETY: reading the registers that are read here has no side effect.
    unsafe { asm!("csrrd {}, {}", out(reg) value, const CSR, options(nostack, preserves_flags)) };
    value
}

/// Writes a register.
///
/// # Safety
///
/// The caller must ensure that the effect of the new value is safe.
#[inline]
pub(super) unsafe fn write<const CSR: u32>(value: u64) {
    // SAFETY: the caller's promise. The instruction also returns the old value, which is not used.
    unsafe {
        asm!("csrwr {}, {}", inout(reg) value => _, const CSR, options(nostack, preserves_flags));
    }
}

/// Writes the bits of a register that are set in `mask`.
///
/// # Safety
///
/// The caller must ensure that the effect of the new value is safe.
#[inline]
pub(super) unsafe fn write_bits<const CSR: u32>(mask: u64, value: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        // The mask is in this register because with $r0 or $r1 it would be another instruction.
        asm!(
            "csrxchg {}, $r12, {}", inout(reg) value => _, const CSR, in("$r12") mask,
            options(nostack, preserves_flags),
        );
    }
}

/// Reads 32 bits of a register of the chip.
#[inline]
pub(super) fn read_chip(address: u64) -> u32 {
    let value: u64;
    // SAFETY: reading the registers that are read here has no side effect.
    unsafe {
        asm!("iocsrrd.w {}, {}", out(reg) value, in(reg) address,
            options(nostack, preserves_flags));
    }
    value as u32
}

/// Writes 32 bits of a register of the chip.
///
/// # Safety
///
/// The caller must ensure that the effect of the new value is safe.
#[inline]
pub(super) unsafe fn write_chip(address: u64, value: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("iocsrwr.w {}, {}", in(reg) value, in(reg) address,
            options(nostack, preserves_flags));
    }
}

/// Writes 64 bits of a register of the chip.
///
/// # Safety
///
/// The caller must ensure that the effect of the new value is safe.
#[inline]
pub(super) unsafe fn write_chip_double(address: u64, value: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("iocsrwr.d {}, {}", in(reg) value, in(reg) address,
            options(nostack, preserves_flags));
    }
}
