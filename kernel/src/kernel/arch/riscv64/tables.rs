//! The kernel's page tables (Sv48). Every space has a copy of the one entry of the root that they
//! need.

use shootdown::{Root, Tag};
use shootdown_hw::riscv64::encoding::Mode;

use super::csr::{run, write};
use super::devices;
use crate::kernel::arch::high_half::{self, Bits, phys_to_virt, physical};

/// The entry of the upper half in a root.
const UPPER_HALF: usize = 256;

/// A valid entry that points to a table.
const TABLE: u64 = 1;
/// D, A, G and V of a page. The kernel changes no marks of its own pages.
const PAGE: u64 = 1 << 7 | 1 << 6 | GLOBAL | 1;
/// G: the same in all spaces.
pub(super) const GLOBAL: u64 = 1 << 5;
const READ: u64 = 1 << 1;
const WRITE: u64 = 1 << 2;
const EXECUTE: u64 = 1 << 3;

// In `link.ld`.
unsafe extern "C" {
    static kernel_start: u8;
}

pub(super) fn kernel_root() -> Root {
    Root(high_half::kernel_root())
}

/// Copies the kernel's entry to another root.
pub(super) fn prepare_root(root: Root) {
    let entry = |root: Root| phys_to_virt::<u64>(root.0).wrapping_add(UPPER_HALF);
    // SAFETY: both are roots, and the entry of the kernel's never changes after `set_up`.
    unsafe { entry(root).write(entry(kernel_root()).read()) };
}

/// Maps the kernel, the memory from there to `memory_end`, and the devices, and loads the tables:
/// see [`high_half::map_memory`]. The firmware's memory is not mapped.
pub(super) fn set_up(memory_end: u64, limit: u64) {
    let bits = Bits {
        table: TABLE,
        code: PAGE | READ | EXECUTE,
        constants: PAGE | READ,
        data: PAGE | READ | WRITE,
        device: PAGE | READ | WRITE,
    };
    let devices = devices::PAGES.map(|page| page..page + 4096);
    high_half::map_memory(&bits, physical!(kernel_start)..memory_end, limit, devices);
    leave_boot_tables();
}

/// Loads the kernel's own tables on this CPU, and drops the mappings of the boot tables.
pub(super) fn leave_boot_tables() {
    // SAFETY: the tables map all that is used, at the same addresses.
    unsafe { write!("csrw satp", Mode::Sv48.satp(kernel_root(), Tag::KERNEL)) };
    run!("sfence.vma");
}
