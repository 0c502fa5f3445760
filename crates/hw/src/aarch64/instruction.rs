//! The instructions themselves. Each is for EL1, and would trap below.
//!
//! All but reads of registers are barriers for the compiler, too: what it has written to page
//! tables before is in memory, or on its way.

#![expect(unsafe_code, reason = "these are the processor's instructions")]

use core::arch::asm;

use crate::aarch64::features::{Features, Registers};
use crate::aarch64::operation::{Domain, Operation};

/// Reads a system register.
macro_rules! read {
    ($register:literal) => {{
        let value: u64;
        // SAFETY: to read it changes nothing.
        unsafe {
            asm!(
                concat!("mrs {}, ", $register), out(reg) value,
                options(nomem, nostack, preserves_flags),
            );
        }
        value
    }};
}

/// Runs an instruction that has no operands.
macro_rules! run {
    ($instruction:literal) => {
        // SAFETY: a barrier or a hint changes nothing that the program computes with.
        unsafe { asm!($instruction, options(nostack, preserves_flags)) }
    };
}

impl Features {
    /// What this CPU can do, and how its kernel has set it up. At EL1 only, after `TCR_EL1` has
    /// been written.
    #[must_use]
    pub fn detect() -> Self {
        let tcr = read!("tcr_el1");
        debug_assert!(tcr >> 22 & 1 == 0, "the ASID is in TTBR0: TCR_EL1.A1 must be 0");
        Self::of(&Registers {
            tcr,
            isar0: read!("id_aa64isar0_el1"),
            mmfr0: read!("id_aa64mmfr0_el1"),
            mmfr1: read!("id_aa64mmfr1_el1"),
            mmfr2: read!("id_aa64mmfr2_el1"),
            cntfrq: read!("cntfrq_el0"),
        })
    }
}

/// Issues an operation.
#[inline]
pub(crate) fn tlbi(operation: Operation, domain: Domain) {
    /// The functions for all groups (`CRm`) and operations (`op2`) that there are.
    macro_rules! system {
        ($code:expr, $operand:expr, { $($group:literal: [$($operation:literal)*])* }) => {
            match $code {
                $($(($group, $operation) => system::<$group, $operation>($operand),)*)*
                (group, operation) => unreachable!("there is no TLBI C{group}, #{operation}"),
            }
        };
    }
    system!(operation.code(domain), operation.operand(), {
        2: [1 3 5 7]
        3: [0 1 2 3 5 7]
        6: [1 3 5 7]
        7: [0 1 2 3 5 7]
    });
}

#[inline]
fn system<const GROUP: u8, const OPERATION: u8>(operand: u64) {
    // SAFETY: a translation that is dropped is walked again; who takes one away in the tables has
    // seen to it that nobody needs it.
    unsafe {
        asm!(
            "sys #0, c8, c{group}, #{operation}, {operand}",
            group = const GROUP,
            operation = const OPERATION,
            operand = in(reg) operand,
            options(nostack, preserves_flags),
        );
    }
}

/// Earlier stores are visible to all walkers before anything that follows.
#[inline]
pub(crate) fn publish() {
    run!("dsb ishst");
}

/// Earlier operations have taken effect, here.
#[inline]
pub(crate) fn complete_local() {
    run!("dsb nsh");
}

/// Earlier operations have taken effect, everywhere, and so have accesses by what they dropped.
#[inline]
pub(crate) fn complete_shared() {
    run!("dsb ish");
}

/// What follows is fetched, and translated, anew.
#[inline]
pub(crate) fn synchronize() {
    run!("isb");
}

/// A turn of a loop that waits: who emulates or hosts this CPU may give the turn to another.
#[inline]
pub(crate) fn spin_hint() {
    run!("yield");
}

#[inline]
pub(crate) fn prefetch(address: *const u64) {
    // SAFETY: a hint faults nowhere.
    unsafe {
        asm!("prfm pldl1keep, [{}]", in(reg) address, options(readonly, nostack, preserves_flags));
    }
}

/// The user's table and ASID.
#[inline]
pub(crate) fn ttbr0() -> u64 {
    let value: u64;
    // SAFETY: to read it changes nothing. It is not `pure`: it is read anew after each write.
    unsafe { asm!("mrs {}, ttbr0_el1", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Walks and lookups are by this table and ASID from the next [`synchronize`] on.
///
/// # Safety
///
/// It must be a valid table, and stay one while it is loaded.
#[inline]
pub(crate) unsafe fn set_ttbr0(value: u64) {
    // SAFETY: as our caller promises; the kernel's own addresses are in TTBR1.
    unsafe { asm!("msr ttbr0_el1, {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// Whether `PSTATE.I` is set.
#[inline]
pub(crate) fn interrupts_masked() -> bool {
    const I: u64 = 1 << 7;
    let value: u64;
    // SAFETY: to read it changes nothing. It has memory clobbered, so that it stays where it is.
    unsafe { asm!("mrs {}, daif", out(reg) value, options(nostack, preserves_flags)) };
    value & I != 0
}

/// The counter, not before what has been completed before. (`isb`: it may be read early.)
#[inline]
pub(crate) fn counter() -> u64 {
    synchronize();
    let value: u64;
    // SAFETY: to read it changes nothing.
    unsafe { asm!("mrs {}, cntvct_el0", out(reg) value, options(nostack, preserves_flags)) };
    value
}
