//! Masks, sends, waits for and handles interrupts.
//!
//! A hart has one software interrupt. So the sender puts the reason into a word of the receiver
//! before it interrupts it.

use core::sync::atomic::{AtomicU32, Ordering};

use shootdown_hw::Ipi as _;
use shootdown_hw::riscv64::SbiIpi;

use super::csr::{read, run, write};
use super::{cpu, harts, timer};
use crate::kernel::arch::contract::Interrupt;
use crate::kernel::arch::upcalls;

/// The largest number of CPUs: QEMU's machine has up to 512.
const CPUS_MAX: usize = 512;

/// The bits of `sip` and `sie`.
const SOFTWARE: u64 = 1 << 1;
const TIMER: u64 = 1 << 5;
/// `sstatus.SIE`.
const ENABLED: u64 = 1 << 1;

/// Reasons of a software interrupt: bits of a word in [`REASONS`].
const FLUSH: u32 = 1 << 0;
const WAKE: u32 = 1 << 1;

/// For each CPU, the reasons of the interrupts that it has not handled.
static REASONS: [AtomicU32; CPUS_MAX] = [const { AtomicU32::new(0) }; CPUS_MAX];

/// Enables this CPU's interrupts one by one. They stay masked.
pub(super) fn set_up() {
    timer::stop();
    // SAFETY: `take_interrupts` handles both.
    unsafe { write!("csrw sie", SOFTWARE | TIMER) };
}

#[inline]
pub(super) fn interrupts_masked() -> bool {
    read!("sstatus") & ENABLED == 0
}

#[inline]
pub(super) fn mask_interrupts() {
    run!("csrci sstatus, 2");
}

#[inline]
pub(super) fn unmask_interrupts() {
    run!("csrsi sstatus, 2");
}

/// `wfi` also returns for a masked interrupt, and may return without any.
pub(super) fn wait_for_interrupt() {
    while read!("sip") & (SOFTWARE | TIMER) == 0 {
        run!("wfi");
    }
    // The interrupt is taken between these two.
    unmask_interrupts();
    mask_interrupts();
}

pub(super) fn send(cpus: &mut dyn Iterator<Item = u32>, interrupt: Interrupt) {
    let reason = match interrupt {
        Interrupt::Flush => FLUSH,
        Interrupt::Wake => WAKE,
        Interrupt::Timer => unreachable!("a timer interrupts only its own CPU"),
    };
    ipi().send(cpus.map(|cpu| {
        // Release: the handler, which takes the reason, observes all earlier stores.
        REASONS[cpu as usize].fetch_or(reason, Ordering::Release);
        harts::of_cpu(cpu)
    }));
}

fn ipi() -> SbiIpi {
    // SAFETY: the kernel runs in S-mode, and `take_interrupts` handles the interrupt.
    unsafe { SbiIpi::new() }
}

/// Handles all pending interrupts, of the kernel (called from `trap.s`) or of a user thread.
#[unsafe(no_mangle)]
pub(super) extern "C" fn take_interrupts() {
    let pending = read!("sip");
    if pending & TIMER != 0 {
        timer::stop();
        upcalls::interrupt(Interrupt::Timer);
    }
    if pending & SOFTWARE != 0 {
        // Before the reasons are taken: a CPU that adds one from here on causes another interrupt.
        ipi().acknowledge();
        // Acquire: observes the stores of the sender from before the interrupt.
        let reasons = REASONS[cpu() as usize].swap(0, Ordering::Acquire);
        for (reason, interrupt) in [(FLUSH, Interrupt::Flush), (WAKE, Interrupt::Wake)] {
            if reasons & reason != 0 {
                upcalls::interrupt(interrupt);
            }
        }
    }
    debug_assert!(interrupts_masked());
}
