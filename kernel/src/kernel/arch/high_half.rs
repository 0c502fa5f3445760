//! A kernel that runs where it maps physical memory, in the upper half of the addresses: its page
//! tables, from the symbols of `link.ld` and the root in `boot.s`, and its memory. For `AArch64`
//! and RISC-V.

#![expect(unsafe_code, reason = "uses symbols of the linker script")]

use core::ops::Range;

use super::page_tables::TableBuilder;

/// The address at which physical address 0 is mapped: the lowest of the upper half, which begins
/// at the 48th or at the 47th bit.
const PHYSICAL_MEMORY: usize = usize::MAX << if cfg!(target_arch = "aarch64") { 48 } else { 47 };

const PAGE_BYTES: u64 = 4096;

// Symbols of `link.ld`, and a table of `boot.s`.
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
        $crate::kernel::arch::high_half::virt_to_phys(&raw const $symbol)
    };
}
pub(super) use physical;

/// The address at which the kernel maps a physical address.
pub(super) const fn phys_to_virt<T>(address: u64) -> *mut T {
    (PHYSICAL_MEMORY + address as usize) as *mut T
}

/// The physical address of an address that the kernel maps.
pub(super) fn virt_to_phys<T>(seen: *const T) -> u64 {
    (seen as usize - PHYSICAL_MEMORY) as u64
}

/// The physical address of the kernel's own root, once [`map_memory`] has filled it.
pub(super) fn kernel_root() -> u64 {
    physical!(kernel_tables)
}

/// Bits of the kernel's page-table entries.
pub(super) struct Bits {
    /// An entry that refers to a table.
    pub(super) table: u64,
    /// Pages of code, of constants and of data. Only code can be executed, and it cannot be
    /// written.
    pub(super) code: u64,
    pub(super) constants: u64,
    pub(super) data: u64,
    pub(super) device: u64,
}

/// Maps the kernel, memory and devices by tables that are allocated from the end of the kernel to
/// `limit`. `memory` begins with the first page that is mapped, at or below the kernel. The page
/// below the first CPU's stack is not mapped.
///
/// Call this once, on the first CPU, while the tables of `boot.s` are loaded.
pub(super) fn map_memory(
    bits: &Bits,
    memory: Range<u64>,
    limit: u64,
    devices: impl IntoIterator<Item = Range<u64>>,
) {
    let after_guard = physical!(stack_guard) + PAGE_BYTES;
    // SAFETY: nothing uses the memory from the kernel's end to the load, and the tables are mapped.
    let mut tables =
        unsafe { TableBuilder::new(kernel_root(), bits.table, physical!(kernel_end)..limit) };
    let mut map = |physical, bits| tables.map(physical, PHYSICAL_MEMORY as u64, bits);
    map(memory.start..physical!(kernel_start), bits.data);
    map(physical!(kernel_start)..physical!(text_end), bits.code);
    map(physical!(text_end)..physical!(rodata_end), bits.constants);
    map(physical!(rodata_end)..physical!(stack_guard), bits.data);
    map(after_guard..memory.end, bits.data);
    for device in devices {
        map(device, bits.device);
    }
}

/// The memory above the load of `load_bytes`. The memory below holds the firmware, the kernel and
/// its tables; the rest of it is too small to be worth a second range.
pub(super) fn free_memory(load: u64, load_bytes: usize, end: u64) -> Range<u64> {
    let start = (load + load_bytes as u64).next_multiple_of(PAGE_BYTES);
    let fits = physical!(kernel_end) < load && start < end;
    assert!(fits, "too little memory: it ends at {end:#x}");
    start..end
}
