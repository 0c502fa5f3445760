//! Calls of firmware, by PSCI: to start CPUs, and to stop the machine.

use core::sync::atomic::{AtomicBool, Ordering};

use smccc::psci::error::Error;
use smccc::psci::{cpu_off, cpu_on, system_off};
use smccc::{Hvc, Smc};

use super::register::run;

/// The instruction that calls firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conduit {
    /// It is at EL2: where there is no EL2 for us, QEMU plays it.
    Hvc,
    /// It is at EL3: we have come from EL2 ourselves, and nobody is there any more.
    Smc,
}

/// The first CPU came at EL2.
static CAME_AT_EL2: AtomicBool = AtomicBool::new(false);

pub(super) fn set_conduit(conduit: Conduit) {
    CAME_AT_EL2.store(conduit == Conduit::Smc, Ordering::Relaxed);
}

/// Calls a function by the conduit.
macro_rules! call {
    ($function:ident($($argument:expr),*)) => {
        if CAME_AT_EL2.load(Ordering::Relaxed) {
            $function::<Smc>($($argument),*)
        } else {
            $function::<Hvc>($($argument),*)
        }
    };
}

/// Makes a CPU, by its affinity, begin at a physical address, with `context` in x0. Waits for one
/// that is about to be off.
pub(super) fn start_cpu(affinity: u64, address: u64, context: u64) {
    const TURNS_MAX: u32 = 1_000_000;
    for _ in 0..TURNS_MAX {
        match call!(cpu_on(affinity, address, context)) {
            Ok(()) => return,
            Err(Error::AlreadyOn) => run!("yield"),
            Err(error) => panic!("PSCI does not start CPU {affinity:#x}: {error}"),
        }
    }
    panic!("CPU {affinity:#x} stays on");
}

/// Switches the calling CPU off.
pub(super) fn switch_off() -> ! {
    panic!("PSCI does not switch this CPU off: {:?}", call!(cpu_off()));
}

/// Stops the machine; the emulator's status is 0.
pub(super) fn power_off() -> ! {
    let _ = call!(system_off());
    loop {
        run!("wfi");
    }
}
