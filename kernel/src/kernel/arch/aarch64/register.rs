//! System registers by their names, and devices' by their addresses.

use super::tables::phys_to_virt;

/// Reads a system register, not before what is above it in the program.
macro_rules! read {
    ($register:literal) => {{
        let value: u64;
        // SAFETY: to read the registers that are read here changes nothing, or what is meant to.
        unsafe {
            core::arch::asm!(
                concat!("mrs {}, ", $register), out(reg) value, options(nostack, preserves_flags)
            );
        }
        value
    }};
}
pub(super) use read;

/// Writes a system register. To be used in a block that says why that is safe.
macro_rules! write {
    ($register:literal, $value:expr) => {{
        let value: u64 = $value;
        core::arch::asm!(
            concat!("msr ", $register, ", {}"), in(reg) value, options(nostack, preserves_flags)
        )
    }};
}
pub(super) use write;

/// Runs an instruction that has no operands: a barrier, or a hint.
macro_rules! run {
    ($instruction:literal) => {
        // SAFETY: a barrier or a hint changes nothing that the program computes with.
        unsafe { core::arch::asm!($instruction, options(nostack, preserves_flags)) }
    };
}
pub(super) use run;

/// The registers of a device, from a physical address on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Device(pub(super) usize);

impl Device {
    /// Reads 32 bits.
    pub(super) fn read(self, offset: usize) -> u32 {
        // SAFETY: all addresses that are given here are those of devices, which are mapped; and
        // what they do when they are read is what is wanted.
        unsafe { self.at(offset).read_volatile() }
    }

    /// Writes 32 bits.
    pub(super) fn write(self, offset: usize, value: u32) {
        // SAFETY: as above.
        unsafe { self.at(offset).write_volatile(value) };
    }

    fn at(self, offset: usize) -> *mut u32 {
        phys_to_virt((self.0 + offset) as u64)
    }
}
