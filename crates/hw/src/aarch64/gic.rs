//! Interrupts between CPUs by the CPU interface of a GICv3 or GICv4 (Arm's IHI 0069).

#![expect(unsafe_code, reason = "sends interrupts")]

use crate::Ipi;
use crate::aarch64::instruction;
use crate::ipi::for_each_group;

/// A software-generated interrupt (SGI) of group 1. The controller's number of a CPU is its
/// affinity, as in `MPIDR_EL1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GicIpi {
    number: u8,
    ends_interrupt: bool,
}

impl GicIpi {
    /// The SGI with this number, 0 to 15.
    ///
    /// # Safety
    ///
    /// Each CPU that sends or receives the interrupt runs at EL1, uses the CPU interface by its
    /// system registers (`ICC_SRE_EL1.SRE`) with `ICC_CTLR_EL1.EOImode` = 0, and has a handler of
    /// this SGI. The handler has read the number from `ICC_IAR1_EL1`.
    #[must_use]
    pub const unsafe fn new(number: u8) -> Self {
        debug_assert!(number < 16, "SGIs have numbers below 16");
        Self { number, ends_interrupt: true }
    }

    /// The same interrupt, in a kernel whose driver of the GIC ends each interrupt before it calls
    /// the handler: [`acknowledge`](Ipi::acknowledge) does not end it once more, which would end
    /// another active interrupt.
    #[must_use]
    pub const fn ended_by_driver(self) -> Self {
        Self { ends_interrupt: false, ..self }
    }
}

// SAFETY: `dsb ishst` makes earlier stores visible before the interrupt. After its end, the SGI can
// become active again.
unsafe impl Ipi for GicIpi {
    /// Targets whose affinities differ only in the lower four bits share a write.
    #[inline]
    fn send(&self, targets: impl Iterator<Item = u64>) {
        // The write is to a system register, not to memory. Without this barrier, a target could
        // take the interrupt and find nothing to do before earlier stores are visible to it.
        instruction::publish();
        let values = targets.map(|affinity| sgi1r(self.number, affinity));
        for_each_group(values.map(|it| (it & !TARGET_LIST, it & TARGET_LIST)), |value, list| {
            // SAFETY: the targets handle the interrupt.
            unsafe { instruction::set_sgi1r(value | list) };
        });
        // Send the interrupts now, not at the next context synchronization.
        instruction::synchronize();
    }

    #[inline]
    fn acknowledge(&self) {
        // Complete the read of the number, and observe the sender's stores from before the
        // interrupt. (Linux: `gic_read_iar`.)
        instruction::complete_system();
        if self.ends_interrupt {
            // SAFETY: ends the interrupt that is being handled.
            unsafe { instruction::set_eoir1(u64::from(self.number)) };
            instruction::synchronize();
        }
    }
}

/// The targets in `ICC_SGI1R_EL1`: one bit for each affinity that differs in the lower four bits.
const TARGET_LIST: u64 = 0xffff;

/// The value of `ICC_SGI1R_EL1` that sends an SGI to the CPU with this affinity.
fn sgi1r(number: u8, affinity: u64) -> u64 {
    let level = |shift: u32| affinity >> shift & 0xff;
    let (aff0, aff1, aff2, aff3) = (level(0), level(8), level(16), level(32));
    let (range, target) = (aff0 >> 4, 1 << (aff0 & 0xf));
    aff3 << 48 | range << 44 | aff2 << 32 | u64::from(number) << 24 | aff1 << 16 | target
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aarch64::instruction::Step::{
        CompleteSystem, Publish, SetEoir1, SetSgi1r, Synchronize,
    };
    use crate::aarch64::instruction::steps_of;

    /// IHI 0069, `ICC_SGI1R_EL1`: Aff3 55:48, RS 47:44, Aff2 39:32, INTID 27:24, Aff1 23:16,
    /// TargetList 15:0.
    #[test]
    fn fields_match_manual() {
        assert_eq!(sgi1r(0, 0), 1);
        assert_eq!(sgi1r(15, 0x9a_8078_5634), 0x009a_3078_0f56_0010);
    }

    #[test]
    fn cpus_of_one_cluster_share_a_write() {
        // SAFETY: instructions are only recorded.
        let ipi = unsafe { GicIpi::new(1) };
        let sent = steps_of(|| ipi.send([0, 0x100, 3, 0x10, 0x101].into_iter()));
        let [first, second, third] =
            [1 << 24 | 0b1001, 1 << 24 | 1 << 16 | 0b11, 1 << 44 | 1 << 24 | 1];
        let writes = [SetSgi1r(first), SetSgi1r(second), SetSgi1r(third)];
        assert_eq!(sent, [&[Publish], &writes[..], &[Synchronize]].concat());
        assert_eq!(steps_of(|| ipi.send(core::iter::empty())), [Publish, Synchronize]);
        // 64 CPUs in clusters of 16 take four writes.
        let affinities = (0..64).map(|cpu| ((cpu / 16) << 8) | (cpu % 16));
        let sent = steps_of(|| ipi.send(affinities));
        let write = |cluster: u64| SetSgi1r(1 << 24 | cluster << 16 | 0xffff);
        assert_eq!(sent, [Publish, write(0), write(1), write(2), write(3), Synchronize]);
    }

    #[test]
    fn acknowledgement_ends_the_interrupt() {
        // SAFETY: instructions are only recorded.
        let ipi = unsafe { GicIpi::new(7) };
        assert_eq!(steps_of(|| ipi.acknowledge()), [CompleteSystem, SetEoir1(7), Synchronize]);
        assert_eq!(steps_of(|| ipi.ended_by_driver().acknowledge()), [CompleteSystem]);
    }
}
