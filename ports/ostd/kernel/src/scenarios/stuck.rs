//! A fault to inject: a CPU that never answers. A watchdog outside of the kernel must detect it.

use alloc::sync::Arc;

use super::others;
use crate::gate::Gate;
use crate::process::{WORK, map_fresh, process, touch_fresh, unmap};
use crate::scheduler::{run_on, spawn};
use crate::user;

/// Does not return: a flush waits for a CPU that runs the process and has masked its interrupts.
///
/// # Panics
///
/// If there is one CPU only.
pub fn stuck() {
    let space = process();
    let masked = Arc::new(Gate::default());
    let (its_masked, other) = (masked.clone(), others()[0]);
    spawn(other, Some(&space), move || {
        let _masked = ostd::irq::disable_local();
        its_masked.arrive_quietly();
        loop {
            core::hint::spin_loop();
        }
    });
    masked.spin_until(1);
    run_on(0, &space, |space| {
        map_fresh(space, WORK, 1);
        touch_fresh(&mut user::thread(), WORK, 1);
        unmap(space, WORK, 1);
    });
}
