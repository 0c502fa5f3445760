//! What is asked of firmware, by PSCI: to start CPUs, and to stop the machine.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};

use super::register::run;

/// Arm's DEN 0022, "Power State Coordination Interface".
const SYSTEM_OFF: u64 = 0x8400_0008;
const CPU_OFF: u64 = 0x8400_0002;
const CPU_ON: u64 = 0xc400_0003;

/// By which instruction firmware is called.
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

/// One that is on, and may be on its way to be off.
const ALREADY_ON: i64 = -4;

/// Has a CPU, by its affinity, begin at a physical address, with `context` in x0. One that is about
/// to be off is waited for.
///
/// # Safety
///
/// There must be code that makes something of that.
pub(super) unsafe fn start_cpu(affinity: u64, address: u64, context: u64) {
    const TURNS_MAX: u32 = 1_000_000;
    for _ in 0..TURNS_MAX {
        // SAFETY: as our caller promises.
        match unsafe { call(CPU_ON, affinity, address, context) } {
            0 => return,
            ALREADY_ON => run!("yield"),
            status => panic!("PSCI does not start CPU {affinity:#x}: {status}"),
        }
    }
    panic!("CPU {affinity:#x} stays on");
}

/// Switches the calling CPU off.
pub(super) fn switch_off() -> ! {
    // SAFETY: nothing of it is needed any more.
    let status = unsafe { call(CPU_OFF, 0, 0, 0) };
    panic!("PSCI does not switch this CPU off: {status}");
}

/// Stops the machine; the emulator's status is 0.
pub(super) fn power_off() -> ! {
    // SAFETY: nothing is left to be harmed.
    unsafe { call(SYSTEM_OFF, 0, 0, 0) };
    loop {
        run!("wfi");
    }
}

/// A call by the "SMC Calling Convention" (DEN 0028): x0 to x17 may change.
unsafe fn call(function: u64, first: u64, second: u64, third: u64) -> i64 {
    let status;
    macro_rules! by {
        ($instruction:literal) => {
            // SAFETY: as our caller promises.
            unsafe {
                asm!(
                    $instruction,
                    inout("x0") function => status,
                    in("x1") first,
                    in("x2") second,
                    in("x3") third,
                    clobber_abi("C"),
                    options(nostack),
                );
            }
        };
    }
    if CAME_AT_EL2.load(Ordering::Relaxed) {
        by!("smc #0");
    } else {
        by!("hvc #0");
    }
    status
}
