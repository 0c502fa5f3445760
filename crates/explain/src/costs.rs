//! The CPU time of a flush: measured where the recording has the times, and otherwise modelled.

/// The model of the times that no event gives, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Time that an interrupt takes from its target.
    pub interrupt_ns: u64,
    /// Time of the sender for each target, if no target reported its flush.
    pub unmeasured_wait_ns: u64,
}

impl Costs {
    /// A virtual machine on an Emerald Rapids server (`machines/emerald-rapids-kvm.toml`). An
    /// interrupt takes from its target the injection (280 ns), entry (150), acknowledgement (30),
    /// invalidation of a page (280) and exit (100), and costs its sender 1500 ns.
    pub const MODEL: Self = Self { interrupt_ns: 840, unmeasured_wait_ns: 1500 };
}

impl Default for Costs {
    fn default() -> Self {
        Self::MODEL
    }
}
