//! `AArch64`, on QEMU's `virt` machine.
//!
//! In reading order: [`boot`] and `boot.s`, from reset to Rust; [`tables`], the kernel's page
//! tables; [`firmware`], which starts other CPUs; [`gic`] and
//! [`interrupts`]; [`timer`]; [`exceptions`] and `vectors.s`; [`user`] and `user.s`;
//! [`guest`]; [`console`]; [`end`].
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
//! The kernel is built by `cargo build -p shootdown-kernel --target
//! aarch64-unknown-none-softfloat`. For a run that is the same each time, use `-icount
//! shift=0,sleep=off` instead of `-accel`. The emulator's status is 42 if the run passed and 43 if
//! it failed. It is 0 only without semihosting; then the last line of the console has the result.
//!
//! `LOAD` is the load, of up to 128 MiB, at 64 MiB above the beginning of memory. Without it, the
//! kernel runs on one CPU. The kernel reads the size of memory, up to 16 GiB, from the device tree,
//! which is at the beginning of memory. At EL3 (`secure=on`) it fails immediately, as on processors
//! without `FEAT_HAFDBS`. (In QEMU, `cortex-a76` and later processors have it.) At EL2
//! (`virtualization=on`), with `FEAT_VHE`, the names of EL1's registers are those of EL2's, so the
//! kernel is the same there. It has no timer then, and runs [guests](guest) only.
//!
//! # Why no floating point
//!
//! The target has no floating point (`-softfloat`): vectors save x0 to x30, and a thread has 12
//! words on its stack. With floating point, the compiler copies and clears memory by vector
//! registers. All 32 of these, 512 bytes, would have to be saved at each interrupt. `CPACR_EL1`
//! makes them trap.
//!
//! # Limits of the emulator
//!
//! - It empties a CPU's whole TLB when the ASID in TTBR0 changes, and for each `TLBI` of an ASID,
//!   whichever ASID that names. So it detects neither a stale entry after a switch to another space
//!   and back, nor an invalidation of the wrong ASID.
//! - It also empties the TLB for a range of more pages than a limit, wherever the range is.
//! - It does not model levels: a wrong level hint loses nothing, and it caches no upper levels that
//!   a last-level operation could leave behind.
//! - It keeps instruction caches coherent. Where `CTR_EL0` has DIC or IDC 0, a kernel that copies
//!   code to a page must clean and invalidate the page before the code is run (`dc cvau`, `ic
//!   ivau`). This kernel does not.
//! - Its memory is ordered as the host's. On x86-64, the absence of a `dsb` or `dmb` is detected
//!   only if a load passes a store.
//! - It does not check the alignment of stacks (`SCTLR_EL1.SA`). It does not remember that an
//!   access was refused, as a processor may.
//! - It has none of the [errata](shootdown_hw::aarch64::errata), and the table of errata has its
//!   processor `max` as one without them.
//! - A broadcast `TLBI` takes effect on all CPUs soon after it was issued, and before the `dsb`:
//!   the absence of a `dsb` is not detected.

#![expect(unsafe_code, reason = "executes privileged instructions and accesses devices")]

mod boot;
mod console;
mod end;
mod exceptions;
mod firmware;
mod gic;
pub(crate) mod guest;
mod interrupts;
mod register;
mod tables;
mod timer;
mod user;
mod user_half;

use shootdown::Root;
use shootdown_hw::aarch64::Features;

use super::contract::{Architecture, Interrupt, Status, User, UserExit, implement_by};
use super::high_half;
use register::{read, run};

/// The `AArch64` architecture.
pub(crate) enum Aarch64 {}

// SAFETY: the module of each method implements the contract.
unsafe impl Architecture for Aarch64 {
    type Processor = user_half::Processor;
    type Format = shootdown_vm::Aarch64;
    /// x19 to x30.
    type Saved = [usize; 12];

    const NAME: &'static str = "aarch64";
    const CAN_RESTART_CPUS: bool = true;

    implement_by! {
        tables: kernel_root;
        boot: set_up_cpu, start_cpu;
        firmware: switch_off;
        interrupts: interrupts_masked, mask_interrupts, unmask_interrupts, wait_for_interrupt, send;
        timer: now_ns, set_timer_ns;
        user: run_user;
        console: write;
        end: exit;
    }

    fn phys_to_virt<T>(address: u64) -> *mut T {
        high_half::phys_to_virt(address)
    }

    fn processor() -> Self::Processor {
        // SAFETY: all emulated CPUs have the features, and `boot.s` sets them up as required.
        let processor = unsafe { shootdown_hw::aarch64::Aarch64::new(Features::detect()) };
        user_half::processor(processor)
    }

    /// Does nothing: TTBR1 maps the kernel, whatever TTBR0 maps.
    fn prepare_root(_: Root) {}

    #[inline]
    fn cpu() -> u32 {
        read!("tpidr_el1") as u32
    }

    /// Executes `yield`. `core::hint::spin_loop` is an `isb`, which is no hint for QEMU.
    #[inline]
    fn spin_hint() {
        run!("yield");
    }

    fn saved(start: usize, entry: usize, argument: usize) -> Self::Saved {
        [entry, argument, 0, 0, 0, 0, 0, 0, 0, 0, 0, start]
    }

    fn global(entry: u64) -> u64 {
        const NOT_GLOBAL: u64 = 1 << 11;
        entry & !NOT_GLOBAL
    }
}
