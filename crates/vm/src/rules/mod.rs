//! The rules of this crate's protocols: a name for each barrier, and for each ordering of an access
//! to a word that CPUs share.
//!
//! The code names the rule wherever it obeys one, so both ends of a pair can be found from here. A
//! test breaks each rule at each place in the code, by itself. A program under loom then fails
//! (`tests`; a rule without a program does not compile), and no program fails with all rules
//! obeyed. In other builds, [`order`] and [`fence`] are what the rule demands, and nothing else.
//!
//! Accesses that need no ordering are relaxed: counters, hints, and words that a lock or another
//! rule orders.
//!
//! # What is not here
//!
//! Page-table entries and the sharers of tables are words of the [`Platform`](crate::Platform),
//! which states their orderings: a load of an entry acquires, a write releases, `add_sharer`
//! executes a full barrier, `sharers` acquires, and `remove_sharer` releases. The tests' platform
//! breaks each of these, and a program fails. Presence, bells and batches are words of the
//! coherence.
//!
//! # Flushes in flight
//!
//! ```text
//!   flush A                                     a call that finds A's entry changed
//!   ───────                                     ───────────────────────────────────
//!   used |= slot               (ReuseAcquire)
//!   start, end := range        (RangeRelease)
//!   change the entry           (the platform's) load the entry            (the platform's)
//!   flush; wait
//!   end := 0                     (EndRelease)   used has no slot, or        (ListAcquire)
//!   used −= slot                 (EndRelease)   its end is 0, or            (ListAcquire)
//!                                               it has another range        (ListAcquire)
//!   flush B, in the same slot                     → no CPU uses the old translation
//!   ─────────────────────────                   else flush; wait
//!   used |= slot               (ReuseAcquire)
//!   start, end := range        (RangeRelease)
//! ```
//!
//! Each of the three answers on the right must come after A's end. The third reads a word of B,
//! which passes on what B has acquired from A. `ReuseAcquire` also orders B's stores to the slot
//! after A's: otherwise A's 0 could hide B's range.
//!
//! The slots are in [blocks](crate::deferred::in_flight). A block that was made is reached by a
//! pointer, which is written once ([`BlockRelease`](Rule::BlockRelease)).
//!
//! A flush that is deferred is [listed](crate::deferred::ranges) before it leaves this list, and
//! its end is found in the same way ([`DeferredRelease`](Rule::DeferredRelease)).
//!
//! # Replicas
//!
//! ```text
//!   first replica of a space, on CPU c          flush
//!   ──────────────────────────────────          ─────
//!   in_use += 1                                 change the entry
//!   load the replica's root                     full barrier                  (UsedFence)
//!   add c to the sharers; full barrier          in_use = 0 → flush the space (AbandonAcquire)
//!     (`add_sharer`)                            else read the sharers
//!   link the table; walk
//! ```
//!
//! Either the flush finds the replica, or the CPU walks entries as new as the change.
//!
//! ```text
//!   CPU c, when replicas were given up          flush, unhook
//!   ──────────────────────────────────          ─────────────
//!   last use by way of the replica              in_use = 0, or             (AbandonAcquire)
//!   load the canonical tree                     c's replica is abandoned   (AbandonAcquire)
//!   state: used → abandoned  (AbandonRelease)     → c uses nothing by way of its replica;
//!   in_use −= 1              (UncountRelease)       flush the space
//!
//!   cut
//!   ───
//!   state: used → cutting    (AbandonAcquire if it is abandoned)
//!   clear links; drop what is cached
//!   remove c from the sharers of the tables
//!   state := used                (CutRelease)
//! ```
//!
//! A call that finds the replica abandoned may free the tables that it linked to. So a cut that has
//! begun must have ended: the abandonment acquires the end of the last cut, and passes it on.
//!
//! # Memory that reclaim frees
//!
//! A call that finds no page isolated finds the pages that were: free, or on their lists
//! ([`IsolatedRelease`](Rule::IsolatedRelease)).

#[cfg(test)]
pub(crate) mod tests;

use core::sync::atomic::Ordering;

use crate::platform::Platform;

/// The kind of a [`Rule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A full barrier.
    Fence,
    /// An ordering of one access.
    Ordering(Ordering),
}

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident: $kind:expr,)*) => {
        /// A rule of this crate's protocols. The [module](self) shows how the rules work together.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Rule { $($(#[$doc])* $name,)* }

        impl Rule {
            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$name),*];

            #[inline]
            const fn kind(self) -> Kind {
                match self { $(Self::$name => $kind),* }
            }
        }
    };
}

use Ordering::{AcqRel, Acquire, Release};

rules! {
    /// A flush acquires the end of the flush that had its slot before. Pairs with
    /// [`EndRelease`](Self::EndRelease). Without: the stores of the two flushes to the slot may
    /// take effect in either order, so that a flush in flight has an empty range; and a reader that
    /// finds the second flush's range has not acquired the first flush's end.
    ReuseAcquire: Kind::Ordering(Acquire),
    /// A range is written after the flush that had the slot before has ended. Pairs with
    /// [`ListAcquire`](Self::ListAcquire) of a reader that finds another range where it looks for
    /// the ended flush.
    RangeRelease: Kind::Ordering(Release),
    /// All uses of the old translations come before the flush is unlisted. Pairs with
    /// [`ListAcquire`](Self::ListAcquire) and [`ReuseAcquire`](Self::ReuseAcquire). Without: a call
    /// that finds the flush unlisted returns while a CPU still uses an old translation.
    EndRelease: Kind::Ordering(Release),
    /// The other end of [`EndRelease`](Self::EndRelease) and [`RangeRelease`](Self::RangeRelease).
    ListAcquire: Kind::Ordering(Acquire),
    /// A block of slots is made before its pointer is written. Pairs with
    /// [`BlockAcquire`](Self::BlockAcquire). Without: a call that finds the pointer loads words of
    /// the block as they were before it was made.
    BlockRelease: Kind::Ordering(Release),
    /// The other end of [`BlockRelease`](Self::BlockRelease).
    BlockAcquire: Kind::Ordering(Acquire),
    /// All uses of the old translations come before a deferred range is removed. Pairs with
    /// [`DeferredAcquire`](Self::DeferredAcquire). Without: an address is mapped again while a CPU
    /// still uses its old translation.
    DeferredRelease: Kind::Ordering(Release),
    /// The other end of [`DeferredRelease`](Self::DeferredRelease).
    DeferredAcquire: Kind::Ordering(Acquire),

    /// A call that has changed entries executes a full barrier before it reads whether there are
    /// replicas, and the sharers of tables. Pairs with that of
    /// [`add_sharer`](crate::Platform::add_sharer). Without: the call does not find a replica or a
    /// sharer, and the replica's CPU walks the old entry.
    UsedFence: Kind::Fence,
    /// A CPU's last use of its replica, and the load of the canonical tree, come before the replica
    /// is abandoned. Pairs with [`AbandonAcquire`](Self::AbandonAcquire). Acquires as well, what
    /// [`CutRelease`](Self::CutRelease) releases: a call that finds no replica in use, and frees a
    /// table, comes after the last cut of a link to it.
    AbandonRelease: Kind::Ordering(AcqRel),
    /// As [`AbandonRelease`](Self::AbandonRelease), for a call that finds no replica in use.
    UncountRelease: Kind::Ordering(Release),
    /// The other end of [`AbandonRelease`](Self::AbandonRelease) and
    /// [`UncountRelease`](Self::UncountRelease).
    AbandonAcquire: Kind::Ordering(Acquire),
    /// A cut has removed its CPU from the sharers before its replica can be abandoned. Pairs with
    /// [`AbandonRelease`](Self::AbandonRelease). Without: the CPU is removed from the sharers of a
    /// table that has been freed, and may be a table of another space by now.
    CutRelease: Kind::Ordering(Release),

    /// Pages are free, or on their lists, before they are not counted as isolated any more. Pairs
    /// with [`IsolatedAcquire`](Self::IsolatedAcquire). Without: an allocation finds no page
    /// isolated and none free, and fails although memory was freed.
    IsolatedRelease: Kind::Ordering(Release),
    /// The other end of [`IsolatedRelease`](Self::IsolatedRelease).
    IsolatedAcquire: Kind::Ordering(Acquire),
}

/// Returns the ordering that `rule` demands.
#[inline]
#[cfg_attr(test, track_caller)]
pub(crate) fn order(rule: Rule) -> Ordering {
    let Kind::Ordering(ordering) = rule.kind() else { unreachable!("{rule:?} is not an ordering") };
    #[cfg(test)]
    let ordering = tests::sites::weakened(rule).unwrap_or(ordering);
    ordering
}

/// Executes the full barrier that `rule` demands.
#[inline]
#[cfg_attr(test, track_caller)]
pub(crate) fn fence(platform: &impl Platform, rule: Rule) {
    debug_assert_eq!(rule.kind(), Kind::Fence);
    #[cfg(test)]
    if tests::sites::weakened(rule).is_some() {
        return;
    }
    platform.full_barrier();
}
