//! What QEMU tells who it starts by itself: `hvm_start_info` of Xen's boot protocol for PVH.

#![expect(unsafe_code, reason = "reads what QEMU has put into memory")]

use super::boot::{Told, field};

/// The first word; its letters are "xEn3", the first with its highest bit set.
const MAGIC: u32 = 0x336e_c578;
/// From which version on memory is told of.
const VERSION_WITH_MEMORY: u32 = 1;

/// Offsets in `hvm_start_info`.
const VERSION: u64 = 4;
const MODULE_COUNT: u64 = 12;
const MODULES: u64 = 16;
const MEMORY_MAP: u64 = 40;
const MEMORY_COUNT: u64 = 48;

/// Of an entry of the memory map: an address, a size, a type.
const ENTRY_BYTES: u64 = 24;
const ENTRY_SIZE: u64 = 8;
const ENTRY_TYPE: u64 = 16;
const USABLE: u32 = 1;

/// Of a module: an address, a size.
const MODULE_SIZE: u64 = 8;

/// Reads what is told.
///
/// # Safety
///
/// QEMU must have started us, or who does the same, and nobody written to its tables.
pub(super) unsafe fn read(info: u64) -> Told {
    let mut told = Told::default();
    // SAFETY: as our caller promises; what is not there by its version is not read.
    unsafe {
        assert!(field::<u32>(info, 0) == MAGIC, "started by neither PVH nor multiboot2");
        assert!(field::<u32>(info, VERSION) >= VERSION_WITH_MEMORY, "PVH without a memory map");
        let entries: u64 = field(info, MEMORY_MAP);
        for number in 0..u64::from(field::<u32>(info, MEMORY_COUNT)) {
            let entry = entries + number * ENTRY_BYTES;
            if field::<u32>(entry, ENTRY_TYPE) == USABLE {
                told.add_memory(field(entry, 0), field(entry, ENTRY_SIZE));
            }
        }
        if field::<u32>(info, MODULE_COUNT) != 0 {
            let module: u64 = field(info, MODULES);
            let start: u64 = field(module, 0);
            told.load = start..start + field::<u64>(module, MODULE_SIZE);
        }
    }
    told
}
