//! Firmware calls (PSCI): start and stop CPUs, and switch the machine off.

use core::sync::atomic::{AtomicBool, Ordering};

use smccc::psci::error::Error;
use smccc::psci::{cpu_off, cpu_on, system_off};
use smccc::{Hvc, Smc};

use super::register::run;

/// The instruction that calls firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conduit {
    /// To EL2. Where the kernel does not own EL2, QEMU plays the firmware there.
    Hvc,
    /// To EL3. The kernel came from EL2 itself, and left no code there.
    Smc,
}

/// `true` if the first CPU entered at EL2.
static CAME_AT_EL2: AtomicBool = AtomicBool::new(false);

pub(super) fn set_conduit(conduit: Conduit) {
    CAME_AT_EL2.store(conduit == Conduit::Smc, Ordering::Relaxed);
}

/// Calls a firmware function by the conduit.
macro_rules! call {
    ($function:ident($($argument:expr),*)) => {
        if CAME_AT_EL2.load(Ordering::Relaxed) {
            $function::<Smc>($($argument),*)
        } else {
            $function::<Hvc>($($argument),*)
        }
    };
}

/// Starts the CPU of this affinity at a physical address, with `context` in x0. Waits for a CPU
/// that is about to switch itself off.
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

/// Switches off the calling CPU.
pub(super) fn switch_off() -> ! {
    panic!("PSCI does not switch this CPU off: {:?}", call!(cpu_off()));
}

/// Switches off the machine. The emulator's status is then 0.
pub(super) fn power_off() -> ! {
    let _ = call!(system_off());
    loop {
        run!("wfi");
    }
}
