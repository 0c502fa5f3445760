//! The words that Linux's memory manager writes for each page and the memory manager of this
//! project does not have, so that their cache lines cost as much as under Linux. All designs are
//! charged alike.
//!
//! - `struct page` has one line for each frame: the counts of users and mappings, links and flags.
//!   It is charged at each change of the users of a page, with Linux's locked operations.
//! - The lock of a page table is in the `struct page` of the table. It is taken where Linux takes
//!   it. It is held during the change of an entry, and during the flush of a page that is flushed
//!   alone.
//! - Each CPU has lists of free pages, and takes and returns batches under the lock of the zone,
//!   while the records of their frames are written (`rmqueue_bulk`, `free_pcppages_bulk`): see
//!   [`Sim::allocate`].
//! - The LRU lists have one lock, which is taken for 31 pages that were added, or freed
//!   (`folio_batch`, `lru_lock`).
//! - The counter of the memory cgroup: one locked operation for 64 pages that were charged
//!   (`MEMCG_CHARGE_BATCH`), and for 31 that were freed.
//! - The counter of resident pages (`percpu_counter`): one lock for a batch of 32 or more, on a
//!   line of the space.
//!
//! The records of mappings and their locks exist in the memory manager itself, if memory is
//! reclaimed (`reclaim/rmap.rs`), as do the lock of the space, the locks of areas, and the lock of
//! a file's pages.

use core::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use shootdown::Word as _;
use shootdown_sim::{QueuedLock, Sim, SimWord, Time};

/// Number of pages that a CPU adds to the LRU lists, or frees, together (`PAGEVEC_SIZE`).
const LRU_BATCH: usize = 31;
/// Number of pages that a CPU charges to its memory cgroup in advance (`MEMCG_CHARGE_BATCH`).
const CHARGE_BATCH: usize = 64;
/// Smallest number of pages that a CPU counts for itself (`percpu_counter_batch`).
const RESIDENT_BATCH_MIN: usize = 32;

/// Number of locked operations on the record of a page that is mapped once more, or once less: one
/// for its users and one for its mappings.
const SHARING_OPERATIONS: u64 = 2;
/// Number of locked operations on the record of a new page: its flag for the LRU lists. Its counts
/// are written without, because no other CPU has the page.
const NEW_PAGE_OPERATIONS: u64 = 1;

/// The words, and what each CPU has not yet added to them.
#[derive(Debug)]
pub(crate) struct Accounting {
    sim: Rc<Sim>,
    cpus: RefCell<Vec<CpuBatches>>,
    /// For each node, the lock of its LRU lists.
    lru: Vec<QueuedLock>,
    cgroup: Counter,
    resident_batch: usize,
}

/// A counter with a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Counter(SimWord);

#[derive(Clone, Debug, Default)]
struct CpuBatches {
    /// Pages that are not on the LRU lists yet.
    new_pages: Vec<u64>,
    /// Number of pages that were freed since the LRU lists were locked for that.
    freed: usize,
    /// Number of pages that are charged in advance.
    stock: usize,
    /// Changes of the numbers of resident pages, by the space's root table.
    resident: BTreeMap<u64, isize>,
}

impl Accounting {
    pub(crate) fn new(sim: Rc<Sim>) -> Self {
        let cpus = sim.machine().cpu_count();
        Self {
            cpus: RefCell::new(vec![CpuBatches::default(); cpus]),
            lru: (0..sim.node_count()).map(|_| QueuedLock::default()).collect(),
            cgroup: Counter(SimWord::with(0)),
            resident_batch: RESIDENT_BATCH_MIN.max(2 * cpus),
            sim,
        }
    }

    /// Charges a frame to the memory cgroup.
    pub(crate) fn charge(&self) {
        let is_charged = self.of_cpu(|cpu| {
            let is_charged = cpu.stock > 0;
            cpu.stock = cpu.stock.checked_sub(1).unwrap_or(CHARGE_BATCH - 1);
            is_charged
        });
        if !is_charged {
            self.cgroup.0.fetch_add(CHARGE_BATCH as u64, Relaxed);
        }
    }

    /// Accounts for a page that was allocated.
    pub(crate) fn new_page(&self, page: u64) {
        self.charge();
        self.sim.spend(self.sim.machine().kernel.new_page);
        self.sim.use_page_record(page, NEW_PAGE_OPERATIONS);
        let batch = self.of_cpu(|cpu| {
            cpu.new_pages.push(page);
            (cpu.new_pages.len() == LRU_BATCH).then(|| core::mem::take(&mut cpu.new_pages))
        });
        if let Some(pages) = batch {
            self.lock_lru(pages[0], || self.sim.time_of_page_records(&pages));
        }
    }

    /// Accounts for a page that has one user more or less.
    pub(crate) fn change_users(&self, page: u64) {
        self.sim.use_page_record(page, SHARING_OPERATIONS);
    }

    /// Accounts for a page that was freed.
    pub(crate) fn freed(&self, page: u64) {
        let is_full = self.of_cpu(|cpu| {
            cpu.freed = (cpu.freed + 1) % LRU_BATCH;
            cpu.freed == 0
        });
        if is_full {
            self.lock_lru(page, Time::default);
            self.cgroup.0.fetch_add((LRU_BATCH as u64).wrapping_neg(), Relaxed);
        }
    }

    /// Accounts for a change of the number of pages that a space maps.
    pub(crate) fn count_resident(&self, root: u64, change: isize) {
        let is_full = self.of_cpu(|cpu| {
            let counted = cpu.resident.entry(root).or_default();
            *counted += change;
            let is_full = counted.unsigned_abs() >= self.resident_batch;
            if is_full || *counted == 0 {
                cpu.resident.remove(&root);
            }
            is_full
        });
        if is_full {
            self.sim.use_page_record(root, 1);
        }
    }

    fn lock_lru(&self, page: u64, work: impl FnOnce() -> Time) {
        self.sim.hold(&self.lru[self.sim.node_of(page)], work);
    }

    fn of_cpu<R>(&self, f: impl FnOnce(&mut CpuBatches) -> R) -> R {
        f(&mut self.cpus.borrow_mut()[self.sim.cpu()])
    }
}
