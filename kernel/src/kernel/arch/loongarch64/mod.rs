//! `LoongArch64`, on QEMU's machine `virt`.
//!
//! In the order of things: [`boot`] and `boot.s`, from reset to Rust; [`windows`], how the kernel
//! sees memory; [`firmware`], how much there is; [`trap`] and `trap.s`, exceptions and TLB refills;
//! [`interrupts`], with the start of other CPUs; [`timer`]; [`user`], and [`walk`], which is as
//! much of an MMU as the hardware leaves to software; [`devices`], the console and the end.
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
//! The target's `core` is built from source, which any stable compiler does that has the component
//! `rust-src` and is told so by `RUSTC_BOOTSTRAP`. Where the target itself can be had (`rustup
//! target add`), neither is needed. It is the one without floating point, so that an exception
//! saves 18 registers and not 32 more of vectors.
//!
//! For a run that is the same each time, `-icount shift=0,sleep=off -seed 1` instead of `-accel`:
//! the seed, for which place in the TLB a refill takes is random.
//!
//! **The status is always 0**, for the machine can only be switched off: the last line of the
//! console says whether it passed. A run without such a line has crashed.
//!
//! `LOAD` is what to do, and may be left out; it has up to 128 MiB, from 128 MiB on. With the
//! kernel, which is loaded at 2 MiB, it has the lower 256 MiB of memory. All else is for
//! [`Boot::memory`](super::Boot::memory), from 2 GiB on; so `-m` must say more than 256 MiB.
//!
//! QEMU 10.0 is tried. Before 9.0, all CPUs come to the kernel's entry instead of waiting in
//! firmware: all but the first are parked, and the run fails in the end for they do not come. In
//! 7.2, memory goes on elsewhere, and the kernel fails as soon as it uses some; and if it is told
//! where, user mode fails at its first instruction, for 7.2 has pages of 16 KiB inside, and
//! translates entries of 4 KiB wrongly.
//!
//! # What the emulator does not show
//!
//! The TLB that the kernel fills is kept exactly: 2048 pairs in 8 ways and 64 more of other sizes,
//! each with its ASID, dropped by `INVTLB` alone, as it says. But:
//!
//! - **NX is not enforced.** `LDPTE` loses it. Where the TLB is filled by other instructions, and
//!   so has it, QEMU 10.0 hangs when it is to refuse a fetch: it reads the instruction, for BADI,
//!   is refused itself, and begins anew (nor does SIGTERM end it then). So whether a thread may
//!   execute its page is looked up before it enters user mode ([`user`]); what it jumps to is not
//!   refused.
//! - Fills take a random way: something that is stale may be gone one time out of eight.
//! - Nothing is walked but on a refill, one CPU at a time: there is no speculation, and no HPTW.
//! - Its memory is ordered as the host's is. On x86-64, a `DBAR` that is missing is missed only
//!   where a load passes a store.
//! - There is no hint for loops that wait. With `-icount`, a CPU that spins keeps the others from
//!   running for up to 0.1 s of its time, unless it sends an interrupt.
//! - Addresses in a window have no guard pages: a kernel stack that overflows writes on.

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

/// The architecture that the kernel is built for.
#[derive(Debug)]
pub(crate) enum LoongArch64 {}

// SAFETY: each method is what its module says.
#[expect(unsafe_code, reason = "the promises are the modules'")]
unsafe impl Architecture for LoongArch64 {
    type Processor = Processor;
    type Format = shootdown_vm::LoongArch64;
    /// As `trap.s` has them: $ra, $fp, $s0 to $s8, and a word that aligns the stack.
    type Saved = [usize; 12];

    const NAME: &'static str = "loongarch64";
    /// There is firmware for that on machines, and none on QEMU's.
    const CAN_RESTART_CPUS: bool = false;

    implement_by! {
        boot {
            fn set_up_cpu(cpu: u32);
        }
        interrupts {
            fn start_cpu(cpu: u32, stack_end: usize);
            fn interrupts_masked() -> bool;
            fn mask_interrupts();
            fn unmask_interrupts();
            fn wait_for_interrupt();
            fn send(cpus: &mut dyn Iterator<Item = u32>, interrupt: Interrupt);
        }
        timer {
            fn now_ns() -> u64;
            fn set_timer_ns(delay_ns: u64);
        }
        user {
            fn run_user(user: &mut User) -> UserExit;
        }
        devices {
            fn write(byte: u8);
        }
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

    /// The kernel is in no table.
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

    /// The counter ticks once in ten nanoseconds.
    #[inline]
    fn instructions() -> u64 {
        timer::now_ns()
    }

    fn saved(start: usize, entry: usize, argument: usize) -> Self::Saved {
        [start, 0, entry, argument, 0, 0, 0, 0, 0, 0, 0, 0]
    }

    /// Refills load what is there, valid or not, and it stays.
    fn fix_spurious_fault(address: u64) {
        Self::processor().forget(address);
    }

    /// Both ends look alike from outside: the last line is what tells them apart.
    fn exit(_: Status) -> ! {
        devices::power_off()
    }
}
