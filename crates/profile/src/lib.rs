//! The guarantees of each architecture, as far as the checker and the sanitizer depend on them: one
//! profile each.
//!
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
//!   ask (`HostileMachine::track_in_flight`). All checked kernels return from user mode by an
//!   exception, which ends these translations.
//! - TLBs that hold invalid entries are modelled for the kernel's pages only. In a space, such an
//!   entry causes a spurious fault, which every kernel must handle.
//! - ARC's handler sets the dirty bit by writing the whole entry back, and so may write back an
//!   entry that another CPU has just removed. The machine never writes back a removed entry: too
//!   lenient. (The marks of Knights Landing are modelled: [`Erratum::MarksLate`].)
//! - Guests: the first stage maps each page to itself and never changes, and guests have no guests.
//!   Too lenient to a hypervisor that must flush for the guest's own changes.
//! - A device does not cache that a page is not mapped (VT-d's caching mode). Too lenient to a
//!   kernel that does not flush when it maps.
//!
//! Where an architecture leaves a choice to the implementation, the profile has the worst case.
//! Processors that break the architecture's guarantees have profiles of their own, each with its
//! [erratum](Erratum).

/// The guarantees of an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The name on the command line.
    pub name: &'static str,
    /// The processors, in a few words.
    pub about: &'static str,
    /// The order in which stores become visible.
    pub stores: Stores,
    /// The effect of invalidating a page on cached pointers to tables.
    pub upper_levels: UpperLevels,
    /// `true` if a CPU that holds a clean entry reads the entry again before it writes through it.
    pub traps_stale_writes: bool,
    /// `true` if the engine answers early (`Machine::answers_early`).
    pub answers_early: bool,
    /// The effect of loading a root under tag 0.
    pub loads_without_tags: LoadsWithoutTags,
    /// The order of an invalidation after earlier accesses of its CPU.
    pub invalidations: Invalidations,
    /// `true` if a TLB may hold that a page is not mapped.
    pub caches_absence: bool,
    /// The stages of translation below a space's own.
    pub stages: Stages,
    /// The defect of the processor, if it has one.
    pub erratum: Option<Erratum>,
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
    /// published (`publish`): a walker then reads the old entry again. If a CPU that is not
    /// online yet invalidates everything, the invalidation may also come before earlier loads,
    /// unless they are complete (`complete_accesses`).
    Early,
}

/// The stages of translation that a TLB may combine in one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stages {
    /// Spaces are those of programs.
    One,
    /// Spaces are guests, and their page tables the second stage of translation. TLBs hold entries
    /// of this stage, and entries that combine it with the guest's own stage. An invalidation of
    /// pages does not remove combined entries.
    Two,
    /// As `Two`, and combined entries are also named by the virtual CPU. Each invalidation of a
    /// guest removes all of its entries. No CPU walks outside of guests.
    TwoNamed,
    /// As `Two`, and the tag names all entries. They are invalidated where a guest is entered. No
    /// CPU walks outside of guests.
    TwoAtEntry,
}

/// A defect of some processors that changes what their TLBs may do. The name of Linux's workaround
/// and its condition are the source, unless another one is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Erratum {
    /// A wait for broadcasts returns while other CPUs can still use the entries. A second wait ends
    /// these uses, as [`Again`] requires.
    CompletesEarly(Again),
    /// An invalidation of a page or of a tag does nothing. Only an invalidation of everything
    /// works. CIP-1200 of `SiFive` (`ERRATA_SIFIVE_CIP_1200`).
    NamesIgnored,
    /// On a CPU that uses tags, an invalidation of a kernel page by its address does nothing.
    /// Alder Lake and Raptor Lake before a microcode update (`invlpg_miss_ids`).
    GlobalPagesKept,
    /// If a load changes the root and the tag together, entries of the old root may be cached under
    /// the new tag, and entries of the new root under the old tag. Falkor 1003
    /// (`QCOM_FALKOR_ERRATUM_1003`).
    TagsMixed,
    /// A wait for broadcasts does not wait for other CPUs in user mode: they use the entries until
    /// they enter the kernel. Arm 4193714, CVE-2026-0995: the accesses of C1-Pro's streaming mode.
    UserAccessesLate,
    /// A CPU marks an entry as accessed although another CPU has removed the entry since it was
    /// read. Knights Landing (Linux 4.8: "ignore A/D bits in `pte/pmd/pud_none()`").
    MarksLate,
}

/// The requirement for the second wait to complete a broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// Any broadcast was issued after the first wait. Arm 4118414 and its family (CVE-2025-10263);
    /// 1286807, 2441007 and 2441009; Falkor 1009 (`ARM64_WORKAROUND_REPEAT_TLBI`).
    AfterOperation,
    /// None. AMD 1718 on Zen 5 (`init_amd_zen5`: `TLBSYNC` is executed twice).
    Always,
}

impl Stages {
    /// Returns `true` if a CPU walks the tables of a guest only while the guest runs.
    pub const fn walks_in_guests_only(self) -> bool {
        matches!(self, Self::TwoNamed | Self::TwoAtEntry)
    }
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
        about: "x86 of Intel and AMD",
        stores: Stores::Ordered,
        upper_levels: UpperLevels::DroppedWithPages,
        traps_stale_writes: true,
        answers_early: true,
        loads_without_tags: LoadsWithoutTags::Drop,
        invalidations: Invalidations::InOrder,
        caches_absence: false,
        stages: Stages::One,
        erratum: None,
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
        about: "Arm, from version 8 on",
        stores: Stores::Unordered,
        upper_levels: UpperLevels::DroppedIfAsked,
        traps_stale_writes: true,
        answers_early: false,
        loads_without_tags: LoadsWithoutTags::Keep,
        invalidations: Invalidations::Early,
        ..Self::X86
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
    ///   writing it invalidates nothing.
    /// - `invalidations`: "Supervisor Memory-Management Fence Instruction": `sfence.vma` orders
    ///   earlier stores before later walks.
    /// - `caches_absence`: the same section; with Svvptc, not for long.
    pub const RISCV: Self = Self {
        name: "riscv",
        about: "RISC-V",
        invalidations: Invalidations::InOrder,
        caches_absence: true,
        ..Self::ARM64
    };
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
        about: "ARC",
        stores: Stores::Unordered,
        upper_levels: UpperLevels::DroppedWithPages,
        traps_stale_writes: false,
        answers_early: false,
        loads_without_tags: LoadsWithoutTags::Keep,
        ..Self::X86
    };
    /// Arm at EL2, where spaces are guests and tags are VMIDs.
    ///
    /// - `stages`: "TLB maintenance instructions": IPAS2E1 applies to entries of stage 2 alone, and
    ///   not to entries that combine both stages.
    pub const ARM64_STAGE2: Self = Self {
        name: "arm64-stage2",
        about: "Arm as a hypervisor: spaces are guests",
        stages: Stages::Two,
        ..Self::ARM64
    };

    /// Intel's VMX with EPT, where spaces are guests and tags are roots. SDM volume 3C, "Caching
    /// Translation Information".
    ///
    /// - `stages`: "Information That May Be Cached": combined mappings belong to a VPID and an
    ///   EPTP, guest-physical mappings to an EPTP. "Operations that Invalidate Cached Mappings":
    ///   INVEPT of an EPTP removes both, INVVPID combined mappings of one VPID. "Creating and Using
    ///   Cached Translation Information": the processor creates such mappings while a guest runs.
    /// - `loads_without_tags`: "Operations that Invalidate Cached Mappings": an entry with VPIDs
    ///   removes nothing.
    /// - `traps_stale_writes`, `answers_early`: not used by `shootdown-hw`.
    pub const X86_EPT: Self = Self {
        name: "x86-ept",
        about: "Intel as a hypervisor: spaces are guests",
        traps_stale_writes: false,
        answers_early: false,
        loads_without_tags: LoadsWithoutTags::Keep,
        stages: Stages::TwoNamed,
        ..Self::X86
    };
    /// AMD's SVM with nested paging, where spaces are guests and tags are ASIDs.
    ///
    /// - `stages`: APM volume 2, "TLB Control": the guest's ASID names its entries, also those of
    ///   nested paging. A `VMRUN` whose `TLB_CONTROL` asks for it removes those of the ASID that it
    ///   enters.
    pub const X86_NPT: Self = Self {
        name: "x86-npt",
        about: "AMD as a hypervisor: spaces are guests",
        stages: Stages::TwoAtEntry,
        ..Self::X86_EPT
    };

    /// Arm with TLBI domains (`FEAT_TLBID`), each of one CPU.
    ///
    /// "TLBI ASIDE1IS" (register descriptions of 2026-03): with the feature, the operation applies
    /// to the CPUs of the domain that it names. CPUs outside of it keep their entries.
    pub const ARM64_TLBID: Self = Self {
        name: "arm64-tlbid",
        about: "Arm with TLBI domains: a broadcast reaches the CPUs that it names",
        ..Self::ARM64
    };

    /// Arm with [`Erratum::CompletesEarly`].
    pub const ARM64_4118414: Self = Self {
        name: "arm64-4118414",
        about: "Neoverse and others: a broadcast completes too early (CVE-2025-10263)",
        erratum: Some(Erratum::CompletesEarly(Again::AfterOperation)),
        ..Self::ARM64
    };
    /// x86 with [`Erratum::CompletesEarly`].
    pub const X86_1718: Self = Self {
        name: "x86-1718",
        about: "Zen 5: TLBSYNC returns too early",
        erratum: Some(Erratum::CompletesEarly(Again::Always)),
        ..Self::X86
    };
    /// RISC-V with [`Erratum::NamesIgnored`].
    pub const RISCV_CIP_1200: Self = Self {
        name: "riscv-cip-1200",
        about: "SiFive FU740: sfence.vma ignores a page or an ASID",
        erratum: Some(Erratum::NamesIgnored),
        ..Self::RISCV
    };
    /// x86 with [`Erratum::GlobalPagesKept`].
    pub const X86_INVLPG: Self = Self {
        name: "x86-invlpg",
        about: "Alder Lake, Raptor Lake: INVLPG misses global pages if there are PCIDs",
        erratum: Some(Erratum::GlobalPagesKept),
        ..Self::X86
    };
    /// Arm with [`Erratum::TagsMixed`].
    pub const ARM64_1003: Self = Self {
        name: "arm64-1003",
        about: "Falkor: a root and an ASID that change together are mixed",
        erratum: Some(Erratum::TagsMixed),
        ..Self::ARM64
    };
    /// Arm with [`Erratum::UserAccessesLate`].
    pub const ARM64_4193714: Self = Self {
        name: "arm64-4193714",
        about: "C1-Pro with SME: a broadcast does not wait for user mode (CVE-2026-0995)",
        erratum: Some(Erratum::UserAccessesLate),
        ..Self::ARM64
    };
    /// x86 with [`Erratum::MarksLate`].
    pub const X86_KNL: Self = Self {
        name: "x86-knl",
        about: "Knights Landing: removed entries are marked",
        erratum: Some(Erratum::MarksLate),
        ..Self::X86
    };

    /// The architectures, as their manuals describe them.
    pub const ALL: [Self; 4] = [Self::X86, Self::ARM64, Self::RISCV, Self::ARC];
    /// The processors with an erratum.
    pub const ERRATA: [Self; 7] = [
        Self::ARM64_4118414,
        Self::X86_1718,
        Self::RISCV_CIP_1200,
        Self::X86_INVLPG,
        Self::ARM64_1003,
        Self::ARM64_4193714,
        Self::X86_KNL,
    ];

    /// The processors of hypervisors, whose spaces are guests.
    pub const GUESTS: [Self; 3] = [Self::ARM64_STAGE2, Self::X86_EPT, Self::X86_NPT];

    /// Returns every profile.
    pub fn every() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().chain(Self::GUESTS).chain([Self::ARM64_TLBID]).chain(Self::ERRATA)
    }

    /// Returns the profile of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::every().find(|profile| profile.name == name)
    }
}
