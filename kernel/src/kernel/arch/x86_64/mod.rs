//! x86-64: QEMU's `pc` and `q35`, or whatever else has a local APIC, an 8254 and a serial port
//! where PCs have had them.
//!
//! # Starting it
//!
//! ```text
//! qemu-system-x86_64 -M q35 -cpu max -smp 4 -m 512M -accel tcg,thread=multi \
//!     -nographic -no-reboot -device isa-debug-exit,iobase=0xf4,iosize=4 \
//!     -kernel shootdown-kernel -initrd LOAD
//! ```
//!
//! `-M pc` does as well, and `-accel tcg -icount shift=0,sleep=off`: two such runs write the same
//! bytes. The kernel is one ELF file of 64 bits, which QEMU starts by its PVH note. It also has a
//! multiboot2 header, for GRUB (`multiboot2 KERNEL` and `module2 LOAD`), and so for Bochs: there,
//! `shootdown boot --emulator bochs` makes the disc that it takes.
//!
//! What to do is the first module: with `-kernel`, the initial RAM disk. How much memory there is,
//! the boot loader tells; of that, the piece is used in which the kernel lies, from 2 MiB on. CPU
//! *n* is the one with APIC id *n*, as QEMU counts them.
//!
//! # Ending it
//!
//! | status | meaning |
//! |---|---|
//! | 33 | `end passed`: 0x10 was written to `isa-debug-exit` |
//! | 35 | `end failed`: 0x11; a line that begins with `fatal` says why |
//! | 0 | neither: a triple fault (with `-no-reboot`), or there is no `isa-debug-exit` |
//!
//! Without that device, Bochs' port is tried (status 1, in any case), ACPI's power-off, and at last
//! a triple fault.
//!
//! # What QEMU does not show
//!
//! - It has no PCIDs, no `INVPCID` and no `INVLPGB`: each load of a root empties the TLB. A missing
//!   flush of a space that is loaded again is not seen here (but on `LoongArch64`). Bochs has the
//!   first two, and drops all but global pages whenever a root is loaded.
//! - Loading a root drops global pages, too (but on Bochs), and nothing caches upper levels: so
//!   flushes of the kernel's pages, and those before page tables are freed, are not shown to be
//!   needed.
//! - Its stores and loads are the host's, and `wrmsr` is a call to it: that the write of an x2APIC
//!   register may overtake a store is not seen.
//! - Large pages make it flush too much: see `paging`.

#![expect(unsafe_code, reason = "promises what each part does")]

mod apic;
mod boot;
mod boot_info;
mod cpu;
mod end;
mod interrupts;
mod paging;
mod smp;
mod time;
mod traps;
mod uart;
mod user;
mod vectors;

use shootdown::Root;
use shootdown_hw::x86_64::KernelPages;

use super::contract::{Architecture, Interrupt, Status, User, UserExit, implement_by};

/// A PC.
pub(crate) enum X86_64 {}

// SAFETY: each method does what it says, by what is said where it is done.
unsafe impl Architecture for X86_64 {
    type Processor = shootdown_hw::x86_64::X86_64;
    type Format = shootdown_vm::X86_64;
    /// R15, R14, R13, R12, RBX, RBP; where to return to; and two words, so that the stack is then
    /// at a multiple of 16, as before any call.
    type Saved = [usize; 9];

    const NAME: &'static str = "x86_64";
    const CAN_RESTART_CPUS: bool = true;

    implement_by! {
        smp {
            fn start_cpu(cpu: u32, stack_end: usize);
            fn switch_off() -> !;
        }
        cpu {
            fn cpu() -> u32;
        }
        interrupts {
            fn interrupts_masked() -> bool;
            fn mask_interrupts();
            fn unmask_interrupts();
            fn wait_for_interrupt();
        }
        apic {
            fn send(cpus: &mut dyn Iterator<Item = u32>, interrupt: Interrupt);
        }
        time {
            fn now_ns() -> u64;
            fn set_timer_ns(delay_ns: u64);
        }
        user {
            fn run_user(user: &mut User) -> UserExit;
        }
        uart {
            fn write(byte: u8);
        }
        end {
            fn exit(status: Status) -> !;
        }
    }

    fn phys_to_virt<T>(address: u64) -> *mut T {
        paging::phys_to_virt(address)
    }

    fn processor() -> Self::Processor {
        // SAFETY: `cpu::install` has enabled them, on every CPU; `paging` maps only global pages.
        unsafe { shootdown_hw::x86_64::X86_64::new(cpu::features(), KernelPages::Global) }
    }

    fn kernel_root() -> Root {
        paging::root()
    }

    fn prepare_root(root: Root) {
        paging::share_kernel(root);
    }

    fn set_up_cpu(cpu: u32) {
        apic::set_up();
        if cpu == 0 {
            time::calibrate();
        }
    }

    /// The time-stamp counter ticks once in a nanosecond then.
    #[inline]
    fn instructions() -> u64 {
        time::time_stamp()
    }

    fn saved(start: usize, entry: usize, argument: usize) -> Self::Saved {
        [0, 0, argument, entry, 0, 0, start, 0, 0]
    }

    fn global(entry: u64) -> u64 {
        entry | paging::GLOBAL
    }
}
