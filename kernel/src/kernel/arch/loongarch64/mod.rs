//! `LoongArch64`, on QEMU's machine `virt`.
//!
//! In reading order: [`boot`] and `boot.s`, from reset to Rust; [`windows`], the addresses of
//! physical memory; [`firmware`], the size of memory; [`trap`] and `trap.s`, exceptions and TLB
//! refills; [`interrupts`], which also starts other CPUs; [`timer`]; [`user`], and [`walk`], the
//! part of an MMU that this hardware leaves to software; [`devices`], the console and the power
//! switch.
//!
//! # Starting it
//!
//! ```text
//! RUSTC_BOOTSTRAP=1 cargo build -Zbuild-std=core,alloc \
//!     --target loongarch64-unknown-none-softfloat -p shootdown-kernel
//! qemu-system-loongarch64 -M virt -cpu la464 -m 512M -smp 4 -accel tcg,thread=multi \
//!     -kernel shootdown-kernel -device loader,file=LOAD,addr=0x8000000,force-raw=on \
//!     -display none -monitor none -serial stdio
//! ```
//!
//! The target's `core` is built from source. Any stable compiler can do this with the component
//! `rust-src` and `RUSTC_BOOTSTRAP`. If the target can be installed (`rustup target add`), neither
//! is needed. The target has no floating point, so an exception saves 18 registers instead of 18
//! and 32 vector registers.
//!
//! For a run that is the same each time, use `-icount shift=0,sleep=off -seed 1` instead of
//! `-accel`. The seed selects the random ways of the TLB that refills use.
//!
//! **The status is always 0**, because the machine can only be switched off. The last line of the
//! console has the result. A run without that line has crashed.
//!
//! `LOAD` is the load, of up to 128 MiB, at 128 MiB; it may be left out. The lower 256 MiB of
//! memory hold the load and the kernel, which is loaded at 2 MiB. The rest of memory is
//! [`Boot::memory`](super::Boot::memory), from 2 GiB on, so `-m` must be more than 256 MiB.
//!
//! The kernel is tested with QEMU 10.0. Before 9.0, all CPUs enter the kernel instead of waiting in
//! firmware. All but the first are parked, and the run fails because they do not start. QEMU 7.2
//! also has memory at another address, so the kernel fails at its first access. Even with that
//! address, user mode fails at its first instruction, because 7.2 has pages of 16 KiB internally
//! and translates entries of 4 KiB wrongly.
//!
//! # Limits of the emulator
//!
//! It models the TLB that the kernel fills exactly: 2048 pairs in 8 ways and 64 pairs of other
//! sizes, each with its ASID. Only `INVTLB` drops them, and only those that it names. But:
//!
//! - **NX is not enforced.** `LDPTE` loses it. If other instructions fill the TLB and keep NX, QEMU
//!   10.0 hangs when it should refuse a fetch: it reads the instruction for BADI, that read is
//!   refused, and it starts again (SIGTERM does not end it then). Therefore [`user`] looks up
//!   whether a thread may execute its page before the thread enters user mode. A jump to another
//!   page is not refused.
//! - Fills take a random way, so a stale entry is gone in one of eight cases.
//! - Tables are walked only for a refill, on one CPU at a time: there is no speculation and no
//!   HPTW.
//! - Its memory is ordered as the host's. On x86-64, the absence of a `DBAR` is detected only if a
//!   load passes a store.
//! - It has no hint for loops that wait. With `-icount`, a CPU that spins stops the others for up
//!   to 0.1 s of its time, unless it sends an interrupt.
//! - Windows have no guard pages: a kernel stack that overflows overwrites other memory.

mod boot;
mod csr;
mod devices;
mod firmware;
mod interrupts;
mod timer;
mod trap;
mod user;
mod walk;
mod windows;

use shootdown::Root;
use shootdown_hw::loongarch64::LoongArch64 as Processor;

use super::contract::{Architecture, Interrupt, Status, User, UserExit, implement_by};

/// The `LoongArch64` architecture.
#[derive(Debug)]
pub(crate) enum LoongArch64 {}

// SAFETY: the module of each method implements the contract.
#[expect(unsafe_code, reason = "the modules implement the contract")]
unsafe impl Architecture for LoongArch64 {
    type Processor = Processor;
    type Format = shootdown_vm::LoongArch64;
    /// As `trap.s` pops them: $ra, $fp, $s0 to $s8, and a word that aligns the stack.
    type Saved = [usize; 12];

    const NAME: &'static str = "loongarch64";
    /// Real machines have firmware that restarts CPUs; QEMU's machine does not.
    const CAN_RESTART_CPUS: bool = false;

    implement_by! {
        boot: set_up_cpu;
        interrupts: start_cpu, interrupts_masked, mask_interrupts, unmask_interrupts,
            wait_for_interrupt, send;
        timer: now_ns, set_timer_ns;
        user: run_user;
        devices: write;
    }

    fn phys_to_virt<T>(address: u64) -> *mut T {
        windows::memory(address)
    }

    fn processor() -> Processor {
        Processor::detect()
    }

    fn kernel_root() -> Root {
        boot::EMPTY_ROOT
    }

    /// Does nothing: no table maps the kernel.
    fn prepare_root(_: Root) {}

    fn switch_off() -> ! {
        loop {
            Self::wait_for_interrupt();
        }
    }

    #[inline]
    fn cpu() -> u32 {
        csr::read::<{ csr::CPUID }>() as u32 & 0x1ff
    }

    fn saved(start: usize, entry: usize, argument: usize) -> Self::Saved {
        [start, 0, entry, argument, 0, 0, 0, 0, 0, 0, 0, 0]
    }

    /// Switches the machine off. The emulator's status does not depend on the result; the last line
    /// of the console has it.
    fn exit(_: Status) -> ! {
        devices::power_off()
    }
}
