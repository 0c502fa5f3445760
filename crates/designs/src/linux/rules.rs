//! Rules on which the Linux designs depend. Tests break each of them, and expect the oracle to
//! detect that.

/// A rule of a Linux design.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinuxRule {
    /// Global tags: after a rollover, each CPU flushes its TLB before it uses a tag of the new
    /// generation.
    FlushAfterRollover,
    /// Global tags: a rollover does not reassign tags that CPUs are using.
    ReserveActive,
    /// Renamed tags: a CPU whose counter wraps flushes its TLB.
    FlushAtWrap,
    /// Skipped broadcasts: a CPU that does not broadcast marks the tag as stale on all other CPUs.
    MarkStale,
    /// Skipped broadcasts: a CPU whose tag is marked as stale flushes it before it loads the space.
    FlushIfStale,
    /// Skipped broadcasts: after marking, the CPU checks again that no other CPU is active.
    RecheckActive,
    /// Domains: a CPU that loads a space marks itself in the mask from which flushes take their
    /// domains.
    MarkRan,
    /// Broadcasts are complete before the flush returns.
    Complete,
    /// Broadcasts that a thread has not waited for are complete before the CPU runs another thread.
    CompleteAtSwitch,
    /// Reclaim: a batch is flushed before its pages are reused.
    FlushBatch,
    /// Reclaim: a deferred page counts as a flush of its space. CPUs that have the space loaded
    /// lazily, or cached under another tag, then catch up.
    CountUnmapped,
    /// Reclaim: an operation that finds an empty entry knows that its page may still be in use
    /// (3ea277194daa).
    MarkBatched,
    /// Preemptible waits: a CPU does not send a call while one of its threads, which was preempted,
    /// still waits for the same target (`csd_lock`).
    LockCall,
    /// ABIS: a page whose accessed bit is set may be in any TLB.
    SeeAccessed,
    /// ABIS: a flush of a page that another call flushes interrupts all CPUs of the space.
    MarkFlushing,
}
