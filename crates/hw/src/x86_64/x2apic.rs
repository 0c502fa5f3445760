//! Interrupts between CPUs by the local APIC in x2APIC mode (SDM 3A, section "Extended XAPIC").

#![expect(unsafe_code, reason = "sends interrupts")]

use crate::Ipi;
#[cfg(not(test))]
use crate::x86_64::instructions;
#[cfg(test)]
use crate::x86_64::recorded as instructions;

/// The interrupt-command register (ICR), and the end-of-interrupt register.
const COMMAND: u32 = 0x830;
const END_OF_INTERRUPT: u32 = 0x80b;

/// A vector that CPUs send each other by their x2APICs. The controller's number of a CPU is its
/// x2APIC ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct X2ApicIpi {
    vector: u8,
}

impl X2ApicIpi {
    /// The interrupt with this vector.
    ///
    /// # Safety
    ///
    /// Each CPU that sends or receives the interrupt runs in ring 0 with its local APIC in x2APIC
    /// mode, and its IDT has a handler of the vector, which is at least 16.
    #[must_use]
    pub const unsafe fn new(vector: u8) -> Self {
        debug_assert!(vector >= 16, "the APIC refuses to send vectors 0 to 15");
        Self { vector }
    }
}

// SAFETY: the barrier makes earlier stores visible before the interrupt. After the end of an
// interrupt, the APIC delivers the same vector again.
unsafe impl Ipi for X2ApicIpi {
    #[inline]
    fn send(&self, targets: impl Iterator<Item = u64>) {
        instructions::order_before_x2apic_write();
        for target in targets {
            // SAFETY: the target handles the vector.
            unsafe { instructions::wrmsr(COMMAND, target << 32 | u64::from(self.vector)) };
        }
    }

    #[inline]
    fn acknowledge(&self) {
        // SAFETY: ends the interrupt that is being handled.
        unsafe { instructions::wrmsr(END_OF_INTERRUPT, 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x86_64::recorded::Step::{OrderBeforeX2ApicWrite, Wrmsr};
    use crate::x86_64::recorded::steps_of;

    /// SDM 3A, section 11.12.9: bits 63:32 of the ICR are the destination, bits 7:0 the vector.
    /// Delivery mode 0 is fixed, destination mode 0 physical. Table 11-6: ICR 830H, EOI 80BH.
    #[test]
    fn registers_match_manual() {
        // SAFETY: instructions are only recorded.
        let ipi = unsafe { X2ApicIpi::new(0xf0) };
        let sent = steps_of(|| ipi.send([3, 0x1_0007].into_iter()));
        let to = |target: u64| Wrmsr(0x830, target << 32 | 0xf0);
        assert_eq!(sent, [OrderBeforeX2ApicWrite, to(3), to(0x1_0007)]);
        assert_eq!(steps_of(|| ipi.acknowledge()), [Wrmsr(0x80b, 0)]);
    }
}
