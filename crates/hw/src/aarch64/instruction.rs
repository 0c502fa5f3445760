//! The instructions. They need EL1, and trap at EL0.
//!
//! All but the reads of registers are also compiler barriers: earlier stores to page tables are not
//! moved after them.

#![expect(unsafe_code, reason = "executes privileged instructions")]

use core::arch::asm;

use crate::aarch64::features::{Features, Registers};
use crate::aarch64::operation::{Domain, Operation};
use crate::aarch64::settings::FlushInterrupt;
use crate::aarch64::stage2::GuestOperation;

/// Reads a system register.
macro_rules! read {
    ($register:literal) => {{
        let value: u64;
        // SAFETY: reading the register has no effect.
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
        // SAFETY: a barrier or a hint changes no registers and no memory.
        unsafe { asm!($instruction, options(nostack, preserves_flags)) }
    };
}

impl Features {
    /// Detects the features of this CPU and the kernel's settings. Call this at EL1, after
    /// `TCR_EL1` has been written.
    ///
    /// # Panics
    ///
    /// If `TCR_EL1.A1` is 1.
    #[must_use]
    pub fn detect() -> Self {
        let tcr = read!("tcr_el1");
        assert!(tcr >> 22 & 1 == 0, "the ASID is in TTBR0: TCR_EL1.A1 must be 0");
        Self::of(&registers(tcr))
    }

    /// Detects the features of this CPU and the hypervisor's settings for stage 2. Call this at
    /// EL2, after `VTCR_EL2` has been written.
    #[must_use]
    pub fn detect_stage_2() -> Self {
        Self::of_stage_2(&registers(read!("vtcr_el2")))
    }
}

fn registers(tcr: u64) -> Registers {
    let mut registers = Registers {
        tcr,
        midr: read!("midr_el1"),
        pfr1: read!("id_aa64pfr1_el1"),
        isar0: read!("id_aa64isar0_el1"),
        mmfr0: read!("id_aa64mmfr0_el1"),
        mmfr1: read!("id_aa64mmfr1_el1"),
        mmfr2: read!("id_aa64mmfr2_el1"),
        // ID_AA64MMFR4_EL1, which older assemblers do not name. It is 0 on older processors.
        mmfr4: read!("s3_0_c0_c7_4"),
        tlbididr: 0,
        cntfrq: read!("cntfrq_el0"),
    };
    if registers.has_domains() {
        // TLBIDIDR_EL1, which other processors do not have.
        registers.tlbididr = read!("s3_0_c10_c4_6");
    }
    registers
}

/// Calls a function for each level (op1), group (`CRm`) and operation (op2) that exists. The
/// operations after `no` have no operand.
macro_rules! system {
    (
        $code:expr, $operand:expr,
        { $($level:literal $group:literal: [$($operation:literal)* $(; no $whole:literal)*])* }
    ) => {
        match $code {
            $($(
                ($level, $group, $operation) => system::<$level, $group, $operation>($operand),
            )*)*
            $($(
                ($level, $group, $whole) => system_without_operand::<$level, $group, $whole>(),
            )*)*
            (level, group, operation) => {
                unreachable!("there is no TLBI #{level}, C{group}, #{operation}")
            }
        }
    };
}

/// Executes a `TLBI`. Where the kind of operation is known, this is one instruction.
#[inline(always)]
pub(crate) fn tlbi(operation: Operation, domain: Domain) {
    let (group, number) = operation.code(domain);
    system!((0, group, number), operation.operand(), {
        0 2: [1 3 5 7]
        0 3: [1 2 3 5 7; no 0]
        0 6: [1 3 5 7]
        0 7: [1 2 3 5 7; no 0]
    });
}

/// Executes a `TLBI` at EL2.
#[inline]
pub(crate) fn tlbi_el2(operation: GuestOperation, domain: Domain) {
    system!(operation.code(domain), operation.operand(), {
        0 3: [; no 0]
        0 7: [; no 0]
        4 0: [1 2 5 6]
        4 2: [1 5]
        4 3: [1 5; no 0; no 4; no 6]
        4 4: [1 2 5 6]
        4 6: [1 5]
        4 7: [1 5; no 0; no 4; no 6]
    });
}

#[inline(always)]
fn system<const LEVEL: u8, const GROUP: u8, const OPERATION: u8>(operand: u64) {
    // SAFETY: a dropped translation is walked again. Code that removes one from the tables has
    // ensured that no CPU needs it.
    unsafe {
        asm!(
            "sys #{level}, c8, c{group}, #{operation}, {operand}",
            level = const LEVEL,
            group = const GROUP,
            operation = const OPERATION,
            operand = in(reg) operand,
            options(nostack, preserves_flags),
        );
    }
}

/// Executes an operation on everything. Its register must be XZR: with another one, the operation
/// is constrained unpredictable (C5.5, "TLBI VMALLE1IS"), or names a TLBI domain (`FEAT_TLBID`).
#[inline(always)]
fn system_without_operand<const LEVEL: u8, const GROUP: u8, const OPERATION: u8>() {
    // SAFETY: as in `system`.
    unsafe {
        asm!(
            "sys #{level}, c8, c{group}, #{operation}, xzr",
            level = const LEVEL,
            group = const GROUP,
            operation = const OPERATION,
            options(nostack, preserves_flags),
        );
    }
}

/// Makes earlier stores visible to all walkers before anything that follows.
#[inline]
pub(crate) fn publish() {
    run!("dsb ishst");
}

/// Waits until earlier operations have taken effect on this CPU.
#[inline]
pub(crate) fn complete_local() {
    run!("dsb nsh");
}

/// Waits until earlier operations have taken effect on all CPUs, and accesses by the dropped
/// translations are complete.
#[inline]
pub(crate) fn complete_shared() {
    run!("dsb ish");
}

/// Invalidates the instruction cache of this CPU.
#[inline]
pub(crate) fn invalidate_instructions() {
    run!("ic iallu");
}

/// Fetches and translates all later instructions anew.
#[inline]
pub(crate) fn synchronize() {
    run!("isb");
}

/// Waits until all earlier accesses are complete, those to the interrupt controller included.
#[inline]
pub(crate) fn complete_system() {
    run!("dsb sy");
}

/// Sends an SGI: writes `ICC_SGI1R_EL1`.
///
/// # Safety
///
/// The targets must handle the interrupt.
#[inline]
pub(crate) unsafe fn set_sgi1r(value: u64) {
    // SAFETY: the caller's promise.
    unsafe { asm!("msr s3_0_c12_c11_5, {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// Ends an interrupt: writes `ICC_EOIR1_EL1`.
///
/// # Safety
///
/// The interrupt was acknowledged last of all that have not ended.
#[inline]
pub(crate) unsafe fn set_eoir1(number: u64) {
    // SAFETY: the caller's promise.
    unsafe { asm!("msr s3_0_c12_c12_1, {}", in(reg) number, options(nostack, preserves_flags)) };
}

/// Pauses in a loop that waits: an emulator or a hypervisor may run another CPU.
#[inline]
pub(crate) fn spin_hint() {
    run!("yield");
}

#[inline]
pub(crate) fn prefetch(address: *const u64) {
    // SAFETY: a prefetch never faults.
    unsafe {
        asm!("prfm pldl1keep, [{}]", in(reg) address, options(readonly, nostack, preserves_flags));
    }
}

#[inline]
pub(crate) fn prefetch_for_write(address: *const u64) {
    // SAFETY: a prefetch never faults.
    unsafe {
        asm!("prfm pstl1keep, [{}]", in(reg) address, options(readonly, nostack, preserves_flags));
    }
}

/// Reads the user's table and ASID.
#[inline]
pub(crate) fn ttbr0() -> u64 {
    let value: u64;
    // SAFETY: reading has no effect. It is not `pure`, so it is repeated after each write.
    unsafe { asm!("mrs {}, ttbr0_el1", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Sets the table and ASID for walks and lookups from the next [`synchronize`] on.
///
/// # Safety
///
/// `value` must hold the address of a valid table, which must stay valid while it is loaded.
#[inline]
pub(crate) unsafe fn set_ttbr0(value: u64) {
    // SAFETY: the caller's promise. TTBR1 maps the kernel's addresses.
    unsafe { asm!("msr ttbr0_el1, {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// Reads the guest's table and VMID.
#[inline]
pub(crate) fn vttbr() -> u64 {
    let value: u64;
    // SAFETY: reading has no effect. It is not `pure`, so it is repeated after each write.
    unsafe { asm!("mrs {}, vttbr_el2", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Sets the guest's table and VMID from the next [`synchronize`] on.
///
/// # Safety
///
/// `value` must hold the address of a valid stage-2 table, which must stay valid while it is
/// loaded.
#[inline]
pub(crate) unsafe fn set_vttbr(value: u64) {
    // SAFETY: the caller's promise. No guest runs while the hypervisor does.
    unsafe { asm!("msr vttbr_el2, {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// Returns `true` if the flush interrupt is masked: `PSTATE.I` or `PSTATE.F`.
#[inline]
pub(crate) fn interrupts_masked(kind: FlushInterrupt) -> bool {
    let value: u64;
    // SAFETY: reading has no effect. It clobbers memory, so that the compiler does not move it.
    unsafe { asm!("mrs {}, daif", out(reg) value, options(nostack, preserves_flags)) };
    value & kind.daif() != 0
}

/// Reads the counter, after all earlier instructions. (Without the `isb`, it could be read early.)
#[inline]
pub(crate) fn counter() -> u64 {
    synchronize();
    let value: u64;
    // SAFETY: reading has no effect.
    unsafe { asm!("mrs {}, cntvct_el0", out(reg) value, options(nostack, preserves_flags)) };
    value
}
