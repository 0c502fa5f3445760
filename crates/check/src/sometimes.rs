//! Events that must happen in some run. A search that finds no violation but does not cover these
//! events has not exercised the code that matters.

use std::fmt;

/// Defines the events, each with its description.
macro_rules! events {
    ($($(#[$doc:meta])* $event:ident = $text:literal,)*) => {
        /// An event that some run of a search must cover.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Sometimes { $($(#[$doc])* $event,)* }

        impl Sometimes {
            /// Returns every event.
            pub fn all() -> impl Iterator<Item = Self> {
                [$(Self::$event),*].into_iter()
            }
        }

        impl fmt::Display for Sometimes {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$event => $text,)* })
            }
        }
    };
}

events! {
    /// A CPU caught up with missed flushes from the log.
    CaughtUpFromLog = "caught up from the log",
    /// A CPU came back to a space whose tag had kept all entries.
    KeptItsTag = "came back to a tag that had kept all entries",
    /// A CPU handled a flush interrupt.
    HandledInterrupt = "handled a flush interrupt",
    /// A flush had no CPU to notify.
    NotifiedNone = "flushed without notifying another CPU",
    /// A flush did not interrupt a CPU because it was lazy.
    SkippedLazy = "did not interrupt a lazy CPU",
    /// A flush of the kernel did not interrupt a CPU because it was in user mode.
    SkippedInUser = "did not interrupt a CPU in user mode for the kernel",
    /// A ring sent no interrupt because one was pending already.
    Coalesced = "found an interrupt pending already",
    /// A CPU freed a space that another CPU had retired.
    HandedOff = "freed a space that another CPU had retired",
    /// A CPU found a page gone and flushed it, because its flush was waiting in another CPU's
    /// batch.
    FlushedBatched = "flushed a page whose flush waited in a batch",
    /// The engine broadcast an invalidation. (Only on hardware with broadcasts.)
    Broadcast = "broadcast an invalidation",
    /// A broadcast reached the domains of some CPUs. (Only on hardware with domains.)
    BroadcastInDomains = "broadcast an invalidation to the domains of some CPUs",
    /// The tags ran out during a flush, and all were assigned again. (Only where all CPUs share the
    /// tags, or where tags are renamed.)
    RolledOverDuringFlush = "ran out of tags during a flush",
    /// A page table waited in quarantine because a lazy CPU could walk it.
    QuarantinedTable = "kept a page table in quarantine because of a lazy CPU",
    /// The quarantine was full, and the walkers were flushed.
    FlushedWalkers = "found the quarantine full, and flushed the walkers",
    /// A CPU freed, by reaping, a dead space for which another CPU had a hazard.
    Reaped = "freed, by reaping, a dead space with a hazard on another CPU",
    /// A CPU mask was trimmed.
    TrimmedCpumask = "trimmed a CPU mask",
    /// A tag was pinned, and a device used it. (Only on hardware with broadcasts and enough tags.)
    PinnedForDevice = "pinned a tag for a device",
    /// A device with a TLB of its own used a space.
    AttachedDevice = "attached a device with a TLB of its own",
    /// A flush waited until the device had completed a command.
    WaitedForDevice = "waited until a device had completed a command",
    /// A CPU that its hypervisor had stopped emptied its TLB when it returned.
    EmptiedOnReturn = "emptied the TLB of a CPU that a hypervisor had stopped",
    /// A flush was polled before it was complete, and was then joined with another one.
    JoinedUnfinished = "polled a flush that was not complete, and joined it",
    /// A batch unmapped pages of two spaces.
    BatchedTwoSpaces = "unmapped pages of two spaces in a batch",
    /// A CPU had to be notified when a frame was reused whose flush had been deferred.
    FlushedAtReuse = "flushed a page when its frame was reused",
    /// An entry of a secondary table was installed.
    InstalledSecondary = "installed an entry of a secondary table",
    /// A fault of a secondary table found a change of the primary entries, and installed nothing.
    RefusedSecondary = "found a change, and installed no entry of a secondary table",
    /// A discarded page was freed after its zero test, and another one mapped back.
    FreedDiscarded = "freed a discarded page, and mapped another one back",
    /// A large page was unmapped.
    UnmappedLargePage = "unmapped a large page",
    /// The kernel's page table was freed.
    FreedKernelTable = "freed the kernel's page table",
    /// A CPU was interrupted whose number is in the second word of a CPU set. (Only where sets have
    /// two words.)
    RangInSecondWord = "interrupted a CPU of the second word of a set",
}
