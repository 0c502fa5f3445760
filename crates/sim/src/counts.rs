//! Counts per CPU. The machine itself counts, so no design can forget to.

use core::ops::AddAssign;

use crate::time::Time;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident: $kind:ty,)*) => {
        /// Events on a CPU, or the sum over all CPUs.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[$doc])* pub $name: $kind,)* }

        impl Counts {
            /// The difference from an earlier count.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($name: self.$name - earlier.$name,)* }
            }
        }

        impl AddAssign for Counts {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counts! {
    /// Flush interrupts that the CPU sent, one for each target.
    interrupts_sent: u64,
    /// Notifications of another CPU about a flush that needed no interrupt, because one was in
    /// flight, or because the target was polling.
    interrupts_coalesced: u64,
    /// Interrupts sent whose target had the space loaded, but ran no thread of it.
    interrupts_to_lazy: u64,
    /// Interrupts sent whose target had another space loaded, or none.
    interrupts_to_absent: u64,
    /// Interrupts sent to this CPU that removed a translation which the CPU would have used before
    /// it had caught up by itself. This count and the next four are 0 unless the simulation
    /// [classifies interrupts](crate::Sim::classify_interrupts).
    interrupts_useful: u64,
    /// Interrupts that this CPU took, and whose flushes concerned nothing that its TLB held.
    interrupts_in_vain: u64,
    /// Interrupts sent whose target had read the last-level table of a flushed address since it
    /// last dropped the tag.
    interrupts_touched_2mib: u64,
    /// As the count before, for a table of the level above, which covers 1 GiB.
    interrupts_touched_1gib: u64,
    /// As the count before, for a table of the level above, which covers 512 GiB.
    interrupts_touched_512gib: u64,
    /// Flush interrupts that the CPU took.
    interrupts_taken: u64,
    /// Time in the handlers of those interrupts.
    interrupted: Time,
    /// Broadcast operations of the hardware that the CPU issued.
    broadcasts: u64,
    /// Targets that the CPU made invalidate through firmware.
    remote_fences: u64,
    /// Time spent waiting for broadcasts and remote fences.
    broadcast_wait: Time,
    /// Time that other CPUs' broadcasts and remote fences took from this CPU.
    stolen: Time,
    /// Time for which the hypervisor did not run this CPU.
    away: Time,
    /// Tags that were assigned to spaces.
    tags_taken: u64,
    /// Times that tags ran out, and all were reclaimed.
    rollovers: u64,
    /// Flushes on this CPU of all entries of a tag or of all entries, for any reason.
    flushes_full: u64,
    /// Flushes on this CPU of a range, for any reason.
    flushes_ranged: u64,
    /// Full flushes because the CPU loaded a space or resumed one.
    flushes_full_at_switch: u64,
    /// Ranged flushes because the CPU loaded a space or resumed one.
    flushes_ranged_at_switch: u64,
    /// Pages in all those ranges.
    pages_invalidated: u64,
    /// Loads of a root.
    root_loads: u64,
    /// Loads of a root that kept the cached entries of the tag.
    root_loads_kept: u64,
    /// Accesses to pages.
    accesses: u64,
    /// Accesses that had to walk page tables.
    walks: u64,
    /// Requests for a lock that another thread had.
    lock_waits: u64,
    /// Time that the CPU spun for locks, including the interrupts that it took in that time.
    lock_spin: Time,
    /// Time that threads slept for locks, until they had them. The CPU may have run other threads.
    lock_sleep: Time,
    /// Time that the CPU waited for cache lines while it did [kernel](crate::Cause::Kernel) work.
    line_wait: Time,
    /// Threads that this CPU woke where another ran, so that the scheduler compared the two. This
    /// count and the next are 0 if threads run in turn.
    preemption_checks: u64,
    /// Comparisons after which the woken thread preempted the other.
    preemptions: u64,
    /// Context switches.
    switches: u64,
    /// Threads that came from another CPU.
    migrations: u64,
    /// Time without a thread to run.
    idle: Time,
    /// Time from sending a flush to the end of waiting for it.
    flush_wait: Time,
}

impl Counts {
    /// Returns the number of interrupts that were not in vain. No design could have left out the
    /// useful ones among them.
    #[must_use]
    pub const fn bound(&self) -> u64 {
        self.interrupts_sent.saturating_sub(self.interrupts_in_vain)
    }

    /// Returns the number of useful interrupts. An interrupt that was sent before the counted time
    /// may turn out to be useful during it, so the count is at most the [bound](Self::bound).
    #[must_use]
    pub const fn useful(&self) -> u64 {
        let bound = self.bound();
        if self.interrupts_useful < bound { self.interrupts_useful } else { bound }
    }

    /// Returns the number of interrupts whose target held a translation, and caught up by itself
    /// before it used the translation's address.
    #[must_use]
    pub const fn early(&self) -> u64 {
        self.bound() - self.useful()
    }

    /// Returns the number of interrupts that were in vain, of those that were sent.
    #[must_use]
    pub const fn in_vain(&self) -> u64 {
        self.interrupts_sent - self.bound()
    }

    /// Returns the number of requests to flush a CPU, one for each target, with or without an
    /// interrupt of their own. Linux counts them with the event `csd_queue_cpu`.
    #[must_use]
    pub const fn requests(&self) -> u64 {
        self.interrupts_sent + self.interrupts_coalesced
    }
}
