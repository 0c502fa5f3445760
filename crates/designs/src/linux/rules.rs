//! Rules that the designs with global or renamed tags rest on, each of which can be broken, for
//! tests that expect the oracle to notice.

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinuxRule {
    /// Global tags: after a rollover each CPU empties its TLB before it uses a tag of the new
    /// generation.
    EmptyAfterRollover,
    /// Global tags: at a rollover, tags that CPUs run with are not given to others.
    ReserveActive,
    /// Renamed tags: a CPU whose counter wraps empties its TLB.
    EmptyAtWrap,
    /// Seed 003: who does not broadcast marks the tag as stale on the other CPUs.
    MarkStale,
    /// Seed 003: a CPU that finds the tag marked flushes it before it loads the space.
    HeedStale,
    /// Seed 003: after it has marked, who does not broadcast looks again whether it is alone.
    RecheckBell,
    /// Broadcasts are complete before the flush returns.
    Complete,
    /// Broadcasts that nobody has waited for are complete before the CPU runs another thread.
    CompleteAtSwitch,
    /// Reclaim: a batch is flushed before what was taken is reused.
    FlushBatch,
    /// Reclaim: a page that is put off counts as a flush of its space, for CPUs that have the space
    /// loaded lazily, or under a tag that they have kept.
    CountTaken,
    /// Reclaim: who finds an entry empty is told that its page may still be in use (3ea277194daa).
    MarkBatched,
}
