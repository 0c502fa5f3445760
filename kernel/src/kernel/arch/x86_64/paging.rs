//! The kernel's page tables: they map the kernel and all of physical memory, in pages of 4 KiB.
//!
//! Large pages would be correct and need fewer tables. But QEMU records only one range that covers
//! all large pages, and empties its whole TLB when a page in that range is invalidated. With large
//! pages in the upper half, it would hide an invalidation of the wrong page.

#![expect(unsafe_code, reason = "writes page tables")]

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use shootdown::Root;

use crate::kernel::arch::page_tables::{TableBuilder, allocate_table};

/// The address at which the kernel maps physical address 0: the first of the upper half.
const PHYSICAL_MEMORY: usize = 0xffff_8000_0000_0000;

const PAGE_BYTES: u64 = 4096;
/// Number of entries of a root for user addresses. The other entries are the kernel's, in every
/// root.
const USER_ENTRIES: usize = 256;
const ENTRIES: usize = 512;

/// Bits of an entry (SDM 3A, table 4-20). The accessed and dirty bits are set, so that no CPU has
/// to set them.
const TABLE: u64 = 0x23;
const PRESENT: u64 = 0x21;
const WRITABLE: u64 = 0x42;
/// Not cached, and writes are not combined: for devices.
const DEVICE: u64 = 0x18;
/// Stays cached when another root is loaded. All roots map these pages.
pub(super) const GLOBAL: u64 = 1 << 8;
const NO_EXECUTE: u64 = 1 << 63;

static ROOT: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" {
    static kernel_base: u8;
    static image_start: u8;
    static text_start: u8;
    static rodata_start: u8;
    static data_start: u8;
    static image_end: u8;
}

/// The address of a symbol of the linker script.
macro_rules! address_of {
    ($symbol:ident) => {
        (&raw const $symbol) as u64
    };
}

/// Physical addresses of the kernel's image.
pub(super) fn image() -> Range<u64> {
    address_of!(image_start)..address_of!(image_end) - address_of!(kernel_base)
}

/// Builds the kernel's tables in the lowest pages of `memory`, loads them, and returns the rest of
/// `memory`. The tables map all physical memory up to `end`, and the pages `devices`, which are
/// above `end`.
///
/// # Safety
///
/// Call this once, on the first CPU, on the boot tables. These must map `memory`, which nothing
/// else may use.
pub(super) unsafe fn leave_boot_tables(
    mut memory: Range<u64>,
    end: u64,
    devices: &[u64],
) -> Range<u64> {
    // SAFETY: the caller promises that the memory is mapped and unused.
    let (root, mut tables) = unsafe {
        let root = allocate_table(&mut memory);
        (root, TableBuilder::new(root, TABLE, memory))
    };
    let mut map = |physical, base, bits| tables.map(physical, base, bits | PRESENT | GLOBAL);
    let base = address_of!(kernel_base);
    let part = |start: u64, end: u64| start - base..end - base;
    let (text, rodata) = (address_of!(text_start), address_of!(rodata_start));
    let (data, end_of_data) = (address_of!(data_start), address_of!(image_end));
    map(part(text, rodata), base, 0);
    map(part(rodata, data), base, NO_EXECUTE);
    map(part(data, end_of_data), base, NO_EXECUTE | WRITABLE);
    map(0..end, PHYSICAL_MEMORY as u64, NO_EXECUTE | WRITABLE);
    for &device in devices {
        let bits = NO_EXECUTE | WRITABLE | DEVICE;
        map(device..device + PAGE_BYTES, PHYSICAL_MEMORY as u64, bits);
    }
    ROOT.store(root, Ordering::Release);
    // SAFETY: the tables map all that is used, at the same addresses.
    unsafe { core::arch::asm!("mov cr3, {}", in(reg) root, options(nostack, preserves_flags)) };
    tables.into_free()
}

/// The kernel's root.
pub(super) fn root() -> Root {
    Root(ROOT.load(Ordering::Acquire))
}

/// Copies the kernel's half, which never changes, to a new root.
pub(super) fn share_kernel(new: Root) {
    let (kernel, new) = (phys_to_virt::<u64>(root().0), phys_to_virt::<u64>(new.0));
    // SAFETY: the kernel's root is never written, and only the caller uses the new root.
    unsafe {
        let (kernel, new) = (kernel.add(USER_ENTRIES), new.add(USER_ENTRIES));
        new.copy_from_nonoverlapping(kernel, ENTRIES - USER_ENTRIES);
    }
}

/// The physical address of the root that is loaded.
#[cfg(feature = "kpti")]
pub(super) fn loaded_root() -> u64 {
    const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
    let value: u64;
    // SAFETY: reading has no effect.
    unsafe { core::arch::asm!("mov {}, cr3", out(reg) value, options(nostack, preserves_flags)) };
    value & ADDRESS
}

/// Loads a root.
///
/// # Safety
///
/// The root must map the kernel as the loaded root does.
#[cfg(feature = "kpti")]
pub(super) unsafe fn write_cr3(value: u64) {
    // SAFETY: the caller's promise.
    unsafe { core::arch::asm!("mov cr3, {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// The physical address of a part of the kernel's image.
#[cfg(feature = "kpti")]
pub(super) fn image_to_phys<T>(part: *const T) -> u64 {
    part as u64 - address_of!(kernel_base)
}

/// The address at which the kernel maps a physical address.
pub(super) const fn phys_to_virt<T>(address: u64) -> *mut T {
    (PHYSICAL_MEMORY + address as usize) as *mut T
}
