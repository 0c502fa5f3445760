//! The history of a run, for people to read.

/// One line of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The CPU that acts.
    pub cpu: usize,
    /// Description of the action, as a verb phrase.
    pub text: String,
    /// Kind of the action.
    pub kind: LineKind,
}

/// Kind of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineKind {
    /// The start of an operation of the CPU's program.
    Operation,
    /// An event in the kernel or the hardware.
    Event,
    /// The CPU sends an interrupt to this CPU.
    SendsInterrupt(usize),
    /// The CPU takes the interrupt.
    TakesInterrupt,
    /// The CPU enters user mode.
    EntersUserMode,
    /// The CPU returns from user mode.
    LeavesUserMode,
    /// The set of stale translations that the CPU may hold has changed, possibly to the empty set.
    StaleEntries,
    /// An access to shared memory. A run has many of these.
    Access,
    /// The engine asks for the strength of its next access or barrier, under the rule that is the
    /// text. Time lines do not show it.
    Rule,
}

/// Controls whether a run records its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    /// Record nothing.
    Off,
    /// Record every line.
    On,
}
