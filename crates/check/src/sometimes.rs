//! What must happen now and then, so that a search that finds nothing has looked where it matters.

use std::fmt;

/// Something that must happen in some run, or the search shows less than it seems to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sometimes {
    /// A CPU had missed flushes, and made up for them by the log.
    CaughtUpFromLog,
    /// A CPU came back to a space, whose tag had kept everything.
    KeptItsTag,
    /// A CPU answered its bell.
    Answered,
    /// A flush found nobody to tell.
    ToldNobody,
    /// A flush did not interrupt a CPU, for that was lazy.
    SkippedLazy,
    /// A ring sent no interrupt, for one was on its way.
    Coalesced,
    /// A space was freed by another CPU than that which retired it.
    HandedOff,
    /// Who found a page gone flushed it, for a batch held it back.
    Settled,
    /// Hardware was told to drop translations everywhere. (Where it can be.)
    Broadcast,
    /// Tags ran out, and all were given anew, while somebody flushed. (Where they are the same on
    /// all CPUs, or renamed.)
    RolledOverDuringFlush,
    /// A page table waited in quarantine, for a lazy CPU could walk it.
    HeldTableBack,
    /// There was no room in quarantine, and CPUs were made to forget the way to tables.
    Expelled,
    /// A CPU freed a dead space that another CPU had held, by reaping.
    Reaped,
    /// A roster was trimmed.
    TrimmedRoster,
    /// A tag was pinned, and a device used it. (Where hardware can be told to drop translations
    /// everywhere, and there are tags enough.)
    PinnedForDevice,
    /// A flush was polled, was not done, and was joined with another one.
    JoinedUnfinished,
    /// A batch took pages of two spaces.
    BatchedTwoSpaces,
    /// A large page was taken away.
    UnmappedLargePage,
    /// A CPU was interrupted whose number is in the second word of sets. (Where they have two.)
    RangInSecondWord,
}

impl Sometimes {
    /// All of it.
    pub const ALL: [Self; 19] = [
        Self::CaughtUpFromLog,
        Self::KeptItsTag,
        Self::Answered,
        Self::ToldNobody,
        Self::SkippedLazy,
        Self::Coalesced,
        Self::HandedOff,
        Self::Settled,
        Self::Broadcast,
        Self::RolledOverDuringFlush,
        Self::HeldTableBack,
        Self::Expelled,
        Self::Reaped,
        Self::TrimmedRoster,
        Self::PinnedForDevice,
        Self::JoinedUnfinished,
        Self::BatchedTwoSpaces,
        Self::UnmappedLargePage,
        Self::RangInSecondWord,
    ];
}

impl fmt::Display for Sometimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CaughtUpFromLog => "caught up from the log",
            Self::KeptItsTag => "came back to a tag that had kept everything",
            Self::Answered => "answered a bell",
            Self::ToldNobody => "flushed with nobody to tell",
            Self::SkippedLazy => "left a lazy CPU alone",
            Self::Coalesced => "found a bell rung already",
            Self::HandedOff => "handed a dead space to the last that left it",
            Self::Settled => "flushed what a batch held back",
            Self::Broadcast => "broadcast an invalidation",
            Self::RolledOverDuringFlush => "ran out of tags during a flush",
            Self::HeldTableBack => "held a page table back from a lazy CPU",
            Self::Expelled => "made CPUs forget the way to tables",
            Self::Reaped => "freed a dead space that another CPU had held, by reaping",
            Self::TrimmedRoster => "trimmed a roster",
            Self::PinnedForDevice => "pinned a tag for a device",
            Self::JoinedUnfinished => "polled a flush that was not done, and joined it",
            Self::BatchedTwoSpaces => "took pages of two spaces in a batch",
            Self::UnmappedLargePage => "took a large page away",
            Self::RangInSecondWord => "interrupted a CPU of the second word of a set",
        })
    }
}
