//! `AArch64`, on QEMU's `virt` machine.
//!
//! In the order of things: [`boot`] and `boot.s`, from reset to Rust; [`tables`], how the kernel is
//! mapped; [`device_tree`], how much memory there is; [`firmware`], which starts other CPUs;
//! [`gic`] and [`interrupts`]; [`timer`]; [`exceptions`] and `vectors.s`; [`user`], `user.s` and
//! `switch.s`; [`console`]; [`end`].
//!
//! # Starting it
//!
//! ```text
//! qemu-system-aarch64 -M virt,gic-version=3 -cpu max -m 512M -smp 4 -accel tcg,thread=multi \
//!     -kernel shootdown-kernel -semihosting-config enable=on,target=native \
//!     -device loader,file=LOAD,addr=0x44000000,force-raw=on \
//!     -display none -monitor none -serial stdio
//! ```
//!
//! for a kernel that was built by `cargo build -p shootdown-kernel --target
//! aarch64-unknown-none-softfloat`, with `-icount shift=0,sleep=off` instead of `-accel` for a run
//! that is the same each time. The status is 42 if it passed, 43 if it failed, and 0 only if there
//! was no semihosting to say either by: then, the last line of the console does.
//!
//! `LOAD` is what to do, up to 128 MiB of it, from 64 MiB above where memory begins. It may be left
//! out; the kernel then takes it that there is one CPU. How much memory there is, up to 16 GiB, it
//! finds in the device tree, which is where memory begins. With `virtualization=on` it comes in at
//! EL2, and goes down to EL1; at EL3 (`secure=on`) it fails at once, as on processors without
//! `FEAT_HAFDBS`. (QEMU: `cortex-a76` and later ones have it.)
//!
//! # Why no floating point
//!
//! The target is the one without (`-softfloat`): vectors save x0 to x30, and a thread is 12 words
//! on its stack. With the other, the compiler copies and clears memory by vector registers, all 32
//! of which, 512 bytes, would have to be saved at each interrupt. `CPACR_EL1` has them trap.
//!
//! # What the emulator does not show
//!
//! - It empties all of a CPU's TLB when the ASID in TTBR0 changes, and for each `TLBI` of an ASID,
//!   whichever it names. So what is stale after a switch there and back is never seen, nor an
//!   invalidation of the wrong ASID. It empties it, too, for a range of more pages than it likes,
//!   wherever that is. And it knows nothing of levels: it finds what a wrong hint would lose, and
//!   what a last-level operation leaves of upper levels it never had.
//! - It keeps instruction caches coherent. Where `CTR_EL0` has DIC or IDC 0, who copies code to a
//!   page must clean and invalidate it before it is run (`dc cvau`, `ic ivau`): nobody here does.
//! - Its memory is ordered as the host's is. On x86-64, a `dsb` or `dmb` that is missing is missed
//!   only where a load passes a store.
//! - It does not mind a stack that is not aligned (`SCTLR_EL1.SA`), nor remember, as a processor
//!   may, that an access was refused.
//! - A `TLBI` that is broadcast has taken effect on all CPUs soon after it was issued, and before
//!   the `dsb`: what a missing one does is not seen.

#![expect(unsafe_code, reason = "the machine is underneath")]

mod boot;
mod console;
mod device_tree;
mod end;
mod exceptions;
mod firmware;
mod gic;
mod interrupts;
mod register;
mod tables;
mod timer;
mod user;

use shootdown::Root;
use shootdown_hw::aarch64::Features;

use super::contract::{Architecture, Interrupt, Status, User, UserExit, implement_by};
use register::{read, run};

/// `AArch64`, as [`Architecture`] has it.
pub(crate) enum Aarch64 {}

// SAFETY: each method does what it says, by the module that it is from.
unsafe impl Architecture for Aarch64 {
    type Processor = shootdown_hw::aarch64::Aarch64;
    type Format = shootdown_vm::Aarch64;
    /// x19 to x30.
    type Saved = [usize; 12];

    const NAME: &'static str = "aarch64";
    const CAN_RESTART_CPUS: bool = true;

    implement_by! {
        tables {
            fn kernel_root() -> Root;
        }
        boot {
            fn set_up_cpu(cpu: u32);
            fn start_cpu(cpu: u32, stack_end: usize);
        }
        firmware {
            fn switch_off() -> !;
        }
        interrupts {
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
        console {
            fn write(byte: u8);
        }
        end {
            fn exit(status: Status) -> !;
        }
    }

    fn phys_to_virt<T>(address: u64) -> *mut T {
        tables::phys_to_virt(address)
    }

    fn processor() -> Self::Processor {
        shootdown_hw::aarch64::Aarch64::new(Features::detect())
    }

    /// The kernel is in TTBR1, whatever is in TTBR0.
    fn prepare_root(_: Root) {}

    #[inline]
    fn cpu() -> u32 {
        read!("tpidr_el1") as u32
    }

    /// What `core::hint::spin_loop` is, an `isb`, tells QEMU nothing.
    #[inline]
    fn spin_hint() {
        run!("yield");
    }

    /// The processor `max` has a counter that ticks once in a nanosecond.
    #[inline]
    fn instructions() -> u64 {
        timer::now_ns()
    }

    fn saved(start: usize, entry: usize, argument: usize) -> Self::Saved {
        [entry, argument, 0, 0, 0, 0, 0, 0, 0, 0, 0, start]
    }

    /// A permission that was found missing may be remembered: the TLB has the entry. So it is
    /// dropped, here alone, as [`shootdown_vm::Aarch64`] asks for. It is dropped under every ASID,
    /// so that it need not be known which is loaded.
    fn fix_spurious_fault(address: u64) {
        /// The address's bits 55 to 12.
        const PAGE: u64 = (1 << 44) - 1;
        let page = address >> 12 & PAGE;
        // SAFETY: what is dropped is walked again.
        unsafe {
            core::arch::asm!("tlbi vaae1, {}", "dsb nsh", "isb", in(reg) page, options(nostack));
        }
    }

    fn global(entry: u64) -> u64 {
        const NOT_GLOBAL: u64 = 1 << 11;
        entry & !NOT_GLOBAL
    }
}
