//! Interrupts: masked and not, sent and taken.

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

/// `wfi` ends for an interrupt that is masked, too, and may end for none: whether one is pending is
/// what `ISR_EL1` says.
pub(super) fn wait_for_interrupt() {
    // Stores are visible before the CPU may stop for long.
    run!("dsb sy");
    while read!("isr_el1") == 0 {
        run!("wfi");
    }
    unmask_interrupts();
    // It is taken here, and no later.
    run!("isb");
    mask_interrupts();
}

pub(super) fn send(cpus: &mut dyn Iterator<Item = u32>, interrupt: Interrupt) {
    let number = match interrupt {
        Interrupt::Flush => FLUSH,
        Interrupt::Wake => WAKE,
        Interrupt::Timer => unreachable!("a CPU's timer is its own"),
    };
    gic::send(cpus, number);
}

/// An interrupt has come while the kernel ran (from `vectors.s`), or a user thread.
#[unsafe(no_mangle)]
pub(super) extern "C" fn take_interrupt() {
    // It may have gone again, as a timer's does that was set anew.
    let Some(number) = gic::acknowledge() else { return };
    let interrupt = match number {
        FLUSH => Interrupt::Flush,
        WAKE => Interrupt::Wake,
        gic::TIMER => {
            timer::stop();
            Interrupt::Timer
        }
        other => panic!("interrupt {other} is nobody's"),
    };
    gic::finish(number);
    upcalls::interrupt(interrupt);
    debug_assert!(interrupts_masked());
}
