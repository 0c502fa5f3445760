//! What GRUB tells: the boot information of multiboot2, section 3.6. So the same file also runs
//! where QEMU is not, for instance under Bochs.

#![expect(unsafe_code, reason = "reads what GRUB has put into memory")]

use super::boot::{Told, field};

/// In EAX.
pub(super) const MAGIC: u32 = 0x36d7_6289;

/// A tag begins with its type and size; the next one is at a multiple of 8.
const TAG_SIZE: u64 = 4;
const FIRST_TAG: u64 = 8;
const TAG_ALIGNMENT: u64 = 8;

const END: u32 = 0;
/// Its addresses, from and up to, follow.
const MODULE: u32 = 3;
const MODULE_START: u64 = 8;
const MODULE_END: u64 = 12;
/// The size of an entry, a version, and entries of an address, a size and a type.
const MEMORY_MAP: u32 = 6;
const ENTRY_BYTES: u64 = 8;
const FIRST_ENTRY: u64 = 16;
const ENTRY_SIZE: u64 = 8;
const ENTRY_TYPE: u64 = 16;
const USABLE: u32 = 1;

/// Reads what is told.
///
/// # Safety
///
/// A boot loader of this kind must have started us, and nobody written to its tables.
pub(super) unsafe fn read(info: u64) -> Told {
    let mut told = Told::default();
    let mut tag = info + FIRST_TAG;
    // SAFETY: as our caller promises; tags are read up to the last.
    unsafe {
        loop {
            let size = u64::from(field::<u32>(tag, TAG_SIZE));
            match field::<u32>(tag, 0) {
                END => return told,
                MODULE if told.load.is_empty() => {
                    let at = |offset| u64::from(field::<u32>(tag, offset));
                    told.load = at(MODULE_START)..at(MODULE_END);
                }
                MEMORY_MAP => read_memory_map(tag, size, &mut told),
                _ => {}
            }
            tag += size.next_multiple_of(TAG_ALIGNMENT);
        }
    }
}

/// # Safety
///
/// The tag must be one.
unsafe fn read_memory_map(tag: u64, size: u64, told: &mut Told) {
    // SAFETY: as our caller promises.
    unsafe {
        let bytes = u64::from(field::<u32>(tag, ENTRY_BYTES));
        for entry in (tag + FIRST_ENTRY..tag + size).step_by(bytes as usize) {
            if field::<u32>(entry, ENTRY_TYPE) == USABLE {
                told.add_memory(field(entry, 0), field(entry, ENTRY_SIZE));
            }
        }
    }
}
