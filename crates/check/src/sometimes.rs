//! Events that must happen in some run. A search that finds no violation but does not cover these
//! events has not exercised the code that matters.

use std::fmt;

/// An event that some run of a search must cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sometimes {
    /// A CPU caught up with missed flushes from the log.
    CaughtUpFromLog,
    /// A CPU came back to a space whose tag had kept all entries.
    KeptItsTag,
    /// A CPU handled a flush interrupt.
    HandledInterrupt,
    /// A flush had no CPU to notify.
    NotifiedNone,
    /// A flush did not interrupt a CPU because it was lazy.
    SkippedLazy,
    /// A flush of the kernel did not interrupt a CPU because it was in user mode.
    SkippedInUser,
    /// A ring sent no interrupt because one was pending already.
    Coalesced,
    /// A CPU freed a space that another CPU had retired.
    HandedOff,
    /// A CPU found a page gone and flushed it, because its flush was waiting in another CPU's
    /// batch.
    FlushedBatched,
    /// The engine broadcast an invalidation. (Only on hardware with broadcasts.)
    Broadcast,
    /// A broadcast reached the domains of some CPUs. (Only on hardware with domains.)
    BroadcastInDomains,
    /// The tags ran out during a flush, and all were assigned again. (Only where all CPUs share the
    /// tags, or where tags are renamed.)
    RolledOverDuringFlush,
    /// A page table waited in quarantine because a lazy CPU could walk it.
    QuarantinedTable,
    /// The quarantine was full, and the walkers were flushed.
    FlushedWalkers,
    /// A CPU freed, by reaping, a dead space for which another CPU had a hazard.
    Reaped,
    /// A CPU mask was trimmed.
    TrimmedCpumask,
    /// A tag was pinned, and a device used it. (Only on hardware with broadcasts and enough tags.)
    PinnedForDevice,
    /// A device with a TLB of its own used a space.
    AttachedDevice,
    /// A flush waited until the device had completed a command.
    WaitedForDevice,
    /// A CPU that its hypervisor had stopped emptied its TLB when it returned.
    EmptiedOnReturn,
    /// A flush was polled before it was complete, and was then joined with another one.
    JoinedUnfinished,
    /// A batch unmapped pages of two spaces.
    BatchedTwoSpaces,
    /// A CPU had to be notified when a frame was reused whose flush had been deferred.
    FlushedAtReuse,
    /// An entry of a secondary table was installed.
    InstalledSecondary,
    /// A fault of a secondary table found a change of the primary entries, and installed nothing.
    RefusedSecondary,
    /// A discarded page was freed after its zero test, and another one mapped back.
    FreedDiscarded,
    /// A large page was unmapped.
    UnmappedLargePage,
    /// The kernel's page table was freed.
    FreedKernelTable,
    /// A CPU was interrupted whose number is in the second word of a CPU set. (Only where sets have
    /// two words.)
    RangInSecondWord,
}

/// Every event, with its description.
const TEXTS: [(Sometimes, &str); 29] = [
    (Sometimes::CaughtUpFromLog, "caught up from the log"),
    (Sometimes::KeptItsTag, "came back to a tag that had kept all entries"),
    (Sometimes::HandledInterrupt, "handled a flush interrupt"),
    (Sometimes::NotifiedNone, "flushed without notifying another CPU"),
    (Sometimes::SkippedLazy, "did not interrupt a lazy CPU"),
    (Sometimes::SkippedInUser, "did not interrupt a CPU in user mode for the kernel"),
    (Sometimes::Coalesced, "found an interrupt pending already"),
    (Sometimes::HandedOff, "freed a space that another CPU had retired"),
    (Sometimes::FlushedBatched, "flushed a page whose flush waited in a batch"),
    (Sometimes::Broadcast, "broadcast an invalidation"),
    (Sometimes::BroadcastInDomains, "broadcast an invalidation to the domains of some CPUs"),
    (Sometimes::RolledOverDuringFlush, "ran out of tags during a flush"),
    (Sometimes::QuarantinedTable, "kept a page table in quarantine because of a lazy CPU"),
    (Sometimes::FlushedWalkers, "found the quarantine full, and flushed the walkers"),
    (Sometimes::Reaped, "freed, by reaping, a dead space with a hazard on another CPU"),
    (Sometimes::TrimmedCpumask, "trimmed a CPU mask"),
    (Sometimes::PinnedForDevice, "pinned a tag for a device"),
    (Sometimes::AttachedDevice, "attached a device with a TLB of its own"),
    (Sometimes::WaitedForDevice, "waited until a device had completed a command"),
    (Sometimes::EmptiedOnReturn, "emptied the TLB of a CPU that a hypervisor had stopped"),
    (Sometimes::JoinedUnfinished, "polled a flush that was not complete, and joined it"),
    (Sometimes::BatchedTwoSpaces, "unmapped pages of two spaces in a batch"),
    (Sometimes::FlushedAtReuse, "flushed a page when its frame was reused"),
    (Sometimes::InstalledSecondary, "installed an entry of a secondary table"),
    (Sometimes::RefusedSecondary, "found a change, and installed no entry of a secondary table"),
    (Sometimes::FreedDiscarded, "freed a discarded page, and mapped another one back"),
    (Sometimes::UnmappedLargePage, "unmapped a large page"),
    (Sometimes::FreedKernelTable, "freed the kernel's page table"),
    (Sometimes::RangInSecondWord, "interrupted a CPU of the second word of a set"),
];

impl Sometimes {
    /// Returns every event.
    pub fn all() -> impl Iterator<Item = Self> {
        TEXTS.iter().map(|&(event, _)| event)
    }
}

impl fmt::Display for Sometimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, text) = TEXTS.iter().find(|(event, _)| event == self).expect("it is in the table");
        f.write_str(text)
    }
}
