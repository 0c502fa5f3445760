//! What was done, and what was saved.
//!
//! Counters are no part of any protocol between CPUs. They are plain atomics rather than
//! [`Word`](crate::Word)s, so that a model checker does not explore their interleavings; nothing
//! may be concluded from one about another.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number that goes up.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Counts, by the only CPU that ever counts here: one unlocked add.
    #[inline]
    pub(crate) fn add_alone(&self, count: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(count), Relaxed);
    }

    /// Counts, by one of several CPUs. Costs nothing where there is nothing to count.
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        if count != 0 {
            self.0.fetch_add(count, Relaxed);
        }
    }

    /// Counts, and returns the count so far.
    #[inline]
    pub(crate) fn add_and_read(&self, count: u64) -> u64 {
        self.0.fetch_add(count, Relaxed) + count
    }

    pub(crate) fn set(&self, count: u64) {
        self.0.store(count, Relaxed);
    }

    pub(crate) fn read(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

macro_rules! stats {
    (
        $(#[$counters_doc:meta])* $counters:ident,
        $(#[$snapshot_doc:meta])* $snapshot:ident {
            $($(#[$doc:meta])* $name:ident,)*
            $(; derived: $($(#[$derived_doc:meta])* $derived:ident,)*)?
        }
    ) => {
        $(#[$counters_doc])*
        #[derive(Debug, Default)]
        #[repr(C)]
        pub(crate) struct $counters { $(pub(crate) $name: Counter,)* }

        $(#[$snapshot_doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $snapshot {
            $($(#[$doc])* pub $name: u64,)*
            $($($(#[$derived_doc])* pub $derived: u64,)*)?
        }

        impl $counters {
            /// The counts now, each read by itself; what is derived from elsewhere is 0.
            pub(crate) fn read(&self) -> $snapshot {
                $snapshot { $($name: self.$name.read(),)* $($($derived: 0,)*)? }
            }
        }

        impl core::ops::AddAssign for $snapshot {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
                $($(self.$derived += other.$derived;)*)?
            }
        }
    };
}

stats! {
    /// A CPU's counters. Only that CPU writes them.
    CpuCounters,
    /// What one CPU did, as the sender of flushes and as their receiver.
    CpuStats {
        /// Flush interrupts that this CPU sent.
        interrupts_sent,
        /// Rings for which no interrupt was sent, for one was on its way, or none was needed.
        rings_coalesced,
        /// CPUs not interrupted because they were lazy.
        skipped_lazy,
        /// CPUs not interrupted because they were elsewhere: out, on another space, or offline.
        skipped_elsewhere,
        /// Bells answered.
        answers,
        /// Times the whole tag, or the whole TLB, was invalidated.
        flushes_full,
        /// Times that pages were invalidated one by one.
        flushes_ranged,
        /// The pages of those.
        pages_invalidated,
        /// Ranges made up for on return from lazy or elsewhere, from the log.
        caught_up_from_log,
        /// Times another space was loaded.
        switches,
        /// Those of them in which something had to be invalidated: the tag was another space's, or
        /// the CPU had missed a flush.
        switches_flushed,
        /// Dead spaces that this CPU reclaimed, as the last to let go of them.
        spaces_reclaimed,
        /// Tags that this CPU took: from another space if tags are per CPU; from the allocator if
        /// they are global; the next one if spaces are renamed.
        tags_taken,
        /// Times that this CPU found no tag left: in the allocator if tags are global, or of its
        /// own count if spaces are renamed.
        rollovers,
        /// Flushes, those of the kernel's translations included, that this CPU broadcast.
        broadcasts_sent,
        /// Flushes of which this CPU told nobody: no other could use the space.
        flushes_local,
        ; derived:
        /// Times another space was loaded, and nothing of its tag was invalidated.
        switches_without_flush,
    }
}

stats! {
    /// A space's counters, written by whoever flushes it. They share a line with its generation,
    /// which a flush has just taken.
    SpaceCounters,
    /// What flushes of one space did.
    ///
    /// Interrupts that its flushes sent are in the statistics of the CPUs that sent them, and what
    /// CPUs did to catch up in theirs: a locked operation on a line of the space's costs some 20
    /// cycles for each number that is counted.
    SpaceStats {
        /// Flushes of the whole space.
        flushes_full,
        /// CPUs that a flush looked at in vain: out, on another space, or offline. The cpumask is
        /// trimmed when these become too many.
        skipped_elsewhere,
        /// Times that the cpumask was cleared of those who are elsewhere.
        cpumask_trims,
        ; derived:
        /// Ranges flushed, of which a flush may have several: all that the generation counts, less
        /// the full ones.
        flushes_ranged,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_count() {
        let counter = Counter::default();
        counter.add_alone(3);
        counter.add(0);
        counter.add(4);
        assert_eq!((counter.read(), counter.add_and_read(5)), (7, 12));
        counter.set(2);
        assert_eq!(counter.read(), 2);
    }

    #[test]
    fn sums_are_of_each_count() {
        let one = SpaceStats { flushes_full: 1, flushes_ranged: 20, ..SpaceStats::default() };
        let mut sum = SpaceStats { flushes_full: 2, cpumask_trims: 9, ..one };
        sum += one;
        assert_eq!((sum.flushes_full, sum.cpumask_trims, sum.flushes_ranged), (3, 9, 40));
    }
}
