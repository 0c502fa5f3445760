//! The first thing in Rust, on each CPU: memory, and the registers by which it is translated.

#![expect(unsafe_code, reason = "sets up translation")]

use core::arch::global_asm;
use core::ops::Range;

use shootdown::{Root, Tag};
use shootdown_hw::Processor as _;
use shootdown_hw::loongarch64::LoongArch64 as Processor;
use shootdown_vm::LoongArch64 as Tables;

use super::{csr, firmware, interrupts, trap, windows};
use crate::kernel::arch::contract::Boot;
use crate::kernel::arch::{payload, upcalls};

global_asm!(include_str!("boot.s"));

/// Where `shootdown boot` puts what to do: up to the end of the lower memory.
const LOAD: u64 = 0x0800_0000;

/// Memory lies in two pieces. The kernel and what it is to do have the lower one.
const LOWER_MEMORY_BYTES: u64 = 256 << 20;
const UPPER_MEMORY: u64 = 0x8000_0000;

/// Page tables that map nothing: the kernel needs none. See the page-table format for why it is
/// here.
pub(super) const EMPTY_ROOT: Root = Root(0);

#[unsafe(no_mangle)]
extern "C" fn first_cpu() -> ! {
    // QEMU has put the command line there, which nobody reads.
    // SAFETY: it is memory, and nobody else's; the pointer is not null, for it is in a window.
    unsafe { windows::memory::<u8>(EMPTY_ROOT.0).write_bytes(0, 4096) };
    let boot = Boot {
        memory: upper_memory(),
        // SAFETY: there is memory up to the end of the lower piece, and nobody else uses it.
        load: unsafe { payload::at(windows::memory(LOAD)) },
    };
    upcalls::main_on_first_cpu(&boot)
}

#[unsafe(no_mangle)]
extern "C" fn other_cpu(cpu: u32) -> ! {
    interrupts::arrive(cpu);
    upcalls::main_on_other_cpu(cpu)
}

/// What is beyond the lower piece.
fn upper_memory() -> Range<u64> {
    let bytes = firmware::memory_bytes();
    assert!(bytes > LOWER_MEMORY_BYTES, "{bytes:#x} bytes of memory are too few: try -m 512M");
    UPPER_MEMORY..UPPER_MEMORY + bytes - LOWER_MEMORY_BYTES
}

/// Translation, exceptions and interrupts, on this CPU.
pub(super) fn set_up_cpu(cpu: u32) {
    /// Page size, as a power of two, in two of the registers that have it.
    const PAGE_SHIFT: u64 = 12;
    const TLBIDX_PAGE_SHIFT: u32 = 24;
    assert_eq!(u64::from(cpu), csr::read::<{ csr::CPUID }>() & 0x1ff, "CPUs are numbered by CPUID");
    // SAFETY: nothing is translated by tables yet: all that the kernel uses is in windows.
    unsafe {
        csr::write::<{ csr::EUEN }>(0);
        csr::write::<{ csr::STLBPS }>(PAGE_SHIFT);
        csr::write::<{ csr::TLBREHI }>(PAGE_SHIFT);
        csr::write::<{ csr::TLBIDX }>(PAGE_SHIFT << TLBIDX_PAGE_SHIFT);
        // Walkers in hardware stay off, by bit 24 of PWCH.
        csr::write::<{ csr::PWCL }>(Tables::PWCL);
        csr::write::<{ csr::PWCH }>(Tables::PWCH);
        csr::write::<{ csr::PGDL }>(EMPTY_ROOT.0);
        csr::write::<{ csr::PGDH }>(EMPTY_ROOT.0);
        csr::write::<{ csr::ASID }>(u64::from(Tag::KERNEL.0));
    }
    Processor::detect().invalidate_all();
    trap::set_up();
    interrupts::set_up();
}
