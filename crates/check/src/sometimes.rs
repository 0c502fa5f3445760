//! What must happen now and then, so that a search that finds nothing has looked where it matters.

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
    /// A ring sent no interrupt, for one was on its way.
    Coalesced,
    /// A space was freed by another CPU than that which retired it.
    HandedOff,
    /// Who found a page gone flushed it, for a batch held it back.
    Settled,
}

impl Sometimes {
    /// All of it.
    pub const ALL: [Self; 7] = [
        Self::CaughtUpFromLog,
        Self::KeptItsTag,
        Self::Answered,
        Self::ToldNobody,
        Self::Coalesced,
        Self::HandedOff,
        Self::Settled,
    ];
}
