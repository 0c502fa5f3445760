//! Interrupts between CPUs by IOCSRs (the manual of the 3A5000, chapter "Interrupts").

#![expect(unsafe_code, reason = "sends interrupts")]

use super::instructions;
use crate::Ipi;

/// IOCSRs: interrupts of this core to clear, and interrupts to send.
const CLEAR: u64 = 0x100c;
const SEND: u64 = 0x1040;
/// The write completes only when the interrupt has been sent.
const BLOCKING: u64 = 1 << 31;
const CORE_SHIFT: u32 = 16;

/// One of the 32 interrupts that cores send each other. The controller's number of a CPU is that of
/// its core.
///
/// A kernel should clear an interrupt that it neither enables nor handles, such as a late one to
/// start the core. QEMU 10 drops its interrupt line only when none of the 32 is pending, whether
/// enabled or not. With one left over, a core that has acknowledged another one is interrupted
/// again, without end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IocsrIpi {
    number: u8,
}

impl IocsrIpi {
    /// The interrupt with this number, 0 to 31.
    ///
    /// # Safety
    ///
    /// Each CPU that sends or receives the interrupt runs at PLV0 and has a handler of it.
    #[must_use]
    pub const unsafe fn new(number: u8) -> Self {
        debug_assert!(number < 32, "each core has 32 interrupts from other cores");
        Self { number }
    }
}

// SAFETY: `DBAR 0` completes earlier stores before the interrupt. An interrupt that is sent after
// it was cleared is pending again.
unsafe impl Ipi for IocsrIpi {
    #[inline]
    fn send(&self, targets: impl Iterator<Item = u64>) {
        // An IOCSR write is not a memory access. Without this barrier, the interrupt could arrive
        // before earlier stores are visible to its handler.
        instructions::complete_all();
        for core in targets {
            let value = BLOCKING | core << CORE_SHIFT | u64::from(self.number);
            // SAFETY: the target handles the interrupt.
            unsafe { instructions::write_iocsr(SEND, value) };
        }
    }

    #[inline]
    fn acknowledge(&self) {
        // SAFETY: the caller handles the interrupt.
        unsafe { instructions::write_iocsr(CLEAR, 1 << self.number) };
        // Observe the sender's stores from before the interrupt.
        instructions::complete_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loongarch64::instructions::Step::{CompleteAll, WriteIocsr};
    use crate::loongarch64::instructions::steps_of;

    /// IPI_Send: bit 31 waits, bits 25:16 are the core, bits 4:0 the number. IPI_Clear has a bit
    /// for each number.
    #[test]
    fn registers_match_manual() {
        // SAFETY: instructions are only recorded.
        let ipi = unsafe { IocsrIpi::new(5) };
        let sent = steps_of(|| ipi.send([0, 9].into_iter()));
        let to = |core: u64| WriteIocsr(0x1040, 0x8000_0005 | core << 16);
        assert_eq!(sent, [CompleteAll, to(0), to(9)]);
        assert_eq!(steps_of(|| ipi.acknowledge()), [WriteIocsr(0x100c, 0x20), CompleteAll]);
    }
}
