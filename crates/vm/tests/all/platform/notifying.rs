//! A coherence that invalidates exactly what it is asked to, on all CPUs of the test machine.

use std::sync::atomic::Ordering::Relaxed;

use shootdown::{BatchIsFull, Horizon, Root, StaleWrites};
use shootdown_vm::{
    Batching, Change, CleanPages, Defer, Discards, EmptyTables, ExecuteLoss, ExtraFlushes,
    FaultLock, Flush, Lifetimes, PageRecords, Placement, Policy, ReclaimFlush, Refault,
    Replication, Retired, UnmapLock, ZeroPage,
};

use super::{AT_FLUSH, AT_WAIT, BATCH_SPACES, Host};

/// The lock that is held while an unmap waits for its flush.
pub const EXCLUSIVE: u8 = 0;
pub const SHARED: u8 = 1;
pub const RELEASED: u8 = 2;
/// As `RELEASED`, with empty page tables kept and writes predicted, on a machine where executable
/// entries are broken before they are restricted.
pub const KEEPING: u8 = 3;
/// As `EXCLUSIVE`, with the extra flushes of Linux for ARC: per space, or per area.
pub const PER_SPACE: u8 = 4;
pub const PER_AREA: u8 = 5;
/// As `RELEASED`, with reclaimed pages flushed in batches.
pub const BATCHING: u8 = 6;
/// As `BATCHING`, with a few private pages discarded in place, and without flushes of translations
/// that no CPU has used.
pub const IN_PLACE: u8 = 7;
/// As `IN_PLACE`, with upper page tables for each CPU.
pub const REPLICATED: u8 = 8;
/// As `RELEASED`, with upper page tables for each CPU, and reclaimed pages flushed one by one.
pub const REPLICATED_PER_PAGE: u8 = 9;
/// As `BATCHING`, with pages that no CPU can write flushed when their frames are reused.
pub const REUSING: u8 = 10;
/// As `REUSING`, with upper page tables for each CPU.
pub const REUSING_REPLICATED: u8 = 12;
/// As `BATCHING`, with upper page tables for each CPU while they are worth it.
pub const REPLICATED_IF_WORTH: u8 = 11;

pub(crate) const fn unmap_lock(lock: u8) -> UnmapLock {
    match lock {
        EXCLUSIVE | PER_SPACE | PER_AREA => UnmapLock::Exclusive,
        SHARED => UnmapLock::Shared,
        _ => UnmapLock::Released,
    }
}

/// Half of the policies lock areas for faults.
pub(crate) const fn fault_lock(lock: u8) -> FaultLock {
    match lock {
        SHARED | KEEPING | BATCHING | IN_PLACE | REPLICATED => FaultLock::Area,
        _ => FaultLock::Space,
    }
}

pub(crate) const fn empty_tables(lock: u8) -> EmptyTables {
    if lock == KEEPING { EmptyTables::Kept } else { EmptyTables::Freed }
}

pub(crate) const fn discards_in_place(lock: u8) -> bool {
    lock == IN_PLACE || lock == REPLICATED
}

const fn batches(lock: u8) -> bool {
    matches!(lock, BATCHING | REPLICATED_IF_WORTH | IN_PLACE | REPLICATED) || reuses(lock)
}

const fn reuses(lock: u8) -> bool {
    matches!(lock, REUSING | REUSING_REPLICATED)
}

fn policy(lock: u8) -> Policy {
    let linux = ExtraFlushes::PERMISSION_GAINS
        | ExtraFlushes::INACCESSIBLE_PAGES
        | ExtraFlushes::SPACE_PER_FORK
        | ExtraFlushes::TABLE_PER_MOVE
        | ExtraFlushes::WRITTEN_SHARED_PAGES;
    let extra_flushes = match lock {
        SHARED => linux | ExtraFlushes::TABLE_PER_DISCARD,
        PER_SPACE => linux | ExtraFlushes::SPACE_PER_UNMAP,
        PER_AREA => linux | ExtraFlushes::AREA_PER_UNMAP,
        _ => ExtraFlushes::empty(),
    };
    Policy {
        fault_lock: fault_lock(lock),
        empty_tables: empty_tables(lock),
        zero_page: if lock == KEEPING { ZeroPage::Predicted } else { ZeroPage::Shared },
        clean_pages: if reuses(lock) { CleanPages::AtReuse } else { CleanPages::AsOthers },
        reclaim_flush: if batches(lock) { ReclaimFlush::Batched } else { ReclaimFlush::PerPage },
        placement: if lock == REPLICATED { Placement::PerThread } else { Placement::Lowest },
        replication: match lock {
            REPLICATED | REPLICATED_PER_PAGE | REUSING_REPLICATED => Replication::Always,
            REPLICATED_IF_WORTH => Replication::IfWorth,
            _ => Replication::Never,
        },
        discards: if discards_in_place(lock) { Discards::InPlace } else { Discards::Immediate },
        page_records: if discards_in_place(lock) { PageRecords::Ahead } else { PageRecords::AtUse },
        execute_loss: if lock == KEEPING {
            ExecuteLoss::BreakBeforeMake
        } else {
            ExecuteLoss::InPlace
        },
        refault: if extra_flushes.is_empty() { Refault::Flushed } else { Refault::Unflushed },
        extra_flushes,
        ..Policy::new(unmap_lock(lock))
    }
}

/// Implements parts of the interface for a coherence that does not use them.
macro_rules! unused {
    (Defer, [$($generics:tt)*] $coherence:ty) => {
        impl<$($generics)*> shootdown_vm::Defer for $coherence {
            type Deferred = core::convert::Infallible;
        }
    };
    (Batching, [$($generics:tt)*] $coherence:ty) => {
        impl<$($generics)*> shootdown_vm::Batching for $coherence {
            type Batch = ();
        }
    };
    (Scheduling, [$($generics:tt)*] $coherence:ty) => {
        impl<$($generics)*> shootdown_vm::Scheduling for $coherence {
            #[allow(unsafe_code, reason = "CPUs of this machine run all spaces at once")]
            unsafe fn switch(&self, _: &shootdown::Root) {}
            fn enter_lazy(&self) {}
            fn leave_space(&self) {}
            fn interrupt(&self) {}
        }
    };
}
pub(crate) use unused;

/// Pages that reclaim has unmapped, and that are not flushed yet.
#[derive(Debug, Default)]
pub struct UnmappedPages {
    spaces: Vec<u64>,
    changes: Vec<(Root, Change)>,
}

impl UnmappedPages {
    /// Returns the root and the address of each page.
    fn pages(&self) -> Vec<(u64, u64)> {
        let start = |change: &Change| change.range.clone().unwrap().start;
        self.changes.iter().map(|(root, change)| (root.0, start(change))).collect()
    }
}

/// Invalidates a change on all CPUs, and nothing beyond it.
#[derive(Clone, Debug)]
pub struct Notifying<const LOCK: u8, const WHEN: u8>(pub Host);

impl<const LOCK: u8, const WHEN: u8> Notifying<LOCK, WHEN> {
    fn invalidate(&self, root: Root, change: &Change) {
        if !self.0.0.drops_flushes.load(Relaxed) {
            self.0.0.tlbs.iter().for_each(|tlb| tlb.lock().invalidate(root, change));
        }
    }
}

impl<const LOCK: u8, const WHEN: u8> Defer for Notifying<LOCK, WHEN> {
    type Deferred = UnmappedPages;

    fn complete(&self, deferred: UnmappedPages) {
        let pages = deferred.pages();
        self.flush_batch(deferred);
        let mut waiting = self.0.0.waiting.lock();
        for page in pages {
            *waiting.entry(page).or_default() -= 1;
        }
    }
}

unused!(Scheduling, [const LOCK: u8, const WHEN: u8] Notifying<LOCK, WHEN>);

impl<const LOCK: u8, const WHEN: u8> Flush for Notifying<LOCK, WHEN> {
    type Space = Root;
    type Pending = Vec<(Root, Change)>;

    fn policy(&self) -> Policy {
        policy(LOCK)
    }

    fn space(&self, root: Root) -> Root {
        root
    }

    fn flush(&self, &root: &Root, change: &Change) -> Vec<(Root, Change)> {
        self.0.0.flushes.lock().push(change.clone());
        if WHEN == AT_FLUSH {
            self.invalidate(root, change);
        }
        Vec::from([(root, change.clone())])
    }

    fn replica(&self, _: &Root, root: Root) -> Option<Root> {
        Some(root)
    }

    fn flush_replicas(
        &self,
        space: &Root,
        replicas: &[&Root],
        change: &Change,
    ) -> Vec<(Root, Change)> {
        let mut pending = self.flush(space, change);
        replicas.iter().for_each(|replica| self.flush_also(&mut pending, replica, change));
        pending
    }

    fn flush_also(&self, pending: &mut Vec<(Root, Change)>, &root: &Root, change: &Change) {
        if WHEN == AT_FLUSH {
            self.invalidate(root, change);
        }
        pending.push((root, change.clone()));
    }

    fn drop_replica(&self, &replica: &Root) {
        if !self.0.0.drops_flushes.load(Relaxed) {
            self.0.0.tlbs.iter().for_each(|tlb| tlb.lock().invalidate_space(replica));
        }
    }

    /// All CPUs of this machine run all spaces at once.
    fn notifications_max(&self, _: &Root) -> Option<usize> {
        Some(self.0.0.tlbs.len() - 1)
    }

    fn is_used_elsewhere(&self, _: &Root) -> bool {
        self.0.0.tlbs.len() > 1
    }

    fn wait(&self, pending: Vec<(Root, Change)>) -> Horizon {
        self.0.begin_wait();
        if WHEN == AT_WAIT {
            pending.iter().for_each(|(root, change)| self.invalidate(*root, change));
        }
        Horizon::CLEAR
    }
}

impl<const LOCK: u8, const WHEN: u8> Batching for Notifying<LOCK, WHEN> {
    type Batch = UnmappedPages;

    fn add_space(&self, batch: &mut UnmappedPages, root: &Root) -> Result<(), BatchIsFull> {
        if !batch.spaces.contains(&root.0) {
            if batch.spaces.len() == BATCH_SPACES {
                return Err(BatchIsFull);
            }
            batch.spaces.push(root.0);
            *self.0.0.batched.lock().entry(root.0).or_default() += 1;
        }
        Ok(())
    }

    fn unmapped(&self, batch: &mut UnmappedPages, root: &Root, address: u64, stale: StaleWrites) {
        let can_write = stale == StaleWrites::Impossible && self.0.can_write(*root, address);
        assert!(!can_write, "a CPU can still write to {address:#x}");
        let change = Change::reclaimed(address);
        if !batches(LOCK) {
            self.wait(self.flush(root, &change));
        } else {
            assert!(batch.spaces.contains(&root.0), "the space was not added to the batch");
            batch.changes.push((*root, change));
        }
    }

    fn unmapped_in_replica(
        &self,
        batch: &mut UnmappedPages,
        &root: &Root,
        address: u64,
    ) -> Result<(), BatchIsFull> {
        self.add_space(batch, &root)?;
        batch.changes.push((root, Change::reclaimed(address)));
        Ok(())
    }

    fn flush_batch(&self, batch: UnmappedPages) {
        if batch.spaces.is_empty() {
            return;
        }
        self.0.begin_wait();
        for (root, change) in &batch.changes {
            self.0.0.flushes.lock().push(change.clone());
            self.invalidate(*root, change);
        }
        let mut batched = self.0.0.batched.lock();
        for space in batch.spaces {
            *batched.entry(space).or_default() -= 1;
        }
    }

    fn defer_batch(&self, batch: UnmappedPages) -> Option<UnmappedPages> {
        if reuses(LOCK) {
            let mut waiting = self.0.0.waiting.lock();
            batch.pages().into_iter().for_each(|page| *waiting.entry(page).or_default() += 1);
            return Some(batch);
        }
        self.flush_batch(batch);
        None
    }

    fn is_batched(&self, root: &Root) -> bool {
        self.0.0.batched.lock().get(&root.0).is_some_and(|&batches| batches != 0)
    }
}

impl<const LOCK: u8, const WHEN: u8> Lifetimes for Notifying<LOCK, WHEN> {
    fn retire(&self, &root: &Root) -> Retired {
        self.0.0.retired.fetch_add(1, Relaxed);
        self.0.0.tlbs.iter().for_each(|tlb| tlb.lock().invalidate_space(root));
        Retired::Free
    }
}
