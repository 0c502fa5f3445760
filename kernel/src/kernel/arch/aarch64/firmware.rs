//! Firmware calls (PSCI): start and stop CPUs, and switch the machine off. The calls are to EL2,
//! where QEMU plays the firmware.

use smccc::Hvc;
use smccc::psci::error::Error;
use smccc::psci::{cpu_off, cpu_on, system_off};

use super::register::run;

/// Starts the CPU of this affinity at a physical address, with `context` in x0. Waits for a CPU
/// that is about to switch itself off.
pub(super) fn start_cpu(affinity: u64, address: u64, context: u64) {
    const TURNS_MAX: u32 = 1_000_000;
    for _ in 0..TURNS_MAX {
        match cpu_on::<Hvc>(affinity, address, context) {
            Ok(()) => return,
            Err(Error::AlreadyOn) => run!("yield"),
            Err(error) => panic!("PSCI does not start CPU {affinity:#x}: {error}"),
        }
    }
    panic!("CPU {affinity:#x} stays on");
}

/// Switches off the calling CPU.
pub(super) fn switch_off() -> ! {
    panic!("PSCI does not switch this CPU off: {:?}", cpu_off::<Hvc>());
}

/// Switches off the machine. The emulator's status is then 0.
pub(super) fn power_off() -> ! {
    let _ = system_off::<Hvc>();
    loop {
        run!("wfi");
    }
}
