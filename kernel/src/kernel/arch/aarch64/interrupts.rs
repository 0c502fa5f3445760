//! Masks, sends, waits for and handles interrupts.

use super::register::{read, run};
use super::{gic, timer};
use crate::kernel::arch::contract::Interrupt;
use crate::kernel::arch::upcalls;

/// The SGIs that CPUs send each other.
const FLUSH: u32 = 0;
const WAKE: u32 = 1;

/// `PSTATE.I`.
const I: u64 = 1 << 7;

#[inline]
pub(super) fn interrupts_masked() -> bool {
    read!("daif") & I != 0
}

#[inline]
pub(super) fn mask_interrupts() {
    run!("msr daifset, #2");
}

#[inline]
pub(super) fn unmask_interrupts() {
    run!("msr daifclr, #2");
}

/// `wfi` also returns for a masked interrupt, and may return without any. `ISR_EL1` has the pending
/// interrupts.
pub(super) fn wait_for_interrupt() {
    // Make stores visible before the CPU may stop for long.
    run!("dsb sy");
    while read!("isr_el1") == 0 {
        run!("wfi");
    }
    unmask_interrupts();
    // Take the interrupt here, not later.
    run!("isb");
    mask_interrupts();
}

pub(super) fn send(cpus: &mut dyn Iterator<Item = u32>, interrupt: Interrupt) {
    let number = match interrupt {
        Interrupt::Flush => FLUSH,
        Interrupt::Wake => WAKE,
        Interrupt::Timer => unreachable!("a timer interrupts only its own CPU"),
    };
    gic::send(cpus, number);
}

/// Handles an interrupt of the kernel (called from `vectors.s`) or of a user thread.
#[unsafe(no_mangle)]
pub(super) extern "C" fn take_interrupt() {
    // The interrupt may be gone: for example, the timer's if the timer was set again.
    let Some(number) = gic::acknowledge() else { return };
    let interrupt = match number {
        FLUSH => Interrupt::Flush,
        WAKE => Interrupt::Wake,
        gic::TIMER => {
            timer::stop();
            Interrupt::Timer
        }
        other => panic!("unexpected interrupt {other}"),
    };
    gic::finish(number);
    upcalls::interrupt(interrupt);
    debug_assert!(interrupts_masked());
}
