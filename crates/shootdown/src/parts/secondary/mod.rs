//! *Secondary tables*: page tables that another part of the kernel fills from those of a space.
//!
//! A hypervisor's table of a guest, or a device's own page table, has entries that were read from
//! the *primary* page tables. (Linux: KVM's, by MMU notifiers.) To invalidate them when a primary
//! entry changes is not enough. A fault of the secondary table reads the primary entry, and
//! installs what it has read: if the entry changes in between, after the invalidation, the
//! secondary table keeps an entry of a page that is freed.
//!
//! So a change has a start and an end. A fault that finds a change, before it reads the primary
//! entry or when it is about to install, installs nothing and tries again:
//!
//! ```text
//!   change                                       fault
//!   ──────                                       ─────
//!   start: in progress += 1                      a change is in progress → again
//!   lock; remove secondary entries; unlock           (RefuseDuringChange, BeginFaultAcquire)
//!   change the primary entry                     read the primary entry
//!   flush; wait; free the page                   lock
//!   end: in progress −= 1, count += 1            a change since → unlock; again (RecheckChange)
//!                           (EndChangeRelease)   install; unlock
//! ```
//!
//! The fault's critical section comes before that of the change, which then removes the entry; or
//! it comes after, and finds the change in progress, or counted. If the fault begins after the end,
//! it reads the new entry.
//!
//! The lock is the kernel's, of the secondary table. One word counts the changes, for a table or
//! for each range of it, as coarsely as you accept retries.

use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

use crate::base::memory::{Memory, Word, order};
use crate::base::rules::Rule;

/// The changes of primary entries that concern one secondary table.
pub struct PrimaryChanges<M: Memory> {
    /// The number of changes that have ended, and in the lowest bits those in progress.
    word: M::Word,
}

/// One change that has ended.
const ENDED: u64 = 1 << 16;
const IN_PROGRESS: u64 = ENDED - 1;

impl<M: Memory> Default for PrimaryChanges<M> {
    fn default() -> Self {
        Self { word: M::Word::new(0) }
    }
}

impl<M: Memory> PrimaryChanges<M> {
    /// Starts a change of primary entries. Call this before you remove the entries of the secondary
    /// table, under its lock, and before you change the primary entries.
    ///
    /// Up to 65535 changes may be in progress together.
    ///
    /// # Panics
    ///
    /// If there would be one more: faults would be accepted.
    pub fn start<'c>(&'c self, machine: &'c M) -> PrimaryChange<'c, M> {
        // Relaxed: the lock orders this before the fault's check in a later critical section.
        let before = self.word.fetch_add(1, Relaxed);
        assert_ne!(before & IN_PROGRESS, IN_PROGRESS, "65535 changes are in progress");
        PrimaryChange { changes: self, machine }
    }

    /// A change that was [started](Self::start) and forgotten. For the C interface.
    #[doc(hidden)]
    pub fn started<'c>(&'c self, machine: &'c M) -> PrimaryChange<'c, M> {
        PrimaryChange { changes: self, machine }
    }

    /// Begins a fault of the secondary table. Call this before you read the primary entry. Returns
    /// `None` while a change is in progress: wait, or let the access fault again.
    #[must_use]
    pub fn begin_fault(&self, machine: &M) -> Option<SecondaryFault> {
        // Pairs with the end of a change. Without: the fault observes the end, and then reads the
        // primary entry from before the change, which nothing removes any more.
        let before = self.word.load(order(machine, Rule::BeginFaultAcquire));
        let is_refused = before & IN_PROGRESS != 0 && !machine.breaks(Rule::RefuseDuringChange);
        (!is_refused).then_some(SecondaryFault { before })
    }

    /// Returns `true` if no change has started since `fault` began, so that its entry may be
    /// installed. Call this with the lock of the secondary table held, and keep the lock until the
    /// entry is installed.
    #[must_use]
    pub fn may_install(&self, machine: &M, fault: SecondaryFault) -> bool {
        // Relaxed: the lock orders this after the start of a change that has removed entries.
        let now = self.word.load(Relaxed);
        now == fault.before || machine.breaks(Rule::RecheckChange)
    }
}

impl<M: Memory> fmt::Debug for PrimaryChanges<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Relaxed: for people only.
        let word = self.word.load(Relaxed);
        f.debug_struct("PrimaryChanges")
            .field("ended", &(word / ENDED))
            .field("in_progress", &(word & IN_PROGRESS))
            .finish()
    }
}

/// A change of primary entries, which ends when this is dropped.
///
/// Drop it after the primary entries have changed. Their flush may be done before or after that.
#[must_use = "the change ends when this is dropped"]
pub struct PrimaryChange<'c, M: Memory> {
    changes: &'c PrimaryChanges<M>,
    machine: &'c M,
}

impl<M: Memory> Drop for PrimaryChange<'_, M> {
    fn drop(&mut self) {
        // Pairs with BeginFaultAcquire: a fault that observes the end reads the new entries.
        let release = order(self.machine, Rule::EndChangeRelease);
        self.changes.word.fetch_add(ENDED - 1, release);
    }
}

impl<M: Memory> fmt::Debug for PrimaryChange<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PrimaryChange").field(self.changes).finish()
    }
}

/// A fault of a secondary table, which has not installed its entry yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecondaryFault {
    before: u64,
}

#[cfg(all(test, feature = "soft"))]
mod tests;
