//! The boot loader's tables: memory, and the module that it has loaded. QEMU starts the kernel by
//! Xen's PVH protocol (`hvm_start_info`). GRUB, which Bochs needs, starts it by multiboot2 (section
//! 3.6).

#![expect(unsafe_code, reason = "reads the boot loader's tables")]

use core::ops::Range;

use super::paging::{self, phys_to_virt};

/// The information of the boot loader that the kernel uses.
#[derive(Clone, Debug, Default)]
pub(super) struct BootInfo {
    /// The range of memory that holds the kernel.
    pub(super) memory: Range<u64>,
    /// The first module (in PVH, the initial RAM disk); empty if there is none.
    pub(super) load: Range<u64>,
}

/// The type of usable memory, in both protocols.
const USABLE: u32 = 1;

impl BootInfo {
    /// Reads the tables at `info`. `magic` identifies the protocol.
    ///
    /// # Safety
    ///
    /// `magic` and `info` must be the values that the boot loader left in EAX and EBX, and its
    /// tables must be unchanged.
    pub(super) unsafe fn read(magic: u32, info: u64) -> Self {
        let mut found = Self::default();
        // SAFETY: the caller's promise.
        unsafe {
            if magic == multiboot2::MAGIC {
                multiboot2::read(info, &mut found);
            } else {
                pvh::read(info, &mut found);
            }
        }
        found
    }

    /// Records an entry of a memory map if it holds the kernel. Other memory is not used.
    fn add_memory(&mut self, kind: u32, start: u64, bytes: u64) {
        let memory = start..start.saturating_add(bytes);
        if kind == USABLE && memory.contains(&paging::image().start) {
            self.memory = memory;
        }
    }
}

/// Reads a field of a boot loader's table.
///
/// # Safety
///
/// There must be a value of type `T` at `address + offset`, in memory that `boot.s` has mapped. The
/// address may be unaligned.
unsafe fn field<T: Copy>(address: u64, offset: u64) -> T {
    // SAFETY: the caller's promise.
    unsafe { phys_to_virt::<T>(address + offset).read_unaligned() }
}

mod multiboot2 {
    use super::{BootInfo, field};

    /// The value of EAX.
    pub(super) const MAGIC: u32 = 0x36d7_6289;

    /// A tag begins with its type and its size. The next tag begins at a multiple of 8.
    const TAG_SIZE: u64 = 4;
    const FIRST_TAG: u64 = 8;
    const TAG_ALIGNMENT: u64 = 8;

    const END: u32 = 0;
    /// A module. Its start and end addresses follow.
    const MODULE: u32 = 3;
    const MODULE_START: u64 = 8;
    const MODULE_END: u64 = 12;
    /// A memory map. The size of an entry, a version, and entries of an address, a size and a type
    /// follow.
    const MEMORY_MAP: u32 = 6;
    const ENTRY_BYTES: u64 = 8;
    const FIRST_ENTRY: u64 = 16;
    const ENTRY_SIZE: u64 = 8;
    const ENTRY_TYPE: u64 = 16;

    /// # Safety
    ///
    /// The contract of [`BootInfo::read`].
    pub(super) unsafe fn read(info: u64, found: &mut BootInfo) {
        let mut tag = info + FIRST_TAG;
        // SAFETY: the caller's promise. Tags are read up to the last.
        unsafe {
            loop {
                let size = u64::from(field::<u32>(tag, TAG_SIZE));
                match field::<u32>(tag, 0) {
                    END => return,
                    MODULE if found.load.is_empty() => {
                        let at = |offset| u64::from(field::<u32>(tag, offset));
                        found.load = at(MODULE_START)..at(MODULE_END);
                    }
                    MEMORY_MAP => {
                        let bytes = field::<u32>(tag, ENTRY_BYTES) as usize;
                        for entry in (tag + FIRST_ENTRY..tag + size).step_by(bytes) {
                            let (start, bytes) = (field(entry, 0), field(entry, ENTRY_SIZE));
                            found.add_memory(field(entry, ENTRY_TYPE), start, bytes);
                        }
                    }
                    _ => {}
                }
                tag += size.next_multiple_of(TAG_ALIGNMENT);
            }
        }
    }
}

mod pvh {
    use super::{BootInfo, field};

    /// The first word: the letters "xEn3", the first with its highest bit set.
    const MAGIC: u32 = 0x336e_c578;
    /// The first version with a memory map.
    const VERSION_WITH_MEMORY: u32 = 1;

    /// Offsets in `hvm_start_info`.
    const VERSION: u64 = 4;
    const MODULE_COUNT: u64 = 12;
    const MODULES: u64 = 16;
    const MEMORY_MAP: u64 = 40;
    const MEMORY_COUNT: u64 = 48;

    /// An entry of the memory map has an address, a size and a type.
    const ENTRY_BYTES: u64 = 24;
    const ENTRY_SIZE: u64 = 8;
    const ENTRY_TYPE: u64 = 16;

    /// A module has an address and a size.
    const MODULE_SIZE: u64 = 8;

    /// # Safety
    ///
    /// The contract of [`BootInfo::read`].
    pub(super) unsafe fn read(info: u64, found: &mut BootInfo) {
        // SAFETY: the caller's promise. Fields that the table's version lacks are not read.
        unsafe {
            assert!(field::<u32>(info, 0) == MAGIC, "started by neither PVH nor multiboot2");
            assert!(field::<u32>(info, VERSION) >= VERSION_WITH_MEMORY, "PVH without a memory map");
            let entries: u64 = field(info, MEMORY_MAP);
            for number in 0..u64::from(field::<u32>(info, MEMORY_COUNT)) {
                let entry = entries + number * ENTRY_BYTES;
                let (start, bytes) = (field(entry, 0), field(entry, ENTRY_SIZE));
                found.add_memory(field(entry, ENTRY_TYPE), start, bytes);
            }
            if field::<u32>(info, MODULE_COUNT) != 0 {
                let module: u64 = field(info, MODULES);
                let start: u64 = field(module, 0);
                found.load = start..start + field::<u64>(module, MODULE_SIZE);
            }
        }
    }
}
