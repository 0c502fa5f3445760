//! Flushes in flight, deferred ranges and isolated pages, each found ended by another CPU.

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use loom::sync::Arc;
use loom::thread;

use super::machine::Host;
use super::system::System;
use super::words::{AtomicU64, run_on, set_cpus};
use crate::coherence::{Policy, UnmapLock};
use crate::deferred::in_flight::{FlushInFlight, InFlight, SLOTS};
use crate::deferred::ranges::DeferredRanges;
use crate::platform::{Frame, FrameUse, Platform};
use crate::reclaim::rmap::Rmap;

const RANGE: Range<u64> = 0x5000..0x6000;
const BELOW: Range<u64> = 0x2000..0x3000;
const ABOVE: Range<u64> = 0x8000..0x9000;

/// A list, and the page whose old translation the flush in flight removes.
struct List {
    in_flight: InFlight,
    deferred: DeferredRanges<System>,
    host: Host,
    page: Frame,
}

impl List {
    fn new() -> Arc<Self> {
        let host = Host::new(2, Policy::new(UnmapLock::Released));
        let page = host.allocate(FrameUse::Page).unwrap();
        let deferred = DeferredRanges::new();
        // Use the lock.
        deferred.insert(&RANGE);
        deferred.remove(&RANGE);
        Arc::new(Self { in_flight: InFlight::new(), deferred, host, page })
    }

    /// The last use by the old translation, and the end of the flush.
    fn end(&self, flush: FlushInFlight) {
        self.host.use_frame(self.page);
        self.in_flight.end(flush);
    }

    /// Looks for the flush, and relies on its end if there is none.
    fn search(&self) {
        let outstanding = self.in_flight.overlapping(&RANGE, None);
        if outstanding.or_else(|| self.deferred.overlapping(&RANGE)).is_none() {
            self.host.assert_unused(self.page);
        }
    }
}

/// Runs on CPU 1.
fn spawn(one: impl FnOnce() + 'static) -> thread::JoinHandle<()> {
    thread::spawn(|| {
        run_on(1);
        one();
    })
}

/// Runs `one` on another CPU while this CPU searches the list.
fn race(list: &Arc<List>, one: impl FnOnce(&List) + 'static) {
    let other = Arc::clone(list);
    let running = spawn(move || one(&other));
    list.search();
    running.join().unwrap();
}

pub(super) fn end_while_searching() {
    let list = List::new();
    let flush = list.in_flight.begin(&RANGE);
    race(&list, |list| list.end(flush));
}

/// The search finds the bit of the first flush, and the range of the second.
fn reuse_slot(next: &'static Range<u64>) {
    let list = List::new();
    let flush = list.in_flight.begin(&RANGE);
    race(&list, move |list| {
        list.end(flush);
        let next = list.in_flight.begin(next);
        assert_eq!(list.in_flight.overlapping(&(0..1), Some(&next)), None);
    });
}

pub(super) fn reuse_slot_for_lower_range() {
    reuse_slot(&BELOW);
}

pub(super) fn reuse_slot_for_higher_range() {
    reuse_slot(&ABOVE);
}

/// Another CPU begins a flush, which may get the slot of the one that ends.
pub(super) fn reuse_slot_on_another_cpu() {
    let list = List::new();
    let flush = list.in_flight.begin(&RANGE);
    let other = Arc::clone(&list);
    let running = spawn(move || list.end(flush));
    let next = other.in_flight.begin(&ABOVE);
    running.join().unwrap();
    assert_eq!(other.in_flight.overlapping(&ABOVE, None), Some(ABOVE.end));
    other.in_flight.end(next);
}

/// A list whose block is full.
fn full() -> Arc<List> {
    let list = List::new();
    (0..SLOTS).for_each(|_| _ = list.in_flight.begin(&ABOVE));
    list
}

pub(super) fn end_in_another_block() {
    let list = full();
    let flush = list.in_flight.begin(&RANGE);
    race(&list, |list| list.end(flush));
}

/// Another CPU begins a flush below, in a block that it makes.
fn make_block_while(zero: fn(&InFlight)) {
    let list = full();
    let other = Arc::clone(&list);
    let running = spawn(move || _ = other.in_flight.begin(&BELOW));
    zero(&list.in_flight);
    running.join().unwrap();
    assert_eq!(list.in_flight.overlapping(&BELOW, None), Some(BELOW.end));
}

pub(super) fn make_block_while_searching() {
    make_block_while(|in_flight| _ = in_flight.overlapping(&BELOW, None));
}

/// Two CPUs make the next block, and both flushes are in the block that stays.
pub(super) fn make_block_on_two_cpus() {
    make_block_while(|in_flight| {
        let flush = in_flight.begin(&RANGE);
        assert_eq!(in_flight.overlapping(&RANGE, None), Some(RANGE.end));
        in_flight.end(flush);
    });
}

/// The flush is deferred, and complete later.
pub(super) fn complete_deferred_flush() {
    let list = List::new();
    let flush = list.in_flight.begin(&RANGE);
    race(&list, |list| {
        list.deferred.insert(&RANGE);
        list.in_flight.end(flush);
        list.host.use_frame(list.page);
        list.deferred.remove(&RANGE);
    });
}

/// A CPU frees a page, which an allocation finds if it finds none isolated.
pub(super) fn allocate_while_isolated() {
    struct Memory(Rmap<System>, AtomicU64);
    set_cpus(2);
    let memory = Arc::new(Memory(Rmap::new(1), AtomicU64::new(0)));
    memory.0.add_isolated(1);
    let other = Arc::clone(&memory);
    let reclaim = spawn(move || {
        other.1.store(1, Relaxed);
        other.0.remove_isolated(1);
    });
    if !memory.0.has_isolated() {
        assert_eq!(memory.1.load(Relaxed), 1, "no page is isolated, and none is free");
    }
    reclaim.join().unwrap();
}
