//! RISC-V with 64 bits, on QEMU's machine `virt`, in S-mode above `OpenSBI`.
//!
//! In reading order: [`boot`] and `boot.s`, from the firmware to Rust; [`tables`], the kernel's
//! page tables; [`harts`] and [`firmware`], which start other CPUs; [`timer`] and [`interrupts`];
//! [`traps`] and `trap.s`, user mode and exceptions; [`guest`], which needs H (`h=true`);
//! [`devices`], the console and the end.
//!
//! # Starting it
//!
//! ```text
//! qemu-system-riscv64 -M virt -cpu rv64,svade=off,svadu=on -m 512M -smp 4 \
//!     -accel tcg,thread=multi -kernel shootdown-kernel \
//!     -device loader,file=LOAD,addr=0x84000000,force-raw=on \
//!     -display none -monitor none -serial stdio
//! ```
//!
//! The kernel is built by `cargo build -p shootdown-kernel --target
//! riscv64imac-unknown-none-elf`. The target has no floating point, so an interrupt saves 16
//! registers. For a run that is the same each time, use `-icount shift=6,sleep=off` instead of
//! `-accel`. The emulator's status is 42 if the run passed and 43 if it failed.
//!
//! `LOAD` is the load, of up to 128 MiB, at 64 MiB above the beginning of memory. Without it, the
//! kernel runs on one CPU. The page tables are in a format for an MMU that sets A and D by itself
//! (Svadu). QEMU has it from 8.1 on; before 10.0, any older version that sets them will do.
//!
//! # Limits of the emulator
//!
//! - It empties a CPU's whole TLB at every write of `satp` that changes it, and at every
//!   `SFENCE.VMA`, whatever page or ASID that names. So it detects neither a stale entry after a
//!   switch to another space and back, nor a fence that names the wrong page or the wrong ASID, nor
//!   that a write of `satp` drops nothing. What it shows is a CPU that was missed altogether.
//! - It caches no upper levels and does not walk early, and it remembers no refused access. So it
//!   does not show the absence of `forget_refused`.
//! - It has no hint for loops that wait. With `-icount`, a CPU that spins stops the others for up
//!   to 0.1 s of its time, unless it sends an interrupt. With `shift=6`, that is few instructions.
//! - Svinval's barriers do nothing.
//! - Its memory is ordered as the host's. On x86-64, the absence of a `fence` is detected only if a
//!   load passes a store.

#![expect(unsafe_code, reason = "executes privileged instructions and accesses devices")]

mod boot;
mod csr;
mod devices;
mod firmware;
pub(crate) mod guest;
mod harts;
mod interrupts;
mod tables;
mod timer;
mod traps;

use core::arch::asm;

use shootdown::Root;
use shootdown_hw::riscv64::RiscV64 as Processor;

use super::contract::{Architecture, Interrupt, Status, User, UserExit, implement_by};
use super::high_half;

/// The RISC-V architecture.
#[derive(Debug)]
pub(crate) enum Riscv64 {}

/// The number of the CPU that runs this.
#[inline]
fn cpu() -> u32 {
    let number: u64;
    // SAFETY: reading a register has no effect. It is not `pure`, because threads change CPUs.
    unsafe { asm!("mv {}, tp", out(reg) number, options(nomem, nostack, preserves_flags)) };
    number as u32
}

// SAFETY: the module of each method implements the contract.
unsafe impl Architecture for Riscv64 {
    type Processor = Processor;
    type Format = shootdown_vm::Sv48;
    /// As `trap.s` pops them: ra, s0 to s11, and a word that aligns the stack.
    type Saved = [usize; 14];

    const NAME: &'static str = "riscv64";
    const CAN_RESTART_CPUS: bool = true;

    implement_by! {
        tables: kernel_root, prepare_root;
        boot: set_up_cpu, start_cpu;
        interrupts: interrupts_masked, mask_interrupts, unmask_interrupts, wait_for_interrupt, send;
        timer: now_ns, set_timer_ns;
        traps: run_user;
        devices: write;
    }

    fn phys_to_virt<T>(address: u64) -> *mut T {
        high_half::phys_to_virt(address)
    }

    fn processor() -> Processor {
        // SAFETY: all emulated CPUs have the features, the kernel's leaves alone are global, and
        // its root maps no user page. The emulator walks tables within the instruction that needs a
        // translation.
        unsafe { Processor::new(boot::features()).assuming_satp_ends_walks() }
    }

    /// With SBI's remote fences.
    fn broadcasting_processor() -> Processor {
        // SAFETY: OpenSBI has the extension, and waits until the fences are complete. CPUs keep the
        // numbers of their harts.
        unsafe { Self::processor().with_remote_fences(|cpu| harts::of_cpu(cpu.0)) }
    }

    fn switch_off() -> ! {
        firmware::stop_hart()
    }

    #[inline]
    fn cpu() -> u32 {
        cpu()
    }

    fn saved(start: usize, entry: usize, argument: usize) -> Self::Saved {
        [start, entry, argument, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    }

    fn global(entry: u64) -> u64 {
        entry | tables::GLOBAL
    }

    fn exit(status: Status) -> ! {
        devices::exit(status)
    }
}
