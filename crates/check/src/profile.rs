//! The guarantees of each architecture, as far as the checker depends on them: one profile each.
//! Sources are sections of a manual by title, because section numbers change from issue to issue.
//!
//! Differences from real hardware, and the side on which each errs (too lenient means that bugs
//! escape):
//!
//! - Loads never execute early, except before an invalidation of everything (see below). A missing
//!   barrier that only orders loads is therefore not detected here; loom detects it in the engine.
//!   Too lenient. Walkers do not observe their own CPU's stores before other CPUs do, which is too
//!   lenient as well.
//! - An [early invalidation](Invalidations::Early) comes before loads only where a CPU that is not
//!   online yet invalidates everything, and only with respect to the kernel's pages. Arm allows an
//!   invalidation before any load that neither a `DSB` nor a dependency orders. The machine cannot
//!   observe dependencies, so it assumes that every other invalidation, broadcasts included,
//!   depends on every earlier load. An invalidation that lacks its dependency is therefore not
//!   detected elsewhere: too lenient.
//! - Translations in flight follow Arm's rules, and are tracked only for programs that
//!   [ask](crate::HostileMachine::track_in_flight). All checked kernels return from user mode by an
//!   exception, which ends these translations.
//! - RISC-V's TLBs may hold invalid entries ("Supervisor Memory-Management Fence Instruction"; with
//!   Svvptc, not for long). The machine's TLBs do not: too lenient. But such an entry causes only a
//!   spurious fault.
//! - ARC's handler sets the dirty bit by history the whole entry back, and so may write back an
//!   entry that another CPU has just removed. The machine never sets bits of a removed entry: too
//!   lenient.
//!
//! Where an architecture leaves a choice to the implementation, the profile has the worst case.

/// The guarantees of an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The name on the command line.
    pub name: &'static str,
    /// The order in which stores become visible.
    pub stores: Stores,
    /// The effect of invalidating a page on cached pointers to tables.
    pub upper_levels: UpperLevels,
    /// `true` if a CPU that holds a clean entry reads the entry again before it writes through it.
    pub traps_stale_writes: bool,
    /// `true` if the engine [answers early](shootdown::Machine::answers_early).
    pub answers_early: bool,
    /// The effect of loading a root under tag 0.
    pub loads_without_tags: LoadsWithoutTags,
    /// The order of an invalidation after earlier accesses of its CPU.
    pub invalidations: Invalidations,
}

/// The order in which a CPU's stores become visible to other CPUs and to walkers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    /// Stores become visible late and in order. A locked operation waits for earlier stores.
    Ordered,
    /// Stores become visible late; those to different words in any order. Only a releasing
    /// operation or a fence waits for earlier stores.
    Unordered,
}

/// The effect of invalidating a page on cached pointers to tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpperLevels {
    /// All cached pointers under the tag are invalidated as well.
    DroppedWithPages,
    /// No cached pointer is invalidated, unless the invalidation asks for it.
    DroppedIfAsked,
}

/// The effect of loading a root under tag 0, which several spaces may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadsWithoutTags {
    /// Everything under the tag is invalidated.
    Drop,
    /// Nothing is invalidated, unless the load asks for it.
    Keep,
}

/// The order of an invalidation after earlier accesses of its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalidations {
    /// An invalidation comes after all earlier accesses.
    InOrder,
    /// An invalidation may come before earlier writes of its CPU to page tables, unless they were
    /// [published](crate::publish): a walker then reads the old entry again. If a CPU that is not
    /// online yet invalidates everything, the invalidation may also come before earlier loads,
    /// unless they are [complete](crate::complete_accesses).
    Early,
}

impl Profile {
    /// The x86 of Intel and AMD.
    ///
    /// - `stores`: SDM volume 3, "Memory Ordering" (total store order, also for locked operations).
    /// - `upper_levels`: SDM volume 3, "Operations that Invalidate TLBs and Paging-Structure
    ///   Caches": INVLPG invalidates the paging-structure caches of the whole PCID. On AMD, this
    ///   holds with EFER.TCE clear. With EFER.TCE set, only the pointers on the way to the page are
    ///   invalidated.
    /// - `traps_stale_writes`: SDM volume 3, "Accessed and Dirty Flags", "Caching Translations in
    ///   TLBs" (the dirty flag is cached), "Automatic Locking" (it is set by a locked cycle).
    /// - `answers_early`: SDM volume 3, "Delayed Invalidation": software that delays an
    ///   invalidation must only ensure that no access uses the address.
    /// - `loads_without_tags`: SDM volume 3, "Operations that Invalidate TLBs and Paging-Structure
    ///   Caches": without PCIDs, MOV to CR3 invalidates all but global pages. With PCIDs, it
    ///   invalidates all of the PCID unless bit 63 is set.
    /// - `invalidations`: SDM volume 3, "Serializing Instructions": INVLPG, INVPCID and MOV to CR3
    ///   are serializing. AMD's INVLPGB is not, and is not modelled.
    pub const X86: Self = Self {
        name: "x86",
        stores: Stores::Ordered,
        upper_levels: UpperLevels::DroppedWithPages,
        traps_stale_writes: true,
        answers_early: true,
        loads_without_tags: LoadsWithoutTags::Drop,
        invalidations: Invalidations::InOrder,
    };
    /// Arm, from version 8 on. All sources are sections of the Arm Architecture Reference Manual
    /// for A-profile.
    ///
    /// - `stores`: "Definition of the Arm memory model" (other-multi-copy atomic, weakly ordered).
    /// - `upper_levels`: "TLB maintenance instructions": TLBI VALE1 is for entries "from the final
    ///   level", and does not invalidate the walk caches.
    /// - `traps_stale_writes`: "Hardware management of the dirty state": hardware sets the dirty
    ///   state by an atomic update of the entry in memory. Without such hardware, a write through a
    ///   clean entry faults.
    /// - `answers_early`: "Using break-before-make when updating translation table entries": all
    ///   CPUs must have invalidated before the entry gets another address.
    /// - `loads_without_tags`: "TLB maintenance instructions" lists no write of a root.
    /// - `invalidations`: "Ordering and completion of TLB maintenance instructions": only a `DSB`
    ///   orders a `TLBI` after earlier accesses. In Arm's VMSA model in herd7 (June 2025), an
    ///   address or control dependency also orders it after an earlier load. A `DMB`, `ISB` or
    ///   load-acquire alone does not.
    pub const ARM64: Self = Self {
        name: "arm64",
        stores: Stores::Unordered,
        upper_levels: UpperLevels::DroppedIfAsked,
        traps_stale_writes: true,
        answers_early: false,
        loads_without_tags: LoadsWithoutTags::Keep,
        invalidations: Invalidations::Early,
    };
    /// RISC-V. All sources but the first are in volume II of its manual, the privileged
    /// architecture.
    ///
    /// - `stores`: volume I, "RVWMO Memory Consistency Model".
    /// - `upper_levels`: "Supervisor Memory-Management Fence Instruction": `sfence.vma` with an
    ///   address is for leaf entries.
    /// - `traps_stale_writes`: "Addressing and Memory Protection": a page-fault handler sets the
    ///   bits, or hardware does so by an atomic update that reads the entry again.
    /// - `loads_without_tags`: "Supervisor Address Translation and Protection (satp) Register":
    ///   history it invalidates nothing.
    /// - `invalidations`: "Supervisor Memory-Management Fence Instruction": `sfence.vma` orders
    ///   earlier stores before later walks.
    pub const RISCV: Self =
        Self { name: "riscv", invalidations: Invalidations::InOrder, ..Self::ARM64 };
    /// ARC, as Linux uses it.
    ///
    /// - `stores`: `arch/arc/include/asm/barrier.h`: weakly ordered, although issued in order.
    /// - `upper_levels`: `arch/arc/mm/tlbex.S`: software walks the tables, and caches no pointers
    ///   to them.
    /// - `traps_stale_writes`: `arch/arc/mm/tlbex.S`: a CPU can write through an entry that a load
    ///   has brought in. Only a store that misses in the TLB sets the dirty bit.
    /// - `loads_without_tags`: `arch/arc/mm/tlbex.S`: only software uses the root; the MMU has a
    ///   number.
    /// - `invalidations`: `arch/arc/mm/tlbex.S`: software walks by loads of the same CPU.
    pub const ARC: Self = Self {
        name: "arc",
        stores: Stores::Unordered,
        upper_levels: UpperLevels::DroppedWithPages,
        traps_stale_writes: false,
        answers_early: false,
        loads_without_tags: LoadsWithoutTags::Keep,
        invalidations: Invalidations::InOrder,
    };
    /// All profiles.
    pub const ALL: [Self; 4] = [Self::X86, Self::ARM64, Self::RISCV, Self::ARC];
}
