//! Firmware calls (PSCI): start and stop CPUs, and switch the machine off. The calls are to the
//! level above the kernel's, where QEMU plays the firmware.

use smccc::psci::error::Error;
use smccc::psci::{cpu_off, cpu_on, system_off};
use smccc::{Call, Hvc, Smc};

use super::register::{read, run};

/// The instruction that calls the level above: `hvc` at EL1, `smc` at EL2.
enum Firmware {}

impl Call for Firmware {
    fn call32(function: u32, arguments: [u32; 7]) -> [u32; 8] {
        let is_at_el1 = read!("currentel") == 1 << 2;
        (if is_at_el1 { Hvc::call32 } else { Smc::call32 })(function, arguments)
    }
    fn call64(function: u32, arguments: [u64; 17]) -> [u64; 18] {
        let is_at_el1 = read!("currentel") == 1 << 2;
        (if is_at_el1 { Hvc::call64 } else { Smc::call64 })(function, arguments)
    }
}

/// Starts the CPU of this affinity at a physical address, with `context` in x0. Waits for a CPU
/// that is about to switch itself off.
pub(super) fn start_cpu(affinity: u64, address: u64, context: u64) {
    const TURNS_MAX: u32 = 1_000_000;
    for _ in 0..TURNS_MAX {
        match cpu_on::<Firmware>(affinity, address, context) {
            Ok(()) => return,
            Err(Error::AlreadyOn) => run!("yield"),
            Err(error) => panic!("PSCI does not start CPU {affinity:#x}: {error}"),
        }
    }
    panic!("CPU {affinity:#x} stays on");
}

/// Switches off the calling CPU.
pub(super) fn switch_off() -> ! {
    panic!("PSCI does not switch this CPU off: {:?}", cpu_off::<Firmware>());
}

/// Switches off the machine. The emulator's status is then 0.
pub(super) fn power_off() -> ! {
    let _ = system_off::<Firmware>();
    loop {
        run!("wfi");
    }
}
