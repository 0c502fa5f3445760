//! The interrupt by which CPUs notify each other of flushes.

#![expect(unsafe_code, reason = "declares the contract of interrupts between CPUs")]

/// An interrupt that a CPU can send to other CPUs: an inter-processor interrupt (IPI).
///
/// Each architecture has one for its usual interrupt controllers: `x86_64::X2ApicIpi` and
/// `x86_64::XApicIpi`, `aarch64::GicIpi`, `riscv64::SbiIpi` and `riscv64::ClintIpi`,
/// `loongarch64::IocsrIpi`. A kernel that has its own driver
/// of the controller implements [`Kernel::ring`](crate::Kernel::ring) by that.
///
/// # Safety
///
/// The handler of each target must observe all stores that the sender made before
/// [`send`](Self::send): most controllers need a barrier. An interrupt that is sent after
/// [`acknowledge`](Self::acknowledge) must be taken once more.
pub unsafe trait Ipi: Sync {
    /// Sends the interrupt to CPUs, which may include the calling CPU. `targets` are the numbers by
    /// which the interrupt controller knows them. Targets of one cluster share a command, where the
    /// controller has such commands.
    fn send(&self, targets: impl Iterator<Item = u64>);

    /// Acknowledges the interrupt on the CPU that has taken it. Call this before the flush is
    /// handled: a CPU that rings in the meantime then causes another interrupt.
    fn acknowledge(&self);
}

/// Number of groups that [`for_each_group`] keeps open. Kernels number the threads of a core far
/// apart, so the members of one cluster do not always come one after the other. Eight clusters of
/// 16 CPUs are a machine of 128 CPUs in any order, in 128 bytes of stack.
const OPEN_GROUPS: usize = 8;

/// Groups targets by their key, and calls `send` with each key and the union of its members' bits.
///
/// A key comes only once if there are at most [`OPEN_GROUPS`] keys, in whatever order the targets
/// come, or if the targets of each key come one after the other.
#[inline]
pub(crate) fn for_each_group(
    targets: impl Iterator<Item = (u64, u64)>,
    mut send: impl FnMut(u64, u64),
) {
    let mut groups = [(0, 0); OPEN_GROUPS];
    let (mut count, mut oldest) = (0, 0);
    for (key, bit) in targets {
        if let Some((_, bits)) = groups[..count].iter_mut().rev().find(|(open, _)| *open == key) {
            *bits |= bit;
            continue;
        }
        if count < OPEN_GROUPS {
            groups[count] = (key, bit);
            count += 1;
            continue;
        }
        let (full, bits) = core::mem::replace(&mut groups[oldest], (key, bit));
        oldest = (oldest + 1) % OPEN_GROUPS;
        send(full, bits);
    }
    groups[..count].iter().for_each(|&(key, bits)| send(key, bits));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    /// The groups of targets whose key is their number divided by 16.
    fn groups(targets: impl Iterator<Item = u64>) -> Vec<(u64, u64)> {
        let mut groups = Vec::new();
        let keyed = targets.map(|target| (target / 16, 1 << (target % 16)));
        for_each_group(keyed, |key, bits| groups.push((key, bits)));
        groups
    }

    #[test]
    fn target_order_does_not_split_groups() {
        let all = [(0, 0xffff), (1, 0xffff), (2, 0xffff), (3, 0xffff)];
        assert_eq!(groups(0..64), all);
        // The second threads of all cores come after all first threads.
        assert_eq!(groups((0..64).step_by(2).chain((1..64).step_by(2))), all);
        assert_eq!(groups([7].into_iter()), [(0, 1 << 7)]);
        assert_eq!(groups([].into_iter()), []);
    }

    /// The second threads of all cores come after all first threads.
    #[test]
    fn ninth_group_doubles_the_commands() {
        let commands = |count: u64| {
            groups((0..16 * count).step_by(2).chain((1..16 * count).step_by(2))).len() as u64
        };
        assert_eq!([7, 8, 9, 64].map(commands), [7, 8, 18, 128]);
    }

    #[test]
    fn more_groups_than_fit_lose_no_target() {
        let targets = || (0..1024).step_by(2).chain((1..1024).step_by(2));
        let mut sent = BTreeMap::<u64, u64>::new();
        for (key, bits) in groups(targets()) {
            let known = sent.entry(key).or_default();
            assert_eq!(*known & bits, 0, "a target is interrupted twice");
            *known |= bits;
        }
        assert_eq!(sent.len(), 64);
        assert!(sent.values().all(|&bits| bits == 0xffff));
    }
}
