//! The versions of Linux that differ in how threads wait for a sleeping lock.

/// How threads wait for a sleeping lock.
///
/// Readers spun in Linux 5.3 to 5.10 only; these versions are not modelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LockWaiting {
    /// All waiters sleep, and get the lock in order of arrival (Linux until 3.15).
    Sleep,
    /// A writer spins while another writer has the lock and runs, and overtakes sleepers (Linux
    /// 3.16 to 5.2).
    SpinOnWriters,
    /// A writer also spins while readers have the lock, for at most 25 µs; after that, no writer
    /// spins until one has had the lock. A reader overtakes sleepers if no thread has the lock
    /// (Linux since 5.11).
    #[default]
    SpinOnAll,
}
