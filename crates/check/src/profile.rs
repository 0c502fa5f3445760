//! What an architecture allows, as far as it matters here: one profile each, with its sources.
//!
//! What is not modelled, and on which side that errs: loads are never early, nor are translations
//! held in the middle of an instruction, so barriers that order loads alone are not missed when
//! they are missing (loom misses them in the engine). Where an architecture leaves something to
//! its implementation, the profile has the worst.

/// What an architecture allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its name, as one types it.
    pub name: &'static str,
    /// How stores become visible.
    pub stores: Stores,
    /// What dropping a translation of a page does to what is cached of upper levels.
    pub upper_levels: UpperLevels,
    /// Whether a CPU that remembers a page as not written looks again before it writes there.
    pub traps_stale_writes: bool,
    /// What loading a root without a tag of its own drops.
    pub loads_without_tags: LoadsWithoutTags,
}

/// How stores become visible to others, and to walkers of page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    /// Late, and in order; locked operations wait for them.
    Ordered,
    /// Late, and those to different words in any order; only what releases, or fences, waits.
    Unordered,
}

/// What dropping a translation of a page does to what is cached of upper levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpperLevels {
    /// All of the tag's are dropped with it.
    DroppedWithPages,
    /// None is, unless it is asked for.
    DroppedIfAsked,
}

/// What loading a root under a tag that does not say whose it is drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadsWithoutTags {
    /// Everything.
    Drop,
    /// Nothing, unless it is asked for.
    Keep,
}

impl Profile {
    /// Intel's and AMD's: total store order (SDM 3A 11.2); INVLPG drops the paging-structure caches
    /// of its PCID (SDM 3A 5.10.4.1), and so does CR3; accessed and dirty marks are set by a locked
    /// walk (SDM 3A 5.8).
    pub const X86: Self = Self {
        name: "x86",
        stores: Stores::Ordered,
        upper_levels: UpperLevels::DroppedWithPages,
        traps_stale_writes: true,
        loads_without_tags: LoadsWithoutTags::Drop,
    };
    /// Arm's, from version 8 on: stores are weakly ordered (Arm ARM B2.3); a TLBI of the last level
    /// leaves the walk caches alone (D8.14); marks are set by hardware, or by faults.
    pub const ARM64: Self = Self {
        name: "arm64",
        stores: Stores::Unordered,
        upper_levels: UpperLevels::DroppedIfAsked,
        traps_stale_writes: true,
        loads_without_tags: LoadsWithoutTags::Keep,
    };
    /// RISC-V's: RVWMO; `sfence.vma` with an address need not drop what is cached of upper levels
    /// (privileged 12.2.1); `satp` drops nothing.
    pub const RISCV: Self = Self { name: "riscv", ..Self::ARM64 };
    /// ARC's: software refills the TLB, and so does not cache what it walks; it marks pages in its
    /// handler, of an entry that is there.
    pub const ARC: Self = Self {
        name: "arc",
        stores: Stores::Unordered,
        upper_levels: UpperLevels::DroppedWithPages,
        traps_stale_writes: false,
        loads_without_tags: LoadsWithoutTags::Keep,
    };
    /// All of them.
    pub const ALL: [Self; 4] = [Self::X86, Self::ARM64, Self::RISCV, Self::ARC];
}
