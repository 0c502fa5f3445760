//! Access to system registers by name, and to registers of devices by address.

use crate::kernel::arch::high_half::phys_to_virt;

/// Reads a system register. The read is not moved before earlier accesses by the compiler.
macro_rules! read {
    ($register:literal) => {{
        let value: u64;
        // SAFETY: reading the registers that are read here has no unwanted effect.
        unsafe {
            core::arch::asm!(
                concat!("mrs {}, ", $register), out(reg) value, options(nostack, preserves_flags)
            );
        }
        value
    }};
}
pub(super) use read;

/// Writes a system register. Use it in an `unsafe` block that explains why the write is safe.
macro_rules! write {
    ($register:literal, $value:expr) => {{
        let value: u64 = $value;
        core::arch::asm!(
            concat!("msr ", $register, ", {}"), in(reg) value, options(nostack, preserves_flags)
        )
    }};
}
pub(super) use write;

/// Executes an instruction without operands: a barrier or a hint.
macro_rules! run {
    ($instruction:literal) => {
        // SAFETY: a barrier or a hint changes no registers and no memory.
        unsafe { core::arch::asm!($instruction, options(nostack, preserves_flags)) }
    };
}
pub(super) use run;

/// The registers of a device, at a physical address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Device(pub(super) usize);

impl Device {
    /// Reads a register of 32 bits.
    pub(super) fn read(self, offset: usize) -> u32 {
        // SAFETY: the addresses of all devices are mapped, and the effects of reading are wanted.
        unsafe { self.at(offset).read_volatile() }
    }

    /// Writes a register of 32 bits.
    pub(super) fn write(self, offset: usize, value: u32) {
        // SAFETY: the addresses of all devices are mapped, and the effects of writing are wanted.
        unsafe { self.at(offset).write_volatile(value) };
    }

    fn at(self, offset: usize) -> *mut u32 {
        phys_to_virt((self.0 + offset) as u64)
    }
}
