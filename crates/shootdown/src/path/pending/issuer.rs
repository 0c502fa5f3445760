//! The CPU that has issued the broadcast of a flush.

use crate::base::ids::CpuId;

/// The CPU that has issued a broadcast, if there is one: half the size of an `Option`, so that the
/// cause of a flush fits into the same word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Issuer {
    /// 0 for no CPU, or 1 plus its number.
    plus_one: u32,
}

impl Issuer {
    pub(crate) const NONE: Self = Self { plus_one: 0 };

    #[inline]
    pub(crate) const fn of(cpu: CpuId) -> Self {
        Self { plus_one: cpu.0 + 1 }
    }

    #[inline]
    pub(crate) const fn is_some(self) -> bool {
        self.plus_one != 0
    }

    /// Removes and returns the CPU.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<CpuId> {
        let before = core::mem::replace(self, Self::NONE);
        before.plus_one.checked_sub(1).map(CpuId)
    }
}
