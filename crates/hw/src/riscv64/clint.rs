//! Interrupts between CPUs without firmware, by a device with a register for each hart: the CLINT,
//! or the ACLINT (RISC-V Advanced Core Local Interruptor).

#![expect(unsafe_code, reason = "writes to a device")]

use crate::Ipi;
use crate::riscv64::instructions as run;

/// The software interrupt, sent by a store to the register of a hart. The controller's number of a
/// CPU is the index of its hart in the device.
///
/// | registers | the store of 1 | M-mode |
/// |---|---|---|
/// | ACLINT's SSWI, `SETSSIP` | sets `sip.SSIP` of the hart | does nothing |
/// | CLINT's, or ACLINT's MSWI, `MSIP` | interrupts the hart in M-mode | forwards |
///
/// To forward, the handler in M-mode stores 0 to the register of its hart, and then sets
/// `mip.SSIP`.
///
/// If the kernel's timer ticks set `sip.SSIP` as well, its handler calls
/// [`acknowledge`](Ipi::acknowledge), then handles the flush, whatever the cause was, and then
/// looks for a tick, which M-mode has noted in a word of its own.
#[doc(alias = "AclintIpi")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClintIpi {
    /// Address of the register of hart 0.
    registers: usize,
}

impl ClintIpi {
    /// The software interrupt, with the registers at this address, where the kernel has mapped
    /// them.
    ///
    /// # Safety
    ///
    /// The registers are those of the table, of 32 bits each, mapped in each root on which the
    /// kernel uses the engine. S-mode may write to them (PMP). Each CPU has a handler of the
    /// interrupt, in M-mode too where the table says so.
    #[must_use]
    pub const unsafe fn new(registers: usize) -> Self {
        Self { registers }
    }
}

// SAFETY: the fence orders earlier stores before the one to the device. An interrupt that is sent
// after it was cleared is pending again.
unsafe impl Ipi for ClintIpi {
    #[inline]
    fn send(&self, targets: impl Iterator<Item = u64>) {
        // Without this fence, the interrupt could arrive before earlier stores are visible to its
        // handler, because devices are ordered apart from memory.
        run::fence_all();
        for hart in targets {
            // SAFETY: the constructor was promised the register, and the handler.
            unsafe { run::store_to_device(self.registers + hart as usize * 4, 1) };
        }
    }

    #[inline]
    fn acknowledge(&self) {
        run::clear_software_interrupt();
        // Observe the sender's stores from before the interrupt.
        run::fence_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::riscv64::instructions::Step::{ClearSoftwareInterrupt, FenceAll, StoreToDevice};
    use crate::riscv64::instructions::steps_of;

    /// CLINT: `MSIP` of hart n at 4 n. ACLINT, "SSWI": `SETSSIP` of hart n at 4 n.
    #[test]
    fn each_hart_has_its_register() {
        // SAFETY: instructions are only recorded.
        let ipi = unsafe { ClintIpi::new(0x200_0000) };
        let sent = steps_of(|| ipi.send([0, 3, 4094].into_iter()));
        let store = |address| StoreToDevice(address, 1);
        assert_eq!(sent, [FenceAll, store(0x200_0000), store(0x200_000c), store(0x200_3ff8)]);
        assert_eq!(steps_of(|| ipi.acknowledge()), [ClearSoftwareInterrupt, FenceAll]);
    }
}
