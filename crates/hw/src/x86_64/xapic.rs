//! Interrupts between CPUs by the local APIC in xAPIC mode, whose registers are in memory (SDM 3A,
//! chapter "Advanced Programmable Interrupt Controller").

#![expect(unsafe_code, reason = "sends interrupts")]

use crate::Ipi;
#[cfg(not(test))]
use crate::x86_64::instructions;
#[cfg(test)]
use crate::x86_64::recorded as instructions;

/// Offsets of registers: end of interrupt, and the halves of the interrupt command.
const END_OF_INTERRUPT: usize = 0xb0;
const COMMAND: usize = 0x300;
const DESTINATION: usize = 0x310;

/// Bit of the command: the last one was not accepted yet.
const PENDING: u32 = 1 << 12;

/// A vector that CPUs send each other by their xAPICs. The controller's number of a CPU is its APIC
/// ID, 0 to 254.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XApicIpi {
    vector: u8,
    registers: usize,
}

impl XApicIpi {
    /// The interrupt with this vector. `registers` is the address at which the kernel has mapped
    /// the registers (4 KiB), as uncached memory.
    ///
    /// # Safety
    ///
    /// Each CPU that sends or receives the interrupt has its local APIC in xAPIC mode at this
    /// address, and its IDT has a handler of the vector, which is at least 16. Each root on which
    /// the kernel uses the engine maps the registers. No handler that cannot be masked sends
    /// interrupts.
    #[must_use]
    pub const unsafe fn new(vector: u8, registers: usize) -> Self {
        debug_assert!(vector >= 16, "the APIC refuses to send vectors 0 to 15");
        Self { vector, registers }
    }
}

// SAFETY: stores to uncached memory are not reordered with earlier stores. After the end of an
// interrupt, the APIC delivers the same vector again.
unsafe impl Ipi for XApicIpi {
    /// Masks interrupts, because a handler between the two stores could send another one.
    fn send(&self, targets: impl Iterator<Item = u64>) {
        let register = |offset| self.registers + offset;
        instructions::masked(|| {
            for id in targets {
                // SAFETY: the constructor was promised the registers, and the handler.
                unsafe {
                    while instructions::load_from_device(register(COMMAND)) & PENDING != 0 {
                        core::hint::spin_loop();
                    }
                    instructions::store_to_device(register(DESTINATION), (id as u32) << 24);
                    instructions::store_to_device(register(COMMAND), self.vector.into());
                }
            }
        });
    }

    #[inline]
    fn acknowledge(&self) {
        // SAFETY: ends the interrupt that is being handled.
        unsafe { instructions::store_to_device(self.registers + END_OF_INTERRUPT, 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x86_64::recorded::Step::{LoadFromDevice, Masked, StoreToDevice, Unmasked};
    use crate::x86_64::recorded::steps_of;

    /// SDM 3A, table "Local APIC Register Address Map": EOI 0B0H, ICR 300H and 310H. Bits 63:56 of
    /// the ICR are the destination, bits 7:0 the vector; bit 12 is the delivery status.
    #[test]
    fn registers_match_manual() {
        const BASE: usize = 0xfee0_0000;
        // SAFETY: instructions are only recorded.
        let ipi = unsafe { XApicIpi::new(0xf0, BASE) };
        let sent = steps_of(|| ipi.send([3, 254].into_iter()));
        let to = |id: u32| {
            let destination = StoreToDevice(BASE + 0x310, id << 24);
            [LoadFromDevice(BASE + 0x300), destination, StoreToDevice(BASE + 0x300, 0xf0)]
        };
        assert_eq!(sent, [&[Masked], &to(3)[..], &to(254)[..], &[Unmasked]].concat());
        assert_eq!(steps_of(|| ipi.acknowledge()), [StoreToDevice(BASE + 0xb0, 0)]);
    }
}
