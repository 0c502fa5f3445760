//! The clock and the timer: the virtual timer of the generic timer, which guests of hypervisors can
//! also use.

use super::register::{read, run, write};
use crate::kernel::arch::ticks::{NS_PER_S, scale};

/// `CNTV_CTL_EL0`.
const ENABLED: u64 = 1 << 0;

pub(super) fn now_ns() -> u64 {
    scale(counter(), frequency_hz(), NS_PER_S)
}

/// Requests one interrupt after `delay_ns`.
pub(super) fn set_timer_ns(delay_ns: u64) {
    // One tick more, so that the interrupt does not come too early.
    let ticks = scale(delay_ns, NS_PER_S, frequency_hz()) + 1;
    // SAFETY: the kernel handles the interrupt.
    unsafe {
        write!("cntv_cval_el0", counter().saturating_add(ticks));
        write!("cntv_ctl_el0", ENABLED);
    }
    run!("isb");
}

/// Stops the timer. Until it is stopped or set again, it keeps interrupting.
pub(super) fn stop() {
    // SAFETY: no thread waits for its interrupt.
    unsafe { write!("cntv_ctl_el0", 0) };
    run!("isb");
}

/// The counter, which is the same on all CPUs. The `isb` keeps the read after earlier instructions.
fn counter() -> u64 {
    run!("isb");
    read!("cntvct_el0")
}

fn frequency_hz() -> u64 {
    read!("cntfrq_el0")
}
