//! Interrupts between CPUs by the local APIC in x2APIC mode (SDM 3A, section "Extended XAPIC").

#![expect(unsafe_code, reason = "sends interrupts")]

use crate::Ipi;
use crate::ipi::for_each_group;
#[cfg(not(test))]
use crate::x86_64::instructions;
#[cfg(test)]
use crate::x86_64::recorded as instructions;

/// The interrupt-command register (ICR), and the end-of-interrupt register.
const COMMAND: u32 = 0x830;
const END_OF_INTERRUPT: u32 = 0x80b;

/// Bit of the ICR: the destination is logical, a cluster and a list of its CPUs.
const LOGICAL: u64 = 1 << 11;
/// IDs that have a logical destination are below this number.
const LOGICAL_IDS: u64 = 1 << 20;

/// A vector that CPUs send each other by their x2APICs. The controller's number of a CPU is its
/// x2APIC ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct X2ApicIpi {
    vector: u8,
    commands: Commands,
}

/// The targets of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Commands {
    /// One CPU.
    Each,
    /// The CPUs of a cluster: those whose IDs differ only in the lower four bits.
    Clusters,
}

impl X2ApicIpi {
    /// The interrupt with this vector, sent by one command for each target.
    ///
    /// # Safety
    ///
    /// Each CPU that sends or receives the interrupt runs in ring 0 with its local APIC in x2APIC
    /// mode, and its IDT has a handler of the vector, which is at least 16.
    #[must_use]
    pub const unsafe fn new(vector: u8) -> Self {
        debug_assert!(vector >= 16, "the APIC refuses to send vectors 0 to 15");
        Self { vector, commands: Commands::Each }
    }

    /// The same interrupt, sent by one command for each cluster of up to 16 CPUs.
    ///
    /// # Safety
    ///
    /// The platform delivers logical destinations. All hardware does in x2APIC mode, where the
    /// logical IDs are fixed (SDM 3A, "Deriving Logical x2APIC ID"), unless its ACPI tables demand
    /// physical destinations (FADT, flag "Force APIC Physical Destination Mode").
    #[must_use]
    pub const unsafe fn by_clusters(self) -> Self {
        Self { commands: Commands::Clusters, ..self }
    }
}

// SAFETY: the barrier makes earlier stores visible before the interrupt. After the end of an
// interrupt, the APIC delivers the same vector again.
unsafe impl Ipi for X2ApicIpi {
    #[inline]
    fn send(&self, targets: impl Iterator<Item = u64>) {
        instructions::order_before_x2apic_write();
        let command = |value: u64| {
            // SAFETY: the targets handle the vector.
            unsafe { instructions::wrmsr(COMMAND, value) };
        };
        let vector = u64::from(self.vector);
        match self.commands {
            Commands::Each => targets.for_each(|id| command(physical(id) | vector)),
            Commands::Clusters => {
                for_each_group(targets.map(logical), |cluster, list| {
                    command(cluster | list | vector);
                });
            }
        }
    }

    #[inline]
    fn acknowledge(&self) {
        // SAFETY: ends the interrupt that is being handled.
        unsafe { instructions::wrmsr(END_OF_INTERRUPT, 0) };
    }
}

/// The bits of the ICR that name one CPU.
const fn physical(id: u64) -> u64 {
    id << 32
}

/// The bits of the ICR that name the cluster of a CPU, and those that name the CPU in it. An ID
/// that is too large for a logical destination has a command of its own.
const fn logical(id: u64) -> (u64, u64) {
    if id >= LOGICAL_IDS {
        (physical(id), 0)
    } else {
        (id >> 4 << 48 | LOGICAL, 1 << (32 + id % 16))
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

    /// SDM 3A, "Deriving Logical x2APIC ID": bits 31:16 of a logical ID are bits 19:4 of the x2APIC
    /// ID, and one of bits 15:0 is set. "x2APIC Mode ICR": bit 11 selects logical destinations.
    #[test]
    fn cpus_of_one_cluster_share_a_command() {
        // SAFETY: instructions are only recorded.
        let ipi = unsafe { X2ApicIpi::new(0xf0).by_clusters() };
        let to =
            |cluster: u64, list: u64| Wrmsr(0x830, cluster << 48 | list << 32 | 1 << 11 | 0xf0);
        let sent = steps_of(|| ipi.send([3, 0x25, 0, 0xf_fff2].into_iter()));
        let each = [to(0, 0b1001), to(2, 1 << 5), to(0xffff, 1 << 2)];
        assert_eq!(sent, [&[OrderBeforeX2ApicWrite], &each[..]].concat());
        // An ID of more than 20 bits has no logical ID.
        let sent = steps_of(|| ipi.send([0x10_0007, 0x10_0008].into_iter()));
        let alone = |id: u64| Wrmsr(0x830, id << 32 | 0xf0);
        assert_eq!(sent, [OrderBeforeX2ApicWrite, alone(0x10_0007), alone(0x10_0008)]);
        // The threads of a core are numbered far apart.
        let sent = steps_of(|| ipi.send((0..64).step_by(2).chain((1..64).step_by(2))));
        let all = [to(0, 0xffff), to(1, 0xffff), to(2, 0xffff), to(3, 0xffff)];
        assert_eq!(sent, [&[OrderBeforeX2ApicWrite], &all[..]].concat());
    }
}
