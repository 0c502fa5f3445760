//! The choices that a coherence makes for the memory manager, as a value.

/// Number of pages that reclaim aims to free in a call, and that are usually examined, unmapped and
/// flushed together. (Linux: `SWAP_CLUSTER_MAX`.)
pub const RECLAIM_PAGES: usize = 32;

/// Number of pages of a space that predictions may cost in vain, unless a policy has another:
/// 2 MiB.
pub const PREDICTED_IN_VAIN_MAX: u64 = 512;

/// The locks, page tables and flushes that a coherence wants the memory manager to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The lock that a page fault takes.
    pub fault_lock: FaultLock,
    /// The lock of the space that `munmap` holds while it waits for a flush.
    pub unmap_lock: UnmapLock,
    /// The lifetime of page tables that `munmap` leaves empty.
    pub empty_tables: EmptyTables,
    /// The page that the first read of an anonymous page maps.
    pub zero_page: ZeroPage,
    /// Number of pages of a space that [predictions](ZeroPage::Predicted) may cost in vain: when as
    /// many pages were not written, the space predicts no more.
    pub predicted_in_vain_max: u64,
    /// The time at which pages are flushed that reclaim has unmapped.
    pub reclaim_flush: ReclaimFlush,
    /// The time at which pages are flushed that reclaim has unmapped, if no CPU could write them.
    pub clean_pages: CleanPages,
    /// The time at which pages are flushed that lose the permission to write, because they are
    /// written out.
    pub write_back_flush: ReclaimFlush,
    /// Largest number of pages that reclaim unmaps before it flushes them.
    pub reclaim_batch_pages: usize,
    /// Largest number of pages that a migration unmaps before it flushes them.
    pub migration_batch_pages: usize,
    /// The action of a fault at an address at which reclaim may just have unmapped a page.
    pub refault: Refault,
    /// The address of a new mapping, if user space does not choose it.
    pub placement: Placement,
    /// The page tables that CPUs load.
    pub replication: Replication,
    /// The time at which `madvise` frees a few private pages.
    pub discards: Discards,
    /// The call that makes a private page writable again after a change of protection.
    pub write_grant: WriteGrant,
    /// The way in which a page loses its permission to execute.
    pub execute_loss: ExecuteLoss,
    /// The time at which fork and exit request the records of pages.
    pub page_records: PageRecords,
    /// The way in which the translation of a page gets into the TLB of the CPU that first uses it.
    pub first_use: FirstUse,
    /// Flushes beyond those that correctness needs.
    pub extra_flushes: ExtraFlushes,
    /// Interval between calls of [`tick`](crate::Scheduling::tick) on each CPU that does not idle,
    /// in nanoseconds. `None` for no calls.
    pub tick_ns: Option<u64>,
}

impl Policy {
    /// A policy without extra flushes, predictions or deferral. Faults lock the space.
    #[must_use]
    pub const fn new(unmap_lock: UnmapLock) -> Self {
        Self {
            fault_lock: FaultLock::Space,
            unmap_lock,
            empty_tables: EmptyTables::Freed,
            zero_page: ZeroPage::Shared,
            predicted_in_vain_max: PREDICTED_IN_VAIN_MAX,
            reclaim_flush: ReclaimFlush::PerPage,
            clean_pages: CleanPages::AsOthers,
            write_back_flush: ReclaimFlush::PerPage,
            reclaim_batch_pages: RECLAIM_PAGES,
            migration_batch_pages: RECLAIM_PAGES,
            refault: Refault::Flushed,
            placement: Placement::Lowest,
            replication: Replication::Never,
            discards: Discards::Immediate,
            write_grant: WriteGrant::AtProtect,
            execute_loss: ExecuteLoss::InPlace,
            page_records: PageRecords::AtUse,
            first_use: FirstUse::Walked,
            extra_flushes: ExtraFlushes::empty(),
            tick_ns: None,
        }
    }
}

/// The way in which the translation of a page gets into the TLB of the CPU that first uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstUse {
    /// The MMU walks to it. The fault has set the accessed mark already.
    Walked,
    /// The fault [inserts](crate::Platform::insert_translation) it, without the accessed mark,
    /// which then shows that another CPU may have it (ABIS). Reclaim takes such a page for one that
    /// is not used.
    Inserted,
}

/// The lock of a page fault, and of advice to discard pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultLock {
    /// The lock of the space, for reading (Linux until 6.3).
    Space,
    /// The lock of the area, for reading, if no call is changing the area, and otherwise the lock
    /// of the space. The first write to a private area takes both (Linux since 6.4; for advice
    /// since 6.17).
    ///
    /// Linux then makes the area's `anon_vma`, for which it looks at neighbouring areas. This
    /// memory manager has nothing to do; it takes the lock so that it waits as often.
    Area,
}

/// The lock of the space that is held while `munmap` flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmapLock {
    /// The lock for writing, as it was taken to remove the area (Linux until 4.19).
    Exclusive,
    /// The lock for reading, to which it is downgraded when the area is removed (Linux since 4.20).
    Shared,
    /// No lock: the flush is sent under the lock, and waited for outside.
    Released,
}

/// Lifetime of the page tables that `munmap` leaves empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmptyTables {
    /// `munmap` frees them, and interrupts every CPU that could walk them, idle CPUs included
    /// (Linux).
    Freed,
    /// They stay for the next mapping there, and are freed when there are too many of them, or when
    /// the space dies. An `munmap` then concerns only CPUs that use the space. A space that dies
    /// [empties](crate::Platform::empty_table) its tables, so that the platform can keep them.
    Kept,
}

/// The page that the first read of an anonymous page maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroPage {
    /// The page of zeros that all spaces share, until a write (Linux).
    Shared,
    /// The shared page of zeros, or a separate page if a write is likely to follow. That write then
    /// flushes nothing.
    Predicted,
    /// A separate page, always. No write flushes, and each page that is only read costs memory.
    Separate,
}

/// The time at which pages are flushed that reclaim has unmapped, or write-back has protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimFlush {
    /// After each page (Linux until 4.2).
    PerPage,
    /// After many pages, of several spaces.
    Batched,
}

/// The time at which pages of files are flushed that reclaim has unmapped, and that no CPU could
/// write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CleanPages {
    /// As [`Policy::reclaim_flush`] has it.
    AsOthers,
    /// When their frames are reused. Until then the pages stay in the page cache, so that a fault
    /// finds them there. (Linux: LUF, posted since 2024 and not merged.)
    AtReuse,
}

/// The action of a fault that maps a page at an address at which reclaim may just have unmapped
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refault {
    /// The fault first flushes the address, if a flush of it may be outstanding. Otherwise one CPU
    /// could write to the new page while another CPU still reads the old one.
    Flushed,
    /// The fault flushes nothing. (As far as is known, Linux does not flush here.)
    Unflushed,
}

/// The address of a new mapping, if user space does not choose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The lowest gap.
    Lowest,
    /// The lowest gap in a region of the calling thread's own, which one page table covers.
    PerThread,
}

/// The page tables that CPUs load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replication {
    /// All CPUs load the same tables.
    Never,
    /// Each CPU loads upper tables of its own once several CPUs use the space, while that saves
    /// more than it costs: if its CPUs use different page tables of the last level. If memory is
    /// reclaimed, only with [`ReclaimFlush::Batched`].
    IfWorth,
    /// Each CPU loads upper tables of its own from its first fault on, unless the space has large
    /// pages.
    Always,
}

/// The time at which `madvise` frees pages that are not needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discards {
    /// In the call, which flushes them (Linux).
    Immediate,
    /// Later, if the pages are few, private and anonymous: the call fills them with zeros where
    /// they are, and flushes nothing. They are freed, many with one flush, when they are 20 ms old,
    /// when the space has more than 2 MiB of them, or when memory is short. Pages that were written
    /// in the meantime stay.
    InPlace,
}

/// The call that makes a private page, which no other space shares, writable again after a change
/// of protection has made its area writable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteGrant {
    /// The change of protection (Linux since 6.2, `can_change_pte_writable`).
    AtProtect,
    /// The next write, which faults (Linux before).
    AtFault,
}

/// The way in which a page of user memory loses its permission to execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecuteLoss {
    /// Its entry is changed, and then flushed.
    InPlace,
    /// Its entry is emptied and flushed, and has its new value when no CPU uses the old one. The
    /// space stays locked meanwhile. Required on Cortex-A715, whose erratum 2645198 otherwise makes
    /// the registers of the next fault wrong (Linux:
    /// `ARM64_ERRATUM_2645198`; the crate `shootdown-hw`: `Workarounds::BREAK_EXECUTABLE`).
    BreakBeforeMake,
}

/// The time at which a loop that counts a user more or less of many pages requests their records,
/// which other CPUs may have written last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageRecords {
    /// When it writes them, one by one (Linux).
    AtUse,
    /// Up to 16 entries earlier, so that the transfers overlap.
    Ahead,
}

bitflags::bitflags! {
    /// Flushes that no CPU's correctness depends on.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ExtraFlushes: u16 {
        /// A flush after `mprotect`, of a page that could only be read, and may be written or
        /// executed from now on.
        const PERMISSION_GAINS = 1;
        /// A flush at an unmap, of pages that no access was allowed to.
        const INACCESSIBLE_PAGES = 1 << 1;
        /// A flush at every fork, of the whole space, also on idle CPUs.
        const SPACE_PER_FORK = 1 << 2;
        /// A flush at a move of pages, of each page table separately, also on idle CPUs.
        const TABLE_PER_MOVE = 1 << 3;
        /// A flush of the whole space, whenever `munmap` or `madvise` has unmapped anything, or
        /// `mremap` has removed a page table.
        const SPACE_PER_UNMAP = 1 << 4;
        /// A flush of each area that `munmap` removes or `madvise` empties, from its first page to
        /// its last, whether or not a page was mapped there.
        const AREA_PER_UNMAP = 1 << 5;
        /// A flush of a page that a fault makes writable, because no other space shares it any
        /// more.
        const REUSED_PAGES = 1 << 6;
        /// A flush of the pages of each page table separately, when `munmap` or `madvise` has
        /// unmapped a written page of shared memory there. (Linux then removes the page's reverse
        /// mapping, and so that no write is lost, before it releases the lock of the table.)
        const WRITTEN_SHARED_PAGES = 1 << 7;
        /// A flush of discarded pages also on idle CPUs, if `madvise` has emptied all that a page
        /// table covers. (Linux then frees the table: `CONFIG_PT_RECLAIM`, since 6.14 on x86. Here
        /// the table stays.)
        const TABLE_PER_DISCARD = 1 << 8;
    }
}
