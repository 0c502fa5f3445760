//! The kernel's page tables (Sv48): they map physical memory from [`PHYSICAL_MEMORY`] on, with the
//! kernel in it. Every space has a copy of the one entry of the root that they need.

use core::ops::Range;

use shootdown::{Root, Tag};
use shootdown_hw::riscv64::encoding::Mode;

use super::csr::{run, write};
use super::devices;
use crate::kernel::arch::page_tables::TableBuilder;

/// The lowest address of the upper half.
const PHYSICAL_MEMORY: usize = 0xffff_8000_0000_0000;
/// Its entry in a root.
const UPPER_HALF: usize = 256;

const PAGE_BYTES: u64 = 4096;

/// A valid entry that points to a table.
const TABLE: u64 = 1;
/// D, A, G and V of a page. The kernel changes no marks of its own pages.
const PAGE: u64 = 1 << 7 | 1 << 6 | GLOBAL | 1;
/// G: the same in all spaces.
pub(super) const GLOBAL: u64 = 1 << 5;
const READ: u64 = 1 << 1;
const WRITE: u64 = 1 << 2;
const EXECUTE: u64 = 1 << 3;

// Symbols of `link.ld` and a table of `boot.s`.
unsafe extern "C" {
    static kernel_start: u8;
    static text_end: u8;
    static rodata_end: u8;
    static stack_guard: u8;
    static kernel_end: u8;
    static kernel_tables: u8;
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

/// The physical address behind the kernel's image.
pub(super) fn image_end() -> u64 {
    physical!(kernel_end)
}

pub(super) fn kernel_root() -> Root {
    Root(physical!(kernel_tables))
}

/// Copies the kernel's entry to another root.
pub(super) fn prepare_root(root: Root) {
    let entry = |root: Root| phys_to_virt::<u64>(root.0).wrapping_add(UPPER_HALF);
    // SAFETY: both are roots, and the entry of the kernel's never changes after `set_up`.
    unsafe { entry(root).write(entry(kernel_root()).read()) };
}

/// Maps memory, the kernel and the devices by tables that are allocated from the end of the kernel
/// to `limit`, and loads these tables.
///
/// Call this once, on the first CPU, while the tables of `boot.s` are loaded.
pub(super) fn set_up(memory: Range<u64>, limit: u64) {
    let after_guard = physical!(stack_guard) + PAGE_BYTES;
    // SAFETY: nothing uses the memory from the kernel's end to the load, and the tables are mapped.
    let mut tables =
        unsafe { TableBuilder::new(physical!(kernel_tables), TABLE, physical!(kernel_end)..limit) };
    let mut map = |physical, bits| tables.map(physical, PHYSICAL_MEMORY as u64, PAGE | bits);
    // Only code can be executed, and it cannot be written. The page of the guard is not mapped, and
    // neither is the firmware's memory below the kernel.
    map(physical!(kernel_start)..physical!(text_end), READ | EXECUTE);
    map(physical!(text_end)..physical!(rodata_end), READ);
    map(physical!(rodata_end)..physical!(stack_guard), READ | WRITE);
    map(after_guard..memory.end, READ | WRITE);
    for page in devices::PAGES {
        map(page..page + PAGE_BYTES, READ | WRITE);
    }
    leave_boot_tables();
}

/// Loads the kernel's own tables on this CPU, and drops the mappings of the boot tables.
pub(super) fn leave_boot_tables() {
    // SAFETY: the tables map all that is used, at the same addresses.
    unsafe { write!("csrw satp", Mode::Sv48.satp(kernel_root(), Tag::KERNEL)) };
    run!("sfence.vma");
}
