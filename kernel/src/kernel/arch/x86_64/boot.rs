//! Boot of the first CPU, from the boot loader to the kernel.

#![expect(unsafe_code, reason = "reads the boot loader's tables")]

use core::arch::global_asm;
use core::ops::Range;

use super::boot_info::BootInfo;
use super::{apic, cpu, paging, smp, uart, vectors};
use crate::kernel::arch::contract::Boot;
use crate::kernel::arch::{payload, upcalls};

global_asm!(
    include_str!("boot.s"),
    first_cpu = sym first_cpu,
    other_cpu = sym smp::other_cpu,
    mailbox = sym smp::MAILBOX,
    trampoline_address = const smp::TRAMPOLINE,
    options(att_syntax),
);

/// Entry from `boot.s`, with the values that the boot loader has left in EAX and EBX.
extern "C" fn first_cpu(magic: u32, info: u32) -> ! {
    uart::set_up();
    apic::mask_legacy();
    // SAFETY: this CPU has interrupts masked, and this is the first call of both functions.
    unsafe {
        vectors::write();
        cpu::install(0);
    }
    // SAFETY: the arguments are the two registers, and nothing has written to the tables.
    let found = unsafe { BootInfo::read(magic, info.into()) };
    let end = found.memory.end & !0xfff;
    assert!(end != 0, "the boot loader reports no memory where the kernel is");
    let free = largest_gap(&found, end);
    // SAFETY: nothing uses the memory, and `boot.s` maps the first 4 GiB.
    let memory = unsafe { paging::leave_boot_tables(free, end, &[apic::REGISTERS]) };
    let load: &[u8] = if found.load.is_empty() {
        &[]
    } else {
        // SAFETY: the load is in mapped memory that is not part of `Boot::memory`.
        unsafe { payload::at(paging::phys_to_virt(found.load.start)) }
    };
    upcalls::main_on_first_cpu(&Boot { memory, load })
}

/// The larger of the two pieces of memory above the kernel: below the load, or above it.
fn largest_gap(found: &BootInfo, end: u64) -> Range<u64> {
    let page_up = |address: u64| address.next_multiple_of(4096);
    let start = page_up(paging::image().end);
    let load = &found.load;
    if load.is_empty() || load.end <= start {
        return start..end;
    }
    assert!(load.start >= start && load.end <= end, "the load {load:x?} is not in memory");
    let (below, above) = (start..load.start & !0xfff, page_up(load.end)..end);
    let bytes = |gap: &Range<u64>| gap.end.saturating_sub(gap.start);
    if bytes(&above) > bytes(&below) { above } else { below }
}
