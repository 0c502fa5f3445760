//! A machine in loom's memory: CPUs with MMUs and TLBs, frames that detect a use after they were
//! freed, and the platform.
//!
//! An access of a CPU holds the lock of its TLB, as an instruction that an interrupt does not
//! divide. A flush takes the lock of each CPU that it finds present, and of no other: so nothing
//! but the memory manager's own orderings come between a CPU that is left out and the flush.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use lock_api::Mutex;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::fence;
use shootdown::Root;

use super::lock::Lock;
use super::sites;
use super::words::{self, AtomicU64};
use crate::PAGE_BYTES;
use crate::coherence::{Change, Freed, Policy};
use crate::format::riscv::Sv39;
use crate::format::{EMPTY, Format};
use crate::platform::{EntryAt, FileId, Frame, FrameUse, OutOfMemory, Platform};

/// An ordering that a platform promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Promise {
    /// The barrier of `add_sharer`.
    AddSharerFence,
    /// `sharers` acquires.
    SharersAcquire,
    /// `remove_sharer` releases.
    RemoveSharerRelease,
    /// The load of an entry acquires.
    EntryAcquire,
    /// The write of an entry releases.
    EntryRelease,
}

impl Promise {
    pub(super) const ALL: [Self; 5] = [
        Self::AddSharerFence,
        Self::SharersAcquire,
        Self::RemoveSharerRelease,
        Self::EntryAcquire,
        Self::EntryRelease,
    ];
}

/// The entries that tables have. loom demands that each CPU that uses a word comes after its
/// creation, so that entries cannot be made when they are first used.
const INDICES: [usize; 3] = [0, 5, 7];

/// The page of the programs, at the first entry of its table.
pub(super) const PAGE: u64 = 5 << 21;

/// A CPU that is loading another root.
const SWITCHING: u64 = u64::MAX;

pub(crate) struct Machine {
    pub(super) policy: Policy,
    entries: parking_lot::Mutex<BTreeMap<(u64, usize), Arc<AtomicU64>>>,
    frames: parking_lot::Mutex<Vec<Arc<FrameState>>>,
    cpus: Vec<Cpu>,
    /// Number of batches that the space is in.
    pub(super) batched: AtomicU64,
}

struct FrameState {
    users: AtomicU64,
    sharers: AtomicU64,
    is_free: parking_lot::Mutex<bool>,
    /// Used by each access, and changed when the frame is freed.
    until_freed: UnsafeCell<()>,
    /// Used by each access. A CPU changes its own when its call has returned that lets no CPU use
    /// the frame.
    until_unused: Vec<UnsafeCell<()>>,
}

impl FrameState {
    fn free(&self) {
        *self.is_free.lock() = true;
        self.until_freed.with_mut(|_| ());
    }
}

// SAFETY: loom checks each access to the cells, and an unordered access fails the test.
#[expect(unsafe_code, reason = "loom's cells are checked by loom")]
unsafe impl Sync for FrameState {}
// SAFETY: as above; nothing else in it belongs to a thread.
#[expect(unsafe_code, reason = "loom's cells are checked by loom")]
unsafe impl Send for FrameState {}

struct Cpu {
    /// The root that the CPU has published, or [`SWITCHING`].
    presence: AtomicU64,
    /// (A mutex of loom would execute a full barrier also.)
    tlb: Mutex<Lock, Tlb>,
}

#[derive(Default)]
struct Tlb {
    root: u64,
    /// By root and address.
    pages: BTreeMap<(u64, u64), Frame>,
    /// Tables of the last level, by root and first address.
    paths: BTreeMap<(u64, u64), Frame>,
}

/// A CPU on which a flush invalidates, a root, and the change.
pub(crate) type Target = (usize, u64, Option<Change>);

/// The platform: a handle to the machine.
#[derive(Clone)]
pub(crate) struct Host(pub(super) Arc<Machine>);

impl Host {
    pub(super) fn new(cpu_count: usize, policy: Policy) -> Self {
        words::set_cpus(cpu_count);
        let cpu = || {
            let tlb = Mutex::new(Tlb::default());
            // Use the lock.
            drop(tlb.lock());
            Cpu { presence: AtomicU64::new(0), tlb }
        };
        Self(Arc::new(Machine {
            policy,
            entries: parking_lot::Mutex::default(),
            frames: parking_lot::Mutex::default(),
            cpus: (0..cpu_count).map(|_| cpu()).collect(),
            batched: AtomicU64::new(0),
        }))
    }

    fn frame(&self, frame: Frame) -> Arc<FrameState> {
        let state = Arc::clone(&self.0.frames.lock()[frame.0 as usize]);
        assert!(!*state.is_free.lock(), "{frame:?} is used after it was freed");
        state.until_freed.with(|_| ());
        state
    }

    /// States that no CPU uses a frame any more.
    pub(super) fn assert_unused(&self, frame: Frame) {
        let state = Arc::clone(&self.0.frames.lock()[frame.0 as usize]);
        state.until_unused[self.cpu()].with_mut(|_| ());
    }

    pub(super) fn use_frame(&self, frame: Frame) {
        self.frame(frame).until_unused.iter().for_each(|cell| cell.with(|_| ()));
    }

    fn word(&self, at: EntryAt) -> Arc<AtomicU64> {
        drop(self.frame(at.table));
        Arc::clone(&self.0.entries.lock()[&(at.table.0, at.index)])
    }

    /// Accesses a page as an instruction of this CPU does. Returns `false` if that faults.
    pub(super) fn touch(&self, address: u64) -> bool {
        let mut tlb = self.0.cpus[self.cpu()].tlb.lock();
        let frame = self.translate(&mut tlb, address);
        if let Some(frame) = frame {
            self.use_frame(frame);
        }
        frame.is_some()
    }

    /// Returns the frame for an address. A translation that is found is cached.
    fn translate(&self, tlb: &mut Tlb, address: u64) -> Option<Frame> {
        if tlb.root == 0 {
            return None;
        }
        let (page, region) = ((tlb.root, address), (tlb.root, address & !(Sv39::span(1) - 1)));
        if let Some(&frame) = tlb.pages.get(&page) {
            return Some(frame);
        }
        let table = tlb.paths.get(&region).copied().or_else(|| self.walk(tlb.root, address))?;
        self.use_frame(table);
        let entry = self.load(EntryAt { table, index: Sv39::index(address, 0) });
        let leaf = Sv39::as_leaf(entry).filter(|leaf| !leaf.protection.is_empty());
        let Some(leaf) = leaf else {
            // A fault drops the path to its address.
            tlb.paths.remove(&region);
            return None;
        };
        tlb.paths.insert(region, table);
        tlb.pages.insert(page, leaf.frame);
        Some(leaf.frame)
    }

    /// Walks to the table of the last level.
    fn walk(&self, root: u64, address: u64) -> Option<Frame> {
        (1..Sv39::LEVELS).rev().try_fold(Frame(root >> 12), |table, level| {
            self.use_frame(table);
            Sv39::as_table(self.load(EntryAt { table, index: Sv39::index(address, level) }))
        })
    }

    /// Loads a root on this CPU, unless it is loaded. Drops what was cached under it before. The
    /// last use under the old root comes right before.
    ///
    /// A CPU that had no root executes a barrier, as each real switch does. A CPU that changes from
    /// one root to another does not: the barrier would order accesses on which the memory manager
    /// must not rely.
    pub(super) fn load_root(&self, Root(root): Root, last_use: u64) {
        let cpu = &self.0.cpus[self.cpu()];
        let before = cpu.tlb.lock().root;
        if before == root {
            return;
        }
        self.touch(last_use);
        cpu.presence.store(SWITCHING, Release);
        if before == 0 {
            fence(SeqCst);
        }
        let mut tlb = cpu.tlb.lock();
        tlb.root = root;
        tlb.pages.retain(|&(of, _), _| of != root);
        tlb.paths.retain(|&(of, _), _| of != root);
        drop(tlb);
        cpu.presence.store(root, Release);
    }

    /// Returns the CPUs that have a root loaded, without a barrier, as above.
    pub(super) fn present(&self, Root(root): Root) -> Vec<usize> {
        let is_present = |&cpu: &usize| {
            let presence = self.0.cpus[cpu].presence.load(Acquire);
            presence == root || presence == SWITCHING
        };
        (0..self.0.cpus.len()).filter(is_present).collect()
    }

    /// Invalidates a change on a CPU, or all that it has cached under a root.
    pub(super) fn invalidate(&self, (cpu, root, change): &Target) {
        let mut tlb = self.0.cpus[*cpu].tlb.lock();
        let Some(change) = change else {
            tlb.pages.retain(|(of, _), _| of != root);
            tlb.paths.retain(|(of, _), _| of != root);
            return;
        };
        let is_whole = change.range.is_none();
        let extents = change.extents.as_slice();
        let is_covered = |page: u64| {
            extents.iter().any(|extent| {
                let bytes = extent.page_count() as u64 * extent.page_size().bytes();
                extent.is_whole() || (extent.start()..extent.start() + bytes).contains(&page)
            })
        };
        tlb.pages.retain(|&(of, page), _| of != *root || !is_whole && !is_covered(page));
        if change.freed == Freed::Tables {
            tlb.paths.retain(|&(of, _), _| of != *root);
        }
    }
}

impl Platform for Host {
    type SleepingLock = Lock;
    type IndexLock = Lock;
    type SpinLock = Lock;

    fn allocate(&self, purpose: FrameUse) -> Result<Frame, OutOfMemory> {
        let mut frames = self.0.frames.lock();
        frames.push(Arc::new(FrameState {
            users: AtomicU64::new(1),
            sharers: AtomicU64::new(0),
            is_free: parking_lot::Mutex::new(false),
            until_freed: UnsafeCell::new(()),
            until_unused: self.0.cpus.iter().map(|_| UnsafeCell::new(())).collect(),
        }));
        let frame = frames.len() as u64 - 1;
        if purpose == FrameUse::Table {
            let entry = |&index| ((frame, index), Arc::new(AtomicU64::new(EMPTY)));
            self.0.entries.lock().extend(INDICES.iter().map(entry));
        }
        Ok(Frame(frame))
    }
    fn node_count(&self) -> usize {
        2
    }
    /// No page is on node 1 until it has been moved there.
    fn node_of(&self, _: Frame) -> usize {
        0
    }
    fn share(&self, page: Frame) {
        self.frame(page).users.fetch_add(1, AcqRel);
    }
    fn user_count(&self, page: Frame) -> u64 {
        self.frame(page).users.load(Acquire)
    }
    fn release(&self, page: Frame) {
        let state = self.frame(page);
        if state.users.fetch_sub(1, AcqRel) == 1 {
            state.free();
        }
    }
    fn free_table(&self, table: Frame) {
        self.frame(table).free();
    }
    fn load(&self, at: EntryAt) -> u64 {
        let order = if sites::is_broken(Promise::EntryAcquire) { Relaxed } else { Acquire };
        self.word(at).load(order)
    }
    fn swap(&self, at: EntryAt, value: u64) -> u64 {
        let order = if sites::is_broken(Promise::EntryRelease) { Acquire } else { AcqRel };
        let before = self.word(at).swap(value, order);
        if Sv39::as_table(value).is_some() {
            // The MMU walks ahead, by the new link.
            self.translate(&mut self.0.cpus[self.cpu()].tlb.lock(), PAGE);
        }
        before
    }
    fn compare_exchange(&self, at: EntryAt, current: u64, new: u64) -> Result<u64, u64> {
        self.word(at).compare_exchange(current, new, AcqRel, Acquire)
    }
    fn clear_page(&self, _: Frame) {}
    fn zero_in_place(&self, _: Frame) {}
    fn is_zero(&self, _: Frame) -> bool {
        true
    }
    fn copy_page(&self, from: Frame, _: Frame) {
        // No CPU may write to the page any more.
        self.assert_unused(from);
    }
    fn read_in(&self, _: FileId, _: u64, _: Frame) {
        unreachable!("no file is stored")
    }
    fn now_ns(&self) -> u64 {
        0
    }
    fn cpu(&self) -> usize {
        words::cpu()
    }
    fn add_sharer(&self, table: Frame, cpu: usize) {
        self.frame(table).sharers.fetch_or(1 << cpu, Relaxed);
        if !sites::is_broken(Promise::AddSharerFence) {
            fence(SeqCst);
        }
    }
    fn remove_sharer(&self, table: Frame, cpu: usize) {
        let is_broken = sites::is_broken(Promise::RemoveSharerRelease);
        let order = if is_broken { Relaxed } else { Release };
        self.frame(table).sharers.fetch_and(!(1 << cpu), order);
    }
    fn sharers(&self, table: Frame, each: &mut dyn FnMut(usize)) {
        let order = if sites::is_broken(Promise::SharersAcquire) { Relaxed } else { Acquire };
        let sharers = self.frame(table).sharers.load(order);
        (0..self.0.cpus.len()).filter(|cpu| sharers >> cpu & 1 != 0).for_each(each);
    }
    fn full_barrier(&self) {
        fence(SeqCst);
    }
    fn user_addresses(&self) -> core::ops::Range<u64> {
        PAGE_BYTES..1 << 38
    }
}
