//! loom programs for the order in which a CPU links a table into its [replica](crate::replicas),
//! cuts the link, and a flush reads the table's sharers: in every interleaving, with every value
//! that a load may return.
//!
//! CPU 1 runs [`Replica::link`] and [`Replica::cut`], and its MMU walks the table as soon as the
//! link is written. CPU 0 clears the entry, reads the sharers by [`Sharers::add_of`], waits for CPU
//! 1 if CPU 1 is one of them, and reuses the page. The page is a cell whose uses must be ordered
//! before its reuse. Each [fault](Fault) breaks one ordering at its site, and must fail. If `link`
//! wrote the link before it records the sharer, or `cut` removed the sharer before it drops what is
//! cached, the intact program would fail.
//!
//! loom cannot see the following:
//!
//! - a walk that passes an earlier store or a later fence. The walk here is a load of CPU 1 itself,
//!   as C++ orders it; that the barrier of [`Platform::add_sharer`] orders walks also is a promise
//!   of the kernel (`crates/check/src/zoo/sharers.rs` has walks at any time);
//! - links that another CPU removes, and replicas that are given up. The replica is used by one
//!   thread, so its locks are not loom's, and loom does not explore them;
//! - the operations above. Whether each of them reads the sharers *after* it has cleared the entry
//!   is decided in `gather`, `reclaim` and `migrate`; the flush here is written by hand.

use alloc::collections::BTreeMap;
use core::convert::Infallible;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, fence};
use loom::thread;
use shootdown::{Horizon, Root};

use crate::coherence::{
    Batching, Change, Defer, Flush, Lifetimes, Policy, Retired, Scheduling, UnmapLock,
};
use crate::format::riscv::Sv39;
use crate::format::{EMPTY, Format};
use crate::platform::{EntryAt, Frame, FrameUse, OutOfMemory, Platform};
use crate::replicas::Replica;
use crate::sharers::Sharers;

/// An ordering that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Nothing,
    /// The CPU is recorded as a sharer after the link is written.
    RecordAfterLink,
    /// `add_sharer` has no barrier.
    LinkFence,
    /// The flush reads the sharers before it clears the entry.
    ReadBeforeClear,
    /// `sharers` has no barrier.
    FlushFence,
    /// `sharers` loads without acquire ordering.
    SharersAcquire,
    /// `remove_sharer` has no release ordering.
    RemoveRelease,
    /// The CPU stays in its replica's translations when it is no sharer any more.
    DropBeforeRemove,
}

/// The root of the replica of CPU 1.
const ROOT: Frame = Frame(1);
/// The table of the last level, which the program's only page is mapped in.
const TABLE: Frame = Frame(2);
const ENTRY: EntryAt = EntryAt { table: TABLE, index: 0 };
/// The first frame that is free.
const FREE: u64 = 3;
const CPU: usize = 1;

struct Machine {
    fault: Fault,
    /// The entry of the page, in the shared table.
    entry: AtomicU64,
    sharers: AtomicU64,
    /// Set when CPU 1 has answered the interrupt.
    answered: AtomicU64,
    page: UnsafeCell<()>,
    /// The tables and the TLB of CPU 1, which no other CPU uses.
    own: Mutex<Own>,
}

#[derive(Default)]
struct Own {
    entries: BTreeMap<(u64, usize), u64>,
    tables: u64,
    is_cached: bool,
    is_record_late: bool,
}

// SAFETY: loom checks each access to the cell, and an unordered access fails the test.
#[expect(unsafe_code, reason = "loom's cells are checked by loom")]
unsafe impl Sync for Machine {}
// SAFETY: as above; nothing else in it belongs to a thread.
#[expect(unsafe_code, reason = "loom's cells are checked by loom")]
unsafe impl Send for Machine {}

#[derive(Clone)]
struct Handle(Arc<Machine>);

impl Handle {
    fn new(fault: Fault) -> Self {
        Self(Arc::new(Machine {
            fault,
            entry: AtomicU64::new(1),
            sharers: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            page: UnsafeCell::new(()),
            own: Mutex::default(),
        }))
    }

    fn has(&self, fault: Fault) -> bool {
        self.0.fault == fault
    }

    fn own<R>(&self, f: impl FnOnce(&mut Own) -> R) -> R {
        f(&mut self.0.own.lock().unwrap())
    }

    fn record(&self) {
        self.0.sharers.fetch_or(1 << CPU, Relaxed);
        if !self.has(Fault::LinkFence) {
            fence(SeqCst);
        }
    }

    /// Walks to the page from CPU 1.
    fn walk(&self) {
        let is_mapped = self.0.entry.load(Acquire) != EMPTY;
        self.own(|own| own.is_cached = is_mapped);
    }

    /// Uses the page on CPU 1, if its TLB has a translation.
    fn use_page(&self) {
        if self.own(|own| own.is_cached) {
            self.0.page.with(|_| ());
        }
    }

    /// Unmaps the page on CPU 0, flushes, and reuses it.
    fn unmap(&self) {
        let mut sharers = Sharers::default();
        if self.has(Fault::ReadBeforeClear) {
            sharers.add_of(self, TABLE);
        }
        self.swap(ENTRY, EMPTY);
        if !self.has(Fault::ReadBeforeClear) {
            sharers.add_of(self, TABLE);
        }
        if sharers.count_without(0) != 0 {
            while self.0.answered.load(Acquire) == 0 {
                thread::yield_now();
            }
        }
        self.0.page.with_mut(|_| ());
    }

    /// Links the table on CPU 1, uses the page, and cuts the link.
    fn link_and_cut(&self) {
        let replica = Replica::<System>::new(CPU, ROOT, ());
        let new_table = || self.allocate(FrameUse::Table);
        assert_eq!(replica.link(self, 0, TABLE, new_table), Ok(true));
        self.use_page();
        replica.cut(&Drops(self.clone()), self);
        self.use_page();
        self.0.answered.store(1, Release);
    }
}

impl Platform for Handle {
    type SleepingLock = parking_lot::RawRwLock;
    type IndexLock = parking_lot::RawRwLock;
    type SpinLock = parking_lot::RawMutex;

    fn allocate(&self, _: FrameUse) -> Result<Frame, OutOfMemory> {
        self.own(|own| own.tables += 1);
        Ok(Frame(FREE + self.own(|own| own.tables)))
    }
    fn load(&self, at: EntryAt) -> u64 {
        self.own(|own| own.entries.get(&(at.table.0, at.index)).copied().unwrap_or(EMPTY))
    }
    fn swap(&self, at: EntryAt, value: u64) -> u64 {
        if at == ENTRY {
            return self.0.entry.swap(value, AcqRel);
        }
        let before = self.own(|own| own.entries.insert((at.table.0, at.index), value));
        if value == Sv39::table(TABLE) {
            self.walk();
            if self.own(|own| core::mem::take(&mut own.is_record_late)) {
                self.record();
            }
        }
        before.unwrap_or(EMPTY)
    }
    fn compare_exchange(&self, at: EntryAt, current: u64, new: u64) -> Result<u64, u64> {
        assert_eq!(self.load(at), current, "no other CPU changes a replica");
        Ok(self.swap(at, new))
    }
    fn add_sharer(&self, table: Frame, cpu: usize) {
        assert_eq!((table, cpu), (TABLE, CPU));
        if self.has(Fault::RecordAfterLink) {
            self.own(|own| own.is_record_late = true);
        } else {
            self.record();
        }
    }
    fn remove_sharer(&self, _: Frame, cpu: usize) {
        let order = if self.has(Fault::RemoveRelease) { Relaxed } else { Release };
        self.0.sharers.fetch_and(!(1 << cpu), order);
    }
    fn sharers(&self, _: Frame, each: &mut dyn FnMut(usize)) {
        if !self.has(Fault::FlushFence) {
            fence(SeqCst);
        }
        let order = if self.has(Fault::SharersAcquire) { Relaxed } else { Acquire };
        if self.0.sharers.load(order) >> CPU & 1 != 0 {
            each(CPU);
        }
    }

    // The programs do without the others.
    fn share(&self, _: Frame) {
        unreachable!()
    }
    fn user_count(&self, _: Frame) -> u64 {
        unreachable!()
    }
    fn release(&self, _: Frame) {
        unreachable!()
    }
    fn free_table(&self, _: Frame) {
        unreachable!()
    }
    fn clear_page(&self, _: Frame) {
        unreachable!()
    }
    fn zero_in_place(&self, _: Frame) {
        unreachable!()
    }
    fn is_zero(&self, _: Frame) -> bool {
        unreachable!()
    }
    fn copy_page(&self, _: Frame, _: Frame) {
        unreachable!()
    }
    fn now_ns(&self) -> u64 {
        0
    }
}

type System = (Handle, Drops, Sv39);

/// Drops the TLB of CPU 1.
struct Drops(Handle);

impl Flush for Drops {
    type Space = ();
    type Pending = ();
    fn policy(&self) -> Policy {
        Policy::new(UnmapLock::Exclusive)
    }
    fn space(&self, _: Root) {}
    fn flush(&self, (): &(), _: &Change) {}
    fn wait(&self, (): ()) -> Horizon {
        Horizon::CLEAR
    }
    fn drop_replica(&self, (): &()) {
        // The last use by a translation that is dropped now.
        self.0.use_page();
        if !self.0.has(Fault::DropBeforeRemove) {
            self.0.own(|own| own.is_cached = false);
        }
    }
}

impl Defer for Drops {
    type Deferred = Infallible;
}

impl Batching for Drops {
    type Batch = ();
}

impl Lifetimes for Drops {
    fn retire(&self, (): &()) -> Retired {
        Retired::Free
    }
}

impl Scheduling for Drops {
    #[expect(unsafe_code, reason = "the trait's `switch` is unsafe")]
    unsafe fn switch(&self, (): &()) {}
    fn enter_lazy(&self) {}
    fn leave_space(&self) {}
    fn interrupt(&self) {}
}

/// Returns `true` if no interleaving fails.
fn passes(fault: Fault) -> bool {
    let program = move || {
        let machine = Handle::new(fault);
        let cpu = machine.clone();
        let linking = thread::spawn(move || cpu.link_and_cut());
        machine.unmap();
        linking.join().unwrap();
    };
    catch_unwind(AssertUnwindSafe(|| loom::model(program))).is_ok()
}

#[test]
fn flush_finds_sharer_or_walk_finds_cleared_entry() {
    assert!(passes(Fault::Nothing));
}

#[test]
fn each_broken_ordering_of_a_link_fails() {
    let faults = [
        Fault::RecordAfterLink,
        Fault::LinkFence,
        Fault::ReadBeforeClear,
        Fault::FlushFence,
        Fault::SharersAcquire,
        Fault::RemoveRelease,
        Fault::DropBeforeRemove,
    ];
    for fault in faults {
        assert!(!passes(fault), "{fault:?} is not detected");
    }
}
