//! The *phase* of a CPU mask: how often it has been trimmed, and how far the current trim has come.

/// The phase of a cpumask: `epoch << 2 | state`. Each trim ends with the next epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Phase(pub(crate) u64);

impl Phase {
    /// The phase before any trim: every CPU that ever registered is in the first set.
    pub(crate) const FIRST: Self = Self(0);
    /// A value that no cpumask's phase ever has.
    pub(crate) const NONE: Self = Self(u64::MAX);
    /// State: flushes read set `epoch % 2`, and CPUs register in it.
    pub(crate) const STABLE: u64 = 0;
    /// State: as [`STABLE`](Self::STABLE), while the trimming CPU clears the other set.
    pub(crate) const CLEARING: u64 = 1;
    /// State: flushes read both sets, and CPUs register in the set of the next epoch.
    pub(crate) const TRIMMING: u64 = 2;

    pub(crate) const fn state(self) -> u64 {
        self.0 & 3
    }

    /// The phase of this epoch in another state.
    pub(crate) const fn with(self, state: u64) -> Self {
        Self(self.0 & !3 | state)
    }

    /// The epoch in whose set CPUs register: the next one in state
    /// [`TRIMMING`](Self::TRIMMING).
    pub(crate) const fn registered_epoch(self) -> u64 {
        (self.0 + Self::TRIMMING) >> 2
    }

    /// The phase of the next epoch in state [`STABLE`](Self::STABLE).
    pub(crate) const fn next(self) -> Self {
        Self((self.0 & !3) + 4)
    }
}
