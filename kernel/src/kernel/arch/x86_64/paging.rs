//! The kernel's page tables: itself, and all of physical memory, in pages of 4 KiB.
//!
//! Large ones would do, and take less; but QEMU, which remembers only one range in which there are
//! some, empties its whole TLB when a page within is invalidated. With any in the upper half it
//! would forgive whoever invalidates the wrong page.

#![expect(unsafe_code, reason = "writes page tables")]

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use shootdown::Root;

/// Where the kernel sees physical address 0: the first address of the upper half.
const PHYSICAL_MEMORY: usize = 0xffff_8000_0000_0000;

const PAGE_BYTES: u64 = 4096;
/// Entries of a root that are user mode's; the others are the kernel's, in every root.
const USER_ENTRIES: usize = 256;
const ENTRIES: usize = 512;

/// Bits of an entry (SDM 3A, table 4-20). Accessed and written, so that no CPU has to note it.
const TABLE: u64 = 0x23;
const PRESENT: u64 = 0x21;
const WRITABLE: u64 = 0x42;
/// Neither cached nor combined: a device's.
const DEVICE: u64 = 0x18;
/// Stays cached when another root is loaded, which maps it, too.
pub(super) const GLOBAL: u64 = 1 << 8;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

static ROOT: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" {
    #[link_name = "kernel_base"]
    static KERNEL_BASE: u8;
    #[link_name = "image_start"]
    static IMAGE_START: u8;
    #[link_name = "text_start"]
    static TEXT_START: u8;
    #[link_name = "rodata_start"]
    static RODATA_START: u8;
    #[link_name = "data_start"]
    static DATA_START: u8;
    #[link_name = "image_end"]
    static IMAGE_END: u8;
}

/// The addresses of the linker's symbols, of which nothing is read.
macro_rules! address_of {
    ($symbol:ident) => {
        (&raw const $symbol) as u64
    };
}

/// Where in physical memory the kernel is.
pub(super) fn image() -> Range<u64> {
    address_of!(IMAGE_START)..address_of!(IMAGE_END) - address_of!(KERNEL_BASE)
}

/// Makes the kernel's tables in the lowest of `memory`, loads them, and returns what is left.
///
/// # Safety
///
/// Once, on the first CPU, under the boot loader's tables, which must map `memory`. That must be
/// nobody's. `devices` are pages above `end`, the end of all that is mapped as memory.
pub(super) unsafe fn leave_boot_tables(
    memory: Range<u64>,
    end: u64,
    devices: &[u64],
) -> Range<u64> {
    let mut tables = Tables { next: memory.start, end: memory.end };
    let root = tables.fresh();
    let mut map = |physical: Range<u64>, base: u64, bits: u64| {
        for address in physical.step_by(PAGE_BYTES as usize) {
            *tables.entry(root, base + address) = address | bits | PRESENT | GLOBAL;
        }
    };
    let base = address_of!(KERNEL_BASE);
    let part = |start: u64, end: u64| start - base..end - base;
    let (text, rodata) = (address_of!(TEXT_START), address_of!(RODATA_START));
    let (data, image_end) = (address_of!(DATA_START), address_of!(IMAGE_END));
    map(part(text, rodata), base, 0);
    map(part(rodata, data), base, NO_EXECUTE);
    map(part(data, image_end), base, NO_EXECUTE | WRITABLE);
    map(0..end, PHYSICAL_MEMORY as u64, NO_EXECUTE | WRITABLE);
    for &device in devices {
        let bits = NO_EXECUTE | WRITABLE | DEVICE;
        map(device..device + PAGE_BYTES, PHYSICAL_MEMORY as u64, bits);
    }
    ROOT.store(root, Ordering::Release);
    // SAFETY: it maps what is used, at the same addresses.
    unsafe { core::arch::asm!("mov cr3, {}", in(reg) root, options(nostack, preserves_flags)) };
    tables.next..memory.end
}

/// The kernel's root.
pub(super) fn root() -> Root {
    Root(ROOT.load(Ordering::Acquire))
}

/// Gives a root the kernel's half, which never changes.
pub(super) fn share_kernel(new: Root) {
    let (kernel, new) = (phys_to_virt::<u64>(root().0), phys_to_virt::<u64>(new.0));
    // SAFETY: one is never written any more, and the other nobody's but our caller's.
    unsafe {
        let (kernel, new) = (kernel.add(USER_ENTRIES), new.add(USER_ENTRIES));
        new.copy_from_nonoverlapping(kernel, ENTRIES - USER_ENTRIES);
    }
}

/// Where tables are taken from.
struct Tables {
    next: u64,
    end: u64,
}

impl Tables {
    /// An empty one.
    fn fresh(&mut self) -> u64 {
        let address = self.next;
        self.next += PAGE_BYTES;
        assert!(self.next <= self.end, "too little memory for the kernel's page tables");
        // SAFETY: it is nobody's.
        unsafe { phys_to_virt::<u64>(address).write_bytes(0, ENTRIES) };
        address
    }

    /// The entry for a page.
    fn entry(&mut self, root: u64, address: u64) -> &mut u64 {
        let mut at = root;
        for shift in [39, 30, 21] {
            let entry = index(at, address >> shift);
            // SAFETY: these tables are ours alone until they are loaded.
            let held = unsafe { *entry };
            at = if held == 0 {
                let fresh = self.fresh();
                // SAFETY: as above.
                unsafe { *entry = fresh | TABLE };
                fresh
            } else {
                held & ADDRESS
            };
        }
        // SAFETY: as above.
        unsafe { &mut *index(at, address >> 12) }
    }
}

fn index(table_address: u64, number: u64) -> *mut u64 {
    phys_to_virt::<u64>(table_address).wrapping_add(number as usize % ENTRIES)
}

/// Where the kernel sees a physical address.
pub(super) const fn phys_to_virt<T>(address: u64) -> *mut T {
    (PHYSICAL_MEMORY + address as usize) as *mut T
}
