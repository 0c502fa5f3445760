//! What an architecture allows, as far as it matters here: one profile each, with its sources, a
//! section of a manual by its title, for numbers change from issue to issue.
//!
//! What is not modelled, and on which side that errs:
//!
//! - Loads are never early, except before an invalidation of everything (see below). A missing
//!   barrier that orders loads alone is therefore not detected here; loom detects it in the engine.
//!   This is too kind. Nor do walkers see what their own CPU has stored before others do.
//! - An [early invalidation](Invalidations::Early) comes before loads only where a CPU that is not
//!   online yet drops everything, and only as far as the kernel's pages are concerned. Arm allows
//!   an invalidation before any load that neither a `DSB` nor a dependency orders. The machine
//!   cannot see dependencies: it takes every other invalidation, broadcasts included, to depend on
//!   every load before it. So an invalidation that lacks its dependency is not detected elsewhere:
//!   too kind.
//! - Translations in flight are kept for programs that [ask](crate::World::track_in_flight), by
//!   Arm's rules: kernels that are checked come back from user mode by an exception, which ends
//!   them.
//! - RISC-V's TLBs may hold entries that are not valid ("Supervisor Memory-Management Fence
//!   Instruction"; not for long with Svvptc). Here nobody's do: too kind, but all that comes of it
//!   is a fault that the kernel finds to be none.
//! - ARC's handler writes a whole entry back to mark it, and may write back what another has just
//!   taken away. Here it marks nothing that is gone: too kind.
//!
//! Where an architecture leaves something to its implementation, the profile has the worst.

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
    /// Whether an invalidation waits for what its CPU did before.
    pub invalidations: Invalidations,
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

/// Whether an invalidation waits for what its CPU did before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalidations {
    /// It comes after all of it.
    InOrder,
    /// It may come before earlier writes of its CPU to page tables, unless they were
    /// [published](crate::publish): a walker then reads the old entry again. If a CPU that is not
    /// online yet drops everything, that may also come before earlier loads, unless they are
    /// [complete](crate::complete_accesses).
    Early,
}

impl Profile {
    /// Intel's and AMD's.
    ///
    /// - `stores`: SDM volume 3, "Memory Ordering" (total store order, locked operations and all).
    /// - `upper_levels`: SDM volume 3, "Operations that Invalidate TLBs and Paging-Structure
    ///   Caches": INVLPG drops all of its PCID's. On AMD's, with EFER.TCE clear; with it set,
    ///   those on the way to the page alone.
    /// - `traps_stale_writes`: SDM volume 3, "Accessed and Dirty Flags", "Caching Translations in
    ///   TLBs" (the dirty flag is cached), "Automatic Locking" (it is set by a locked cycle).
    /// - `loads_without_tags`: SDM volume 3, "Operations that Invalidate TLBs and Paging-Structure
    ///   Caches": MOV to CR3 drops all but global pages where there are no PCIDs, and all of the
    ///   PCID unless bit 63 is set.
    /// - `invalidations`: SDM volume 3, "Serializing Instructions": INVLPG, INVPCID and MOV to CR3
    ///   are serializing. AMD's INVLPGB is not, and is not modelled.
    pub const X86: Self = Self {
        name: "x86",
        stores: Stores::Ordered,
        upper_levels: UpperLevels::DroppedWithPages,
        traps_stale_writes: true,
        loads_without_tags: LoadsWithoutTags::Drop,
        invalidations: Invalidations::InOrder,
    };
    /// Arm's, from version 8 on. All of the Arm Architecture Reference Manual for A-profile.
    ///
    /// - `stores`: "Definition of the Arm memory model" (other-multi-copy atomic, weakly ordered).
    /// - `upper_levels`: "TLB maintenance instructions": TLBI VALE1 is for entries "from the final
    ///   level", and leaves the walk caches alone.
    /// - `traps_stale_writes`: "Hardware management of the dirty state": by an atomic update of the
    ///   entry in memory; or by a fault, where there is no such hardware.
    /// - `loads_without_tags`: "TLB maintenance instructions" lists no write of a root.
    /// - `invalidations`: "Ordering and completion of TLB maintenance instructions": only a `DSB`
    ///   orders a `TLBI` after earlier accesses. Arm's VMSA model in herd7 (June 2025) orders it
    ///   after an earlier load by an address or control dependency, too, and by no `DMB`, `ISB` or
    ///   load-acquire alone.
    pub const ARM64: Self = Self {
        name: "arm64",
        stores: Stores::Unordered,
        upper_levels: UpperLevels::DroppedIfAsked,
        traps_stale_writes: true,
        loads_without_tags: LoadsWithoutTags::Keep,
        invalidations: Invalidations::Early,
    };
    /// RISC-V's. All but the first of volume II of its manual, the privileged architecture.
    ///
    /// - `stores`: volume I, "RVWMO Memory Consistency Model".
    /// - `upper_levels`: "Supervisor Memory-Management Fence Instruction": `sfence.vma` with an
    ///   address is for leaf entries.
    /// - `traps_stale_writes`: "Addressing and Memory Protection": marks are set by a fault's
    ///   handler, or by an atomic update that looks at the entry once more.
    /// - `loads_without_tags`: "Supervisor Address Translation and Protection (satp) Register":
    ///   writing it invalidates nothing.
    /// - `invalidations`: "Supervisor Memory-Management Fence Instruction": `sfence.vma` orders
    ///   earlier stores before later walks.
    pub const RISCV: Self =
        Self { name: "riscv", invalidations: Invalidations::InOrder, ..Self::ARM64 };
    /// ARC's, as Linux uses it.
    ///
    /// - `stores`: `arch/arc/include/asm/barrier.h`: weakly ordered, though issued in order.
    /// - `upper_levels`: `arch/arc/mm/tlbex.S`: software walks, and caches nothing of the way.
    /// - `traps_stale_writes`: the same: an entry that a load has brought in can be written by,
    ///   and only stores that miss mark it.
    /// - `loads_without_tags`: the same: the root is for software alone, the MMU knows a number.
    /// - `invalidations`: the same: software walks, by loads of the same CPU.
    pub const ARC: Self = Self {
        name: "arc",
        stores: Stores::Unordered,
        upper_levels: UpperLevels::DroppedWithPages,
        traps_stale_writes: false,
        loads_without_tags: LoadsWithoutTags::Keep,
        invalidations: Invalidations::InOrder,
    };
    /// All of them.
    pub const ALL: [Self; 4] = [Self::X86, Self::ARM64, Self::RISCV, Self::ARC];
}
