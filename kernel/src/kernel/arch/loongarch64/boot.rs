//! The first Rust code on each CPU: memory, and the registers of address translation.

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

/// Physical address at which `shootdown boot` puts the load, which may extend to the end of the
/// lower memory.
const LOAD: u64 = 0x0800_0000;

/// Size of the lower of two pieces of memory. It holds the kernel and the load.
const LOWER_MEMORY_BYTES: u64 = 256 << 20;
const UPPER_MEMORY: u64 = 0x8000_0000;

/// Page tables that map nothing: the kernel needs none. The page-table format explains why the root
/// is at this address.
pub(super) const EMPTY_ROOT: Root = Root(0);

#[unsafe(no_mangle)]
extern "C" fn first_cpu() -> ! {
    // QEMU has put a command line there, which the kernel does not read.
    // SAFETY: the memory is otherwise unused, and its address in the window is not null.
    unsafe { windows::memory::<u8>(EMPTY_ROOT.0).write_bytes(0, 4096) };
    let boot = Boot {
        memory: upper_memory(),
        // SAFETY: there is memory to the end of the lower piece, and nothing else uses it.
        load: unsafe { payload::at(windows::memory(LOAD)) },
    };
    upcalls::main_on_first_cpu(&boot)
}

#[unsafe(no_mangle)]
extern "C" fn other_cpu(cpu: u32) -> ! {
    interrupts::acknowledge_start(cpu);
    upcalls::main_on_other_cpu(cpu)
}

/// The upper piece of memory.
fn upper_memory() -> Range<u64> {
    let bytes = firmware::memory_bytes();
    assert!(bytes > LOWER_MEMORY_BYTES, "{bytes:#x} bytes of memory are too few: try -m 512M");
    UPPER_MEMORY..UPPER_MEMORY + bytes - LOWER_MEMORY_BYTES
}

/// Sets up translation, exceptions and interrupts on this CPU.
pub(super) fn set_up_cpu(cpu: u32) {
    /// Page size, as a power of two, which several registers hold.
    const PAGE_SHIFT: u64 = 12;
    const TLBIDX_PAGE_SHIFT: u32 = 24;
    assert_eq!(u64::from(cpu), csr::read::<{ csr::CPUID }>() & 0x1ff, "another CPU's number");
    // SAFETY: the kernel uses only addresses in windows, which no table translates.
    unsafe {
        csr::write::<{ csr::EUEN }>(0);
        csr::write::<{ csr::STLBPS }>(PAGE_SHIFT);
        csr::write::<{ csr::TLBREHI }>(PAGE_SHIFT);
        csr::write::<{ csr::TLBIDX }>(PAGE_SHIFT << TLBIDX_PAGE_SHIFT);
        // Hardware walkers stay off (bit 24 of PWCH).
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
