//! The kernel's page tables: they map physical memory from [`PHYSICAL_MEMORY`] on, with the kernel
//! in it.
//!
//! All pages have 4 KiB. QEMU records only one range that covers all large pages, and empties the
//! TLB for each invalidation in that range.

use core::ops::Range;

use shootdown::Root;

use super::register::{run, write};
use crate::kernel::arch::page_tables::TableBuilder;

/// The lowest address that TTBR1 maps if T1SZ is 16.
const PHYSICAL_MEMORY: usize = 0xffff_0000_0000_0000;

/// Physical addresses of the devices that are used: the interrupt controller and the console.
const DEVICES: Range<u64> = 0x0800_0000..0x0900_1000;

const PAGE_BYTES: u64 = 4096;

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

// Symbols of `link.ld` and tables of `boot.s`.
unsafe extern "C" {
    static kernel_start: u8;
    static text_end: u8;
    static rodata_end: u8;
    static stack_guard: u8;
    static kernel_end: u8;
    static kernel_tables: u8;
    static empty_table: u8;
    // Sets TTBR1 of this CPU to these tables.
    fn replace_kernel_tables(address: u64);
}

/// The physical address of a symbol.
macro_rules! physical {
    ($symbol:ident) => {
        virt_to_phys(&raw const $symbol)
    };
}

/// The address at which the kernel maps a physical address.
pub(super) const fn phys_to_virt<T>(address: u64) -> *mut T {
    (PHYSICAL_MEMORY + address as usize) as *mut T
}

/// The physical address of an address that the kernel maps.
pub(super) fn virt_to_phys<T>(seen: *const T) -> u64 {
    (seen as usize - PHYSICAL_MEMORY) as u64
}

/// An empty table for TTBR0. TTBR1 maps the kernel.
pub(super) fn kernel_root() -> Root {
    Root(physical!(empty_table))
}

/// Maps memory, the kernel and the devices by tables that are allocated from the end of the kernel
/// to `limit`, and loads these tables.
///
/// Call this once, on the first CPU, while the tables of `boot.s` are loaded.
pub(super) fn set_up(memory: Range<u64>, limit: u64) {
    let after_guard = physical!(stack_guard) + PAGE_BYTES;
    // SAFETY: nothing uses the memory from the kernel's end to the load, and the tables are mapped.
    let mut tables =
        unsafe { TableBuilder::new(physical!(kernel_tables), ENTRY, physical!(kernel_end)..limit) };
    let mut map = |physical, bits| tables.map(physical, PHYSICAL_MEMORY as u64, bits);
    // Only code can be executed, and it cannot be written. The page of the guard is not mapped.
    map(memory.start..physical!(kernel_start), NORMAL | DATA);
    map(physical!(kernel_start)..physical!(text_end), NORMAL | READ_ONLY | USER_NO_EXECUTE);
    map(physical!(text_end)..physical!(rodata_end), NORMAL | READ_ONLY | DATA);
    map(physical!(rodata_end)..physical!(stack_guard), NORMAL | DATA);
    map(after_guard..memory.end, NORMAL | DATA);
    map(DEVICES, DEVICE | DATA);
    run!("dsb ishst");
    // SAFETY: the tables map all that is mapped now, except devices that are not used.
    unsafe { replace_kernel_tables(physical!(kernel_tables)) };
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
