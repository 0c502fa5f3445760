//! A builder for the kernel's own page tables: four levels, with 512 entries of 8 bytes in a table.

#![expect(unsafe_code, reason = "writes page tables")]

use core::ops::Range;

use super::{Arch, Architecture};

const PAGE_BYTES: u64 = 4096;
const ENTRIES: usize = 512;
/// Bits of an address of a table or a page that an entry holds.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// The number of bits by which an entry has its address shifted to the right.
const ADDRESS_SHIFT: u32 = if cfg!(target_arch = "riscv64") { 2 } else { 0 };

/// Page tables that are being built.
pub(super) struct TableBuilder {
    root: u64,
    /// The bits, other than the address, of an entry that refers to a table.
    table_bits: u64,
    /// Memory for more tables.
    free: Range<u64>,
}

impl TableBuilder {
    /// Extends the tables of `root` by tables from `free`.
    ///
    /// # Safety
    ///
    /// The kernel must map `root` and `free`. No CPU may walk these tables while they are built,
    /// and nothing else may use `free`.
    pub(super) unsafe fn new(root: u64, table_bits: u64, free: Range<u64>) -> Self {
        Self { root, table_bits, free }
    }

    /// Maps each page of `physical` at its address plus `base`, with `bits` in its entry.
    ///
    /// # Panics
    ///
    /// If there is no memory for a table.
    pub(super) fn map(&mut self, physical: Range<u64>, base: u64, bits: u64) {
        for page in physical.step_by(PAGE_BYTES as usize) {
            let address = base + page;
            let table = [39, 30, 21].into_iter().fold(self.root, |table, shift| {
                let entry = entry(table, address >> shift);
                // SAFETY: the entry is in a table of this builder, which no CPU walks.
                unsafe {
                    if *entry == 0 {
                        *entry = allocate_table(&mut self.free) >> ADDRESS_SHIFT | self.table_bits;
                    }
                    *entry << ADDRESS_SHIFT & ADDRESS
                }
            });
            // SAFETY: the entry is in a table of this builder, which no CPU walks.
            unsafe { *entry(table, address >> 12) = page >> ADDRESS_SHIFT | bits };
        }
    }

    /// The memory that no table uses.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn into_free(self) -> Range<u64> {
        self.free
    }
}

/// Takes a page from `free` and fills it with zeros. Returns its physical address.
///
/// # Safety
///
/// The kernel must map `free`, and nothing else may use it.
pub(super) unsafe fn allocate_table(free: &mut Range<u64>) -> u64 {
    let table = free.start;
    free.start += PAGE_BYTES;
    assert!(free.start <= free.end, "too little memory for the kernel's page tables");
    // SAFETY: the caller's promise.
    unsafe { entry(table, 0).write_bytes(0, ENTRIES) };
    table
}

fn entry(table: u64, index: u64) -> *mut u64 {
    Arch::phys_to_virt::<u64>(table).wrapping_add(index as usize % ENTRIES)
}
