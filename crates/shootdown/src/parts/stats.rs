//! *Statistics*: counters of the operations that were done, and of those that were saved.
//!
//! Counters are not a part of any protocol between CPUs. They are plain atomics rather than
//! [`Word`](crate::Word)s, so that a model checker does not explore their interleavings. The values
//! of two counters are not consistent with each other.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A counter.
#[derive(Debug)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// A counter at 0.
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds `count`, on the only CPU that ever writes this counter. Costs one unlocked add.
    #[inline]
    pub(crate) fn add_unshared(&self, count: u64) {
        if cfg!(feature = "statistics") {
            self.0.store(self.0.load(Relaxed).wrapping_add(count), Relaxed);
        }
    }

    /// Adds `count`, on one of several CPUs that write this counter. Writes nothing if `count` is
    /// 0.
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        if count != 0 {
            self.0.fetch_add(count, Relaxed);
        }
    }

    /// Adds `count`, and returns the new value.
    #[inline]
    pub(crate) fn add_and_read(&self, count: u64) -> u64 {
        self.0.fetch_add(count, Relaxed) + count
    }

    #[inline]
    pub(crate) fn set(&self, count: u64) {
        self.0.store(count, Relaxed);
    }

    #[inline]
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
        #[derive(Debug)]
        #[repr(C)]
        pub(crate) struct $counters { $(pub(crate) $name: Counter,)* }

        $(#[$snapshot_doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $snapshot {
            $($(#[$doc])* pub $name: u64,)*
            $($($(#[$derived_doc])* pub $derived: u64,)*)?
        }

        impl $counters {
            /// Counters at 0.
            pub(crate) const fn new() -> Self {
                Self { $($name: Counter::new(),)* }
            }

            /// Reads each counter by itself. The derived fields are 0.
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
    /// The counters of one CPU. Only that CPU writes them.
    CpuCounters,
    /// Statistics of one CPU, as a sender and as a receiver of flushes.
    CpuStats {
        /// Flush interrupts that this CPU sent.
        interrupts_sent,
        /// Rings of this CPU that sent no interrupt, because one was on its way, or the target
        /// polled its bell.
        rings_coalesced,
        /// CPUs that this CPU did not interrupt because they were lazy.
        skipped_lazy,
        /// CPUs that this CPU did not interrupt because they were elsewhere: out, on another space,
        /// or offline.
        skipped_elsewhere,
        /// CPUs that this CPU did not interrupt because they were [away](crate::Machine::is_away).
        skipped_away,
        /// CPUs that this CPU did not interrupt for a kernel flush, because they were in [user
        /// mode](crate::PinnedCpu::enter_user).
        skipped_in_user,
        /// Rounds in which this CPU answered its bell.
        answers,
        /// Invalidations of a whole tag or of the whole TLB on this CPU.
        flushes_full,
        /// Ranges that this CPU invalidated page by page.
        flushes_ranged,
        /// Pages of the ranges in `flushes_ranged`. A [long](crate::Extent::long) one counts 4,096
        /// and its larger pages.
        pages_invalidated,
        /// Flushes with which this CPU caught up range by range when it returned to a space.
        caught_up_from_log,
        /// Loads of another space on this CPU.
        switches,
        /// Switches that had to invalidate, because the tag had belonged to another space, or the
        /// CPU had missed a flush.
        switches_flushed,
        /// Dead spaces that this CPU reclaimed.
        spaces_reclaimed,
        /// Tags that this CPU allocated: from another space if tags are per CPU; from the allocator
        /// if they are global; from its own count if spaces are renamed.
        tags_taken,
        /// Rollovers that this CPU caused, because no tag was left: in the allocator if tags are
        /// global; in its own count if spaces are renamed.
        rollovers,
        /// Flushes that this CPU broadcast, including those of the kernel's translations.
        broadcasts_sent,
        /// Flushes for which this CPU notified no other CPU, because none could use the space.
        flushes_local,
        ; derived:
        /// Switches that did not have to invalidate.
        switches_without_flush,
    }
}

stats! {
    /// The counters of one space, which every flushing CPU writes. They share a cache line with the
    /// space's generation, which the flush has just written.
    SpaceCounters,
    /// Statistics of the flushes of one space.
    ///
    /// Interrupts and catching up are counted in [`CpuStats`] only, by the CPU that sends or
    /// catches up: to count them here would cost a locked operation of some 20 cycles per counter.
    SpaceStats {
        /// Flushes of the whole space.
        flushes_full,
        /// Wasted probes: CPUs in the cpumask that a flush skipped because they were out, on
        /// another space, or offline. Too many of them trim the cpumask.
        skipped_elsewhere,
        /// Trims of the cpumask.
        cpumask_trims,
        ; derived:
        /// Ranges flushed. One flush may have several. Without the flushes that were broadcast to
        /// every CPU and named pages: a word of the space that counts them would cost more than
        /// the broadcast. See [`CpuStats::broadcasts_sent`].
        flushes_ranged,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_adds_and_sets() {
        let counter = Counter::new();
        counter.add_unshared(3);
        counter.add(0);
        counter.add(4);
        assert_eq!((counter.read(), counter.add_and_read(5)), (7, 12));
        counter.set(2);
        assert_eq!(counter.read(), 2);
    }

    #[test]
    fn sum_adds_each_counter() {
        let one = SpaceStats { flushes_full: 1, flushes_ranged: 20, ..SpaceStats::default() };
        let mut sum = SpaceStats { flushes_full: 2, cpumask_trims: 9, ..one };
        sum += one;
        assert_eq!((sum.flushes_full, sum.cpumask_trims, sum.flushes_ranged), (3, 9, 40));
    }
}
