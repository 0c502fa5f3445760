//! The first CPU's way from the boot loader to the kernel.

#![expect(unsafe_code, reason = "reads what a boot loader has put into memory")]

use core::arch::global_asm;
use core::ops::Range;

use super::{PHYSICAL_MEMORY, apic, cpu, multiboot2, paging, pvh, smp, uart, vectors};
use crate::kernel::arch::Boot;

global_asm!(
    include_str!("boot.s"),
    first_cpu = sym first_cpu,
    other_cpu = sym smp::other_cpu,
    mailbox = sym smp::MAILBOX,
    trampoline_address = const smp::TRAMPOLINE,
    options(att_syntax),
);

/// What a boot loader tells.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// The memory in which the kernel is, in one piece.
    pub(super) memory: Range<u64>,
    /// The first module (PVH), also called initial RAM disk; empty if there is none.
    pub(super) load: Range<u64>,
}

impl Told {
    /// There is memory here. Only that in which the kernel lies is used.
    pub(super) fn add_memory(&mut self, start: u64, bytes: u64) {
        let memory = start..start.saturating_add(bytes);
        if memory.contains(&paging::image().start) {
            self.memory = memory;
        }
    }
}

/// Where `boot.s` calls, with what the boot loader has left in EAX and EBX.
extern "C" fn first_cpu(magic: u32, info: u32) -> ! {
    uart::set_up();
    apic::mask_legacy();
    // SAFETY: the first thing that happens.
    unsafe {
        vectors::write();
        cpu::install(0);
    }
    let info = u64::from(info);
    // SAFETY: one of the two has started us, and its tables are still there.
    let told = unsafe {
        if magic == multiboot2::MAGIC { multiboot2::read(info) } else { pvh::read(info) }
    };
    let end = told.memory.end & !0xfff;
    assert!(end != 0, "the boot loader tells of no memory where the kernel is");
    let free = largest_gap(&told, end);
    // SAFETY: nobody uses it, and `boot.s` maps the first 4 GiB.
    let memory = unsafe { paging::leave_boot_tables(free, end, &[apic::REGISTERS]) };
    let load: &[u8] = if told.load.is_empty() {
        &[]
    } else {
        // SAFETY: it is within memory, mapped, and not given away.
        unsafe { crate::kernel::load::at(seen(told.load.start)) }
    };
    crate::kernel::main_on_first_cpu(&Boot { memory, load })
}

/// The memory above the kernel, or above what has been loaded, whichever is more.
fn largest_gap(told: &Told, end: u64) -> Range<u64> {
    let page_up = |address: u64| address.next_multiple_of(4096);
    let start = page_up(paging::image().end);
    let load = &told.load;
    if load.is_empty() || load.end <= start {
        return start..end;
    }
    assert!(load.start >= start && load.end <= end, "{load:x?} is not in memory above the kernel");
    let (below, above) = (start..load.start & !0xfff, page_up(load.end)..end);
    let bytes = |gap: &Range<u64>| gap.end.saturating_sub(gap.start);
    if bytes(&above) > bytes(&below) { above } else { below }
}

/// Where something in physical memory is seen.
pub(super) fn seen(address: u64) -> *const u8 {
    (PHYSICAL_MEMORY + address as usize) as *const u8
}

/// Reads a field of a boot loader's table.
///
/// # Safety
///
/// There must be such a value, in memory that `boot.s` has mapped. It need not be aligned.
pub(super) unsafe fn field<T: Copy>(address: u64, offset: u64) -> T {
    // SAFETY: as our caller promises.
    unsafe { seen(address + offset).cast::<T>().read_unaligned() }
}
