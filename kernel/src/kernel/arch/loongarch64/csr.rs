//! Control and status registers, and those of the chip that a core reaches by `IOCSR`.

#![expect(unsafe_code, reason = "privileged registers")]

use core::arch::asm;

/// Current mode: privilege, interrupts, translation.
pub(super) const CRMD: u32 = 0x0;
/// Which units are on that user code may have.
pub(super) const EUEN: u32 = 0x2;
/// Which interrupts are let in, one by one.
pub(super) const ECFG: u32 = 0x4;
/// What an exception is, and which interrupts are pending.
pub(super) const ESTAT: u32 = 0x5;
/// The address that could not be translated.
pub(super) const BADV: u32 = 0x7;
/// The instruction that raised an exception.
pub(super) const BADI: u32 = 0x8;
/// Where exceptions are entered.
pub(super) const EENTRY: u32 = 0xc;
/// Index and page size of TLB instructions.
pub(super) const TLBIDX: u32 = 0x10;
pub(super) const ASID: u32 = 0x18;
/// Roots of the lower and the upper half.
pub(super) const PGDL: u32 = 0x19;
pub(super) const PGDH: u32 = 0x1a;
pub(super) const PWCL: u32 = 0x1c;
pub(super) const PWCH: u32 = 0x1d;
/// Page size of the set-associative part of the TLB.
pub(super) const STLBPS: u32 = 0x1e;
pub(super) const CPUID: u32 = 0x20;
pub(super) const TCFG: u32 = 0x41;
pub(super) const TICLR: u32 = 0x44;
/// Where TLB refills are entered, and the page size of what they fill in.
pub(super) const TLBRENTRY: u32 = 0x88;
pub(super) const TLBREHI: u32 = 0x8e;

/// Reads a register.
#[inline]
pub(super) fn read<const CSR: u32>() -> u64 {
    let value;
    // SAFETY: reading has no effect on any register that is read here.
    unsafe { asm!("csrrd {}, {}", out(reg) value, const CSR, options(nostack, preserves_flags)) };
    value
}

/// Writes a register.
///
/// # Safety
///
/// It is the caller's to know what follows.
#[inline]
pub(super) unsafe fn write<const CSR: u32>(value: u64) {
    // SAFETY: our caller's promise. The old value is given back, and not wanted.
    unsafe {
        asm!("csrwr {}, {}", inout(reg) value => _, const CSR, options(nostack, preserves_flags));
    }
}

/// Writes the bits of `mask`.
///
/// # Safety
///
/// As [`write`].
#[inline]
pub(super) unsafe fn write_bits<const CSR: u32>(mask: u64, value: u64) {
    // SAFETY: our caller's promise.
    unsafe {
        // The mask in this register, for with $r0 or $r1 it would be another instruction.
        asm!(
            "csrxchg {}, $r12, {}", inout(reg) value => _, const CSR, in("$r12") mask,
            options(nostack, preserves_flags),
        );
    }
}

/// Reads 32 bits of the chip's.
#[inline]
pub(super) fn read_chip(address: u64) -> u32 {
    let value: u64;
    // SAFETY: those that are read here have no effect.
    unsafe {
        asm!("iocsrrd.w {}, {}", out(reg) value, in(reg) address,
            options(nostack, preserves_flags));
    }
    value as u32
}

/// Writes 32 bits of the chip's.
///
/// # Safety
///
/// It is the caller's to know what follows.
#[inline]
pub(super) unsafe fn write_chip(address: u64, value: u32) {
    // SAFETY: our caller's promise.
    unsafe {
        asm!("iocsrwr.w {}, {}", in(reg) value, in(reg) address,
            options(nostack, preserves_flags));
    }
}

/// Writes 64 bits of the chip's.
///
/// # Safety
///
/// It is the caller's to know what follows.
#[inline]
pub(super) unsafe fn write_chip_double(address: u64, value: u64) {
    // SAFETY: our caller's promise.
    unsafe {
        asm!("iocsrwr.d {}, {}", in(reg) value, in(reg) address,
            options(nostack, preserves_flags));
    }
}
