//! The words of a machine file: kinds of hardware, and of the scheduler.

use serde::Deserialize;

/// Assignment of the hardware's tags to address spaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tagging {
    /// Each CPU assigns its own: a tag means a different space on each CPU (x86 PCID).
    #[default]
    PerCpu,
    /// A space has one tag, the same on all CPUs (arm64, RISC-V, AMD with INVLPGB).
    Global,
    /// Each CPU takes tags from a counter, and drops a space's translations by giving it the next
    /// tag (ARC).
    Renamed,
}

/// The component that walks page tables after a miss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refill {
    /// The hardware, which caches upper levels, and may walk speculatively.
    #[default]
    Hardware,
    /// The kernel, in an exception: only for pages that are really used, and from the root.
    Software,
}

/// Effect of the first write through a translation that was cached when the page was not marked
/// dirty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StaleWrites {
    /// The page tables are walked again. The walk marks the entry, or finds that it is gone (x86,
    /// Arm, RISC-V). Where the kernel marks entries, an unmarked page is not writable.
    #[default]
    Trapped,
    /// The write goes through, and the entry is marked if it is still there.
    Unnoticed,
}

/// Whether a TLB may hold translations of two sizes for one address, none of which is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MixedSizes {
    /// It must not: an entry changes its size by *break before make*, on lazy CPUs as well (Arm).
    #[default]
    Refused,
    /// It may (x86).
    Tolerated,
}

/// The order in which ready threads run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// In turn, each for a timeslice. A thread that wakes goes to the end of the queue.
    #[default]
    RoundRobin,
    /// By the earliest eligible virtual deadline (Linux since 6.6). Threads that wake may preempt.
    Eevdf,
    /// As `Eevdf`, with the feature `RUN_TO_PARITY` off: a thread that wakes preempts more often.
    EevdfNoRunToParity,
}
