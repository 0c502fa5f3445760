//! The *phase* of a CPU mask: how often it has been trimmed, how far the current trim has come, and
//! how many devices use the space.
//!
//! The devices are counted here because every flush reads this word, and because one test of its
//! bits then decides both questions that a flush has about it.

/// The phase of a cpumask: `epoch << 10 | is trimming << 9 | devices << 1 | is clearing`. Each trim
/// ends with the next epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Phase(pub(crate) u64);

impl Phase {
    /// The phase before any trim, without devices: every CPU that ever registered is in the first
    /// set.
    pub(crate) const FIRST: Self = Self(0);
    /// A value that no cpumask's phase ever has.
    pub(crate) const NONE: Self = Self(u64::MAX);
    /// The trimming CPU clears the set that flushes do not read.
    pub(crate) const CLEARING: u64 = 1;
    /// One device.
    pub(crate) const DEVICE: u64 = 1 << 1;
    /// Maximum number of devices.
    pub(crate) const DEVICES_MAX: u64 = 255;
    /// Flushes read both sets, and CPUs register in the set of the next epoch.
    pub(crate) const TRIMMING: u64 = 1 << 9;
    /// One epoch.
    const EPOCH: u64 = 1 << 10;
    /// From clearing to trimming.
    pub(crate) const BEGIN_TRIMMING: u64 = Self::TRIMMING - Self::CLEARING;
    /// From trimming to the next epoch.
    pub(crate) const END_TRIMMING: u64 = Self::EPOCH - Self::TRIMMING;
    /// The bits of the number of devices.
    const DEVICES: u64 = Self::DEVICES_MAX * Self::DEVICE;

    /// Returns `true` if no CPU trims the mask.
    #[inline]
    pub(crate) const fn is_stable(self) -> bool {
        self.0 & (Self::CLEARING | Self::TRIMMING) == 0
    }

    /// Returns `true` if flushes read both sets.
    #[inline]
    pub(crate) const fn is_trimming(self) -> bool {
        self.0 & Self::TRIMMING != 0
    }

    /// Number of devices that use the space.
    #[inline]
    pub(crate) const fn device_count(self) -> u64 {
        (self.0 & Self::DEVICES) / Self::DEVICE
    }

    /// Returns `true` if flushes read one set, and no device uses the space.
    ///
    /// The bits are neighbours, so that each processor tests them with one instruction.
    #[inline]
    pub(crate) const fn is_plain(self) -> bool {
        self.0 & (Self::TRIMMING | Self::DEVICES) == 0
    }

    /// Number of trims that have ended. Its lowest bit selects the set that flushes read.
    #[inline]
    pub(crate) const fn epoch(self) -> u64 {
        self.0 / Self::EPOCH
    }

    /// The epoch in whose set CPUs register: the next one while [`TRIMMING`](Self::TRIMMING).
    #[inline]
    pub(crate) const fn registered_epoch(self) -> u64 {
        (self.0 + Self::TRIMMING) / Self::EPOCH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_read_from_its_own_bits() {
        for (epoch, devices) in
            [0, 1, 5].into_iter().flat_map(|epoch| [0, 1, 255].map(|n| (epoch, n)))
        {
            for state in [0, Phase::CLEARING, Phase::TRIMMING] {
                let is_trimming = state == Phase::TRIMMING;
                let phase = Phase(epoch * Phase::EPOCH + devices * Phase::DEVICE + state);
                assert_eq!((phase.is_stable(), phase.is_trimming()), (state == 0, is_trimming));
                assert_eq!(phase.device_count(), devices);
                assert_eq!(phase.is_plain(), !is_trimming && devices == 0);
                assert_eq!(phase.epoch(), epoch);
                assert_eq!(phase.registered_epoch(), epoch + u64::from(is_trimming));
            }
        }
    }
}
