//! The time, and the timer: the generic timer's virtual one, by which hypervisors let guests live.

use super::register::{read, run, write};

const NS_PER_S: u64 = 1_000_000_000;
/// `CNTV_CTL_EL0`.
const ENABLED: u64 = 1 << 0;

pub(super) fn now_ns() -> u64 {
    let (turns, hz) = (counter(), frequency_hz());
    // In two steps: the product of all would not fit after some seconds.
    turns / hz * NS_PER_S + turns % hz * NS_PER_S / hz
}

/// Once, so long from now.
pub(super) fn set_timer_ns(delay_ns: u64) {
    let hz = frequency_hz();
    // Not too early, so rounded up.
    let turns = delay_ns / NS_PER_S * hz + (delay_ns % NS_PER_S * hz).div_ceil(NS_PER_S);
    // SAFETY: its interrupt is expected.
    unsafe {
        write!("cntv_cval_el0", counter().saturating_add(turns));
        write!("cntv_ctl_el0", ENABLED);
    }
    run!("isb");
}

/// It interrupts no more: until it is stopped or set anew, it does so for ever.
pub(super) fn stop() {
    // SAFETY: nobody waits for it.
    unsafe { write!("cntv_ctl_el0", 0) };
    run!("isb");
}

/// The same on all CPUs. `isb`: it may be read before what is above it in the program.
fn counter() -> u64 {
    run!("isb");
    read!("cntvct_el0")
}

fn frequency_hz() -> u64 {
    read!("cntfrq_el0")
}
