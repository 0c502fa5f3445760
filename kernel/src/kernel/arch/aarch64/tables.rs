//! The kernel's page tables.
//!
//! All pages have 4 KiB. QEMU records only one range that covers all large pages, and empties the
//! TLB for each invalidation in that range.

use core::ops::Range;

use shootdown::Root;

use super::register::{run, write};
use crate::kernel::arch::high_half::{self, Bits, physical};

/// Physical addresses of the devices that are used: the interrupt controller and the console.
const DEVICES: Range<u64> = 0x0800_0000..0x0900_1000;

/// Bits of an entry: a valid table, or a valid and accessed page.
const ENTRY: u64 = 1 << 10 | 3;
/// Inner shareable, attribute 0 of `MAIR_EL1`, global (nG is 0).
const NORMAL: u64 = ENTRY | 3 << 8;
/// Attribute 1 of `MAIR_EL1`.
const DEVICE: u64 = ENTRY | 1 << 2;
const READ_ONLY: u64 = 1 << 7;
const KERNEL_NO_EXECUTE: u64 = 1 << 53;
const USER_NO_EXECUTE: u64 = 1 << 54;
const DATA: u64 = KERNEL_NO_EXECUTE | USER_NO_EXECUTE;

// In `boot.s`.
unsafe extern "C" {
    static empty_table: u8;
    // Sets TTBR1 of this CPU to these tables.
    fn replace_kernel_tables(address: u64);
}

/// An empty table for TTBR0. TTBR1 maps the kernel.
pub(super) fn kernel_root() -> Root {
    Root(physical!(empty_table))
}

/// Maps memory, the kernel and the devices, and loads the tables: see [`high_half::map_memory`].
pub(super) fn set_up(memory: Range<u64>, limit: u64) {
    let bits = Bits {
        table: ENTRY,
        code: NORMAL | READ_ONLY | USER_NO_EXECUTE,
        constants: NORMAL | READ_ONLY | DATA,
        data: NORMAL | DATA,
        device: DEVICE | DATA,
    };
    high_half::map_memory(&bits, memory, limit, [DEVICES]);
    run!("dsb ishst");
    // SAFETY: the tables map all that is mapped now, except devices that are not used.
    unsafe { replace_kernel_tables(high_half::kernel_root()) };
    leave_boot_tables();
}

/// Drops the mappings of the boot tables on this CPU.
pub(super) fn leave_boot_tables() {
    // SAFETY: the kernel runs in TTBR1. The entries of TTBR0 are global and were cached under ASID
    // 0, so everything is invalidated.
    unsafe { write!("ttbr0_el1", kernel_root().0) };
    run!("isb");
    run!("tlbi vmalle1");
    run!("dsb nsh");
    run!("isb");
}
