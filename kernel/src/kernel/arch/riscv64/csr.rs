//! Access to control and status registers by name.

/// Reads a register. The read is not moved before earlier accesses by the compiler.
macro_rules! read {
    ($register:literal) => {{
        let value: u64;
        // SAFETY: reading the registers that are read here has no effect.
        unsafe {
            core::arch::asm!(
                concat!("csrr {}, ", $register), out(reg) value, options(nostack, preserves_flags)
            );
        }
        value
    }};
}
pub(super) use read;

/// Executes an instruction that writes a register (`csrw`, `csrs` or `csrc`). Use it in an `unsafe`
/// block that explains why the write is safe.
macro_rules! write {
    ($instruction:literal, $value:expr) => {{
        let value: u64 = $value;
        core::arch::asm!(
            concat!($instruction, ", {}"), in(reg) value, options(nostack, preserves_flags)
        )
    }};
}
pub(super) use write;

/// Executes an instruction without operands: a barrier, a hint or a wait.
macro_rules! run {
    ($instruction:literal) => {
        // SAFETY: such an instruction changes no registers and no memory.
        unsafe { core::arch::asm!($instruction, options(nostack, preserves_flags)) }
    };
}
pub(super) use run;
