//! What happened in a run, written down for people.

/// A line of what happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Whose doing it was.
    pub cpu: usize,
    /// What it was.
    pub text: String,
    /// What kind of thing.
    pub kind: LineKind,
}

/// What a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineKind {
    /// What a CPU is about to do from here on.
    Operation,
    /// Something that kernels or hardware did.
    Event,
    /// It interrupts this CPU.
    Rings(usize),
    /// It takes the interrupt.
    TakesInterrupt,
    /// It goes to user mode.
    EntersUserMode,
    /// It comes back.
    LeavesUserMode,
    /// It may hold other old translations than before: these, or none.
    Holds,
    /// An access to shared memory, of which there are many.
    Access,
}

/// Whether a run is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writing {
    /// It is not.
    Off,
    /// It is.
    On,
}
