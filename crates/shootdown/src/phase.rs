//! The *phase* of a CPU mask: how often it has been trimmed, and how far the current trim has come.

/// How far the cpumask's moves have come: `epoch << 2 | state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Phase(pub(crate) u64);

impl Phase {
    /// Before any move: every CPU that ever registered is in the first set.
    pub(crate) const FIRST: Self = Self(0);
    /// No phase that any cpumask is ever in.
    pub(crate) const NONE: Self = Self(u64::MAX);
    /// Set `epoch % 2` is read and registered in.
    pub(crate) const STABLE: u64 = 0;
    /// The same, and the other set is being cleared for the move.
    pub(crate) const CLEARING: u64 = 1;
    /// Both are read; the set of the next epoch is registered in. Half-way to the next epoch.
    pub(crate) const TRIMMING: u64 = 2;

    pub(crate) const fn state(self) -> u64 {
        self.0 & 3
    }

    /// The same epoch in another state.
    pub(crate) const fn with(self, state: u64) -> Self {
        Self(self.0 & !3 | state)
    }

    /// The epoch in whose set CPUs register: already the next one while moving.
    pub(crate) const fn registered_epoch(self) -> u64 {
        (self.0 + Self::TRIMMING) >> 2
    }

    /// The stable phase of the next epoch.
    pub(crate) const fn next(self) -> Self {
        Self((self.0 & !3) + 4)
    }
}
