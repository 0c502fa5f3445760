//! The console, and the device that ends the emulator.

use super::csr::run;
use crate::kernel::arch::contract::Status;
use crate::kernel::arch::high_half::phys_to_virt;

/// A UART compatible with National's 16550. The firmware has initialised it.
const UART: u64 = 0x1000_0000;
const LINE_STATUS: u64 = UART + 5;
const HAS_ROOM: u8 = 1 << 5;
const HAS_SENT_ALL: u8 = 1 << 6;

/// `SiFive`'s test device: a status, above the word that ends the emulator with it.
const TEST: u64 = 0x10_0000;
const END_WITH_STATUS: u32 = 0x3333;
const STATUS_PASSED: u32 = 42;
const STATUS_FAILED: u32 = 43;

/// The pages of the devices.
pub(super) const PAGES: [u64; 2] = [UART, TEST];

/// Writes a byte to the console.
pub(super) fn write(byte: u8) {
    wait_for(HAS_ROOM);
    // SAFETY: the address is that of the UART's data register.
    unsafe { phys_to_virt::<u8>(UART).write_volatile(byte) };
}

/// Ends the emulator after all output has been sent.
pub(super) fn exit(status: Status) -> ! {
    wait_for(HAS_SENT_ALL);
    let code = if status == Status::Passed { STATUS_PASSED } else { STATUS_FAILED };
    // SAFETY: nothing runs after this.
    unsafe { phys_to_virt::<u32>(TEST).write_volatile(code << 16 | END_WITH_STATUS) };
    // The emulator ends soon. Until then, nothing else may ask for an end, with another status.
    loop {
        run!("wfi");
    }
}

fn wait_for(status: u8) {
    // SAFETY: the UART's status can be read at any time.
    while unsafe { phys_to_virt::<u8>(LINE_STATUS).read_volatile() } & status == 0 {
        core::hint::spin_loop();
    }
}
