//! The kernel's page tables: physical memory, seen from [`PHYSICAL_MEMORY`] on, and the kernel in
//! it.
//!
//! All is mapped in pages of 4 KiB. QEMU remembers of large pages but one range that has them all,
//! and empties the TLB for each invalidation within.

use core::ops::Range;

use shootdown::Root;

use super::register::{run, write};

/// The lowest address of TTBR1, where T1SZ is 16.
const PHYSICAL_MEMORY: usize = 0xffff_0000_0000_0000;

/// The devices that are used: the interrupt controller, and the console.
const DEVICES: Range<u64> = 0x0800_0000..0x0900_1000;

const PAGE_BYTES: u64 = 4096;

/// A table, or a page; valid, and accessed.
const ENTRY: u64 = 1 << 10 | 3;
/// Inner shareable, attribute 0 of `MAIR_EL1`. It is global: nG is 0.
const NORMAL: u64 = ENTRY | 3 << 8;
/// Attribute 1.
const DEVICE: u64 = ENTRY | 1 << 2;
const READ_ONLY: u64 = 1 << 7;
const KERNEL_NO_EXECUTE: u64 = 1 << 53;
const USER_NO_EXECUTE: u64 = 1 << 54;
const DATA: u64 = KERNEL_NO_EXECUTE | USER_NO_EXECUTE;

// Where parts begin, as `link.ld` has it; and tables of `boot.s`.
unsafe extern "C" {
    static kernel_start: u8;
    static text_end: u8;
    static rodata_end: u8;
    static stack_guard: u8;
    static kernel_end: u8;
    static kernel_tables: u8;
    static empty_table: u8;
    // Has TTBR1 have these tables, on this CPU.
    fn replace_kernel_tables(address: u64);
}

/// The physical address of a symbol.
macro_rules! physical {
    ($symbol:ident) => {
        virt_to_phys(&raw const $symbol)
    };
}

/// Where the kernel sees a physical address.
pub(super) const fn phys_to_virt<T>(address: u64) -> *mut T {
    (PHYSICAL_MEMORY + address as usize) as *mut T
}

/// The physical address of what the kernel sees.
pub(super) fn virt_to_phys<T>(seen: *const T) -> u64 {
    (seen as usize - PHYSICAL_MEMORY) as u64
}

/// A table in which nothing is, for TTBR0: the kernel is in TTBR1.
pub(super) fn kernel_root() -> Root {
    Root(physical!(empty_table))
}

/// Maps memory, the kernel and the devices, takes what tables that needs from after the kernel, and
/// goes over to them. Returns the end of what is taken.
///
/// To be called once, by the first CPU, while the tables of `boot.s` are loaded.
pub(super) fn set_up(memory: Range<u64>) -> u64 {
    let mut tables = Tables { next: physical!(kernel_end) };
    for page in memory.step_by(PAGE_BYTES as usize) {
        if page != physical!(stack_guard) {
            tables.map(page, NORMAL | protection(page));
        }
    }
    for page in DEVICES.step_by(PAGE_BYTES as usize) {
        tables.map(page, DEVICE | DATA);
    }
    run!("dsb ishst");
    // SAFETY: they map what is mapped now, but the devices that are not used.
    unsafe { replace_kernel_tables(physical!(kernel_tables)) };
    leave_boot_tables();
    tables.next
}

/// What is mapped for the CPU's start is no more.
pub(super) fn leave_boot_tables() {
    // SAFETY: the kernel runs by TTBR1 alone. What is cached of TTBR0 was under ASID 0, and global,
    // so that every address of it is to go.
    unsafe { write!("ttbr0_el1", kernel_root().0) };
    run!("isb");
    run!("tlbi vmalle1");
    run!("dsb nsh");
    run!("isb");
}

/// What may be done to a page of memory: code is not written, and nothing else is run.
fn protection(page: u64) -> u64 {
    if page < physical!(kernel_start) || page >= physical!(rodata_end) {
        DATA
    } else if page < physical!(text_end) {
        READ_ONLY | USER_NO_EXECUTE
    } else {
        READ_ONLY | DATA
    }
}

/// Where tables come from.
struct Tables {
    next: u64,
}

impl Tables {
    /// Maps a page of physical memory where it is to be seen.
    fn map(&mut self, page: u64, attributes: u64) {
        let mut table = physical!(kernel_tables);
        for level in (1..4).rev() {
            let entry = entry(table, page >> (12 + 9 * level));
            // SAFETY: it is in a table of ours, which nobody walks yet.
            table = unsafe {
                if entry.read() == 0 {
                    entry.write(self.table() | ENTRY);
                }
                entry.read() & !(PAGE_BYTES - 1)
            };
        }
        // SAFETY: as above.
        unsafe { entry(table, page >> 12).write(page | attributes) };
    }

    /// A new one, with nothing in it.
    fn table(&mut self) -> u64 {
        let table = self.next;
        self.next += PAGE_BYTES;
        // SAFETY: it is memory after the kernel, which is nobody's.
        unsafe { entry(table, 0).write_bytes(0, 512) };
        table
    }
}

fn entry(table: u64, index: u64) -> *mut u64 {
    phys_to_virt(table + index % 512 * 8)
}
