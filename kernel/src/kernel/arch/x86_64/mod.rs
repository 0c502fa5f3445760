//! x86-64: QEMU's `pc` and `q35`, and other machines with a local APIC, an 8254 and a serial port
//! at their usual addresses.
//!
//! # Starting it
//!
//! ```text
//! qemu-system-x86_64 -M q35 -cpu max -smp 4 -m 512M -accel tcg,thread=multi \
//!     -nographic -no-reboot -device isa-debug-exit,iobase=0xf4,iosize=4 \
//!     -kernel shootdown-kernel -initrd LOAD
//! ```
//!
//! `-M pc` also works, and so does `-accel tcg -icount shift=0,sleep=off`, with which two runs
//! write the same bytes. The kernel is one 64-bit ELF file. QEMU starts it by its PVH note. It also
//! has a multiboot2 header for GRUB (`multiboot2 KERNEL` and `module2 LOAD`). `shootdown boot
//! --emulator bochs` makes a disc with GRUB for Bochs.
//!
//! `LOAD` is the first module; with `-kernel`, that is the initial RAM disk. The boot loader
//! reports the memory. The kernel uses only the piece in which it is loaded, from 2 MiB on. CPU *n*
//! has APIC id *n*, as QEMU numbers them.
//!
//! # Ending it
//!
//! | status | meaning |
//! |---|---|
//! | 33 | `end passed`: 0x10 was written to `isa-debug-exit` |
//! | 35 | `end failed`: 0x11 was written; a line that begins with `fatal` has the reason |
//! | 0 | a triple fault (with `-no-reboot`), or there is no `isa-debug-exit` |
//!
//! Without that device, the kernel tries Bochs' port (status 1 in all cases), ACPI's power-off, and
//! finally a triple fault.
//!
//! # Limits of the emulators
//!
//! - QEMU has no PCIDs, no `INVPCID` and no `INVLPGB`, and each load of a root empties the TLB. So
//!   it does not detect a missing flush of a space that is loaded again (but `LoongArch64` does).
//!   Bochs has the first two, and drops all but global pages whenever a root is loaded.
//! - In QEMU, loading a root also drops global pages. Neither emulator caches upper levels. So they
//!   do not detect a missing flush before page tables are freed, and QEMU does not detect a missing
//!   flush of kernel pages.
//! - QEMU's loads and stores are ordered as the host's, and `wrmsr` is a call into QEMU. So it does
//!   not detect a write of an x2APIC register that overtakes a store.
//! - Large pages make QEMU flush too much: see `paging`.

#![expect(unsafe_code, reason = "implements the contract of `Architecture`")]

mod apic;
mod boot;
mod boot_info;
mod cpu;
mod end;
mod paging;
mod smp;
mod time;
mod traps;
mod uart;
mod user;
mod user_half;
mod vectors;

use core::arch::asm;

use super::contract::{Architecture, Interrupt, Status, User, UserExit, implement_by};
use shootdown::Root;
use shootdown_hw::x86_64::KernelPages;
use x86::instructions::interrupts;

/// The x86-64 architecture.
pub(crate) enum X86_64 {}

// SAFETY: the module of each method implements the contract.
unsafe impl Architecture for X86_64 {
    type Processor = user_half::Processor;
    type Format = shootdown_vm::X86_64;
    /// R15, R14, R13, R12, RBX, RBP, the return address, and two words that align the stack to 16
    /// bytes, as before any call.
    type Saved = [usize; 9];

    const NAME: &'static str = "x86_64";
    const CAN_RESTART_CPUS: bool = true;

    implement_by! {
        smp: start_cpu, switch_off;
        cpu: cpu;
        apic: send;
        time: now_ns, set_timer_ns;
        user: run_user;
        uart: write;
        end: exit;
    }

    fn interrupts_masked() -> bool {
        !interrupts::are_enabled()
    }

    fn mask_interrupts() {
        interrupts::disable();
    }

    fn unmask_interrupts() {
        // The library's function has a `nop` after this instruction, which each critical section
        // would execute.
        // SAFETY: the interrupts have handlers. The compiler moves no memory access across.
        unsafe { asm!("sti", options(nostack, preserves_flags)) };
    }

    /// Interrupts are enabled only after the instruction that follows `sti`. So none is taken
    /// before `hlt`, which would then wait for another.
    fn wait_for_interrupt() {
        interrupts::enable_and_hlt();
        interrupts::disable();
    }

    fn phys_to_virt<T>(address: u64) -> *mut T {
        paging::phys_to_virt(address)
    }

    fn processor() -> Self::Processor {
        // SAFETY: `cpu::install` has enabled the features on every CPU, and `paging` maps the
        // kernel by global pages only.
        let processor =
            unsafe { shootdown_hw::x86_64::X86_64::new(cpu::features(), KernelPages::Global) };
        user_half::processor(processor)
    }

    fn kernel_root() -> Root {
        paging::root()
    }

    fn prepare_root(root: Root) {
        paging::share_kernel(root);
    }

    fn set_up_cpu(cpu: u32) {
        apic::set_up(cpu);
        if cpu == 0 {
            time::calibrate();
        }
    }

    fn saved(start: usize, entry: usize, argument: usize) -> Self::Saved {
        [0, 0, argument, entry, 0, 0, start, 0, 0]
    }

    fn global(entry: u64) -> u64 {
        entry | paging::GLOBAL
    }
}
