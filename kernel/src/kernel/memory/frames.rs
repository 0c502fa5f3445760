//! Physical frames, and the number of users of each.
//!
//! The first word of a free frame is [`POISON`]. It is the word that workloads use. A read through
//! a stale translation of a freed page finds a word that no process wrote. A write through a stale
//! translation is detected when the frame is allocated again.
//!
//! Memory has two halves, *nodes*, so that pages can move from one to the other as between the
//! sockets of a large machine. On these emulated machines, both are equally near to all CPUs.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use shootdown_vm::{Frame, LARGE_PAGE_BYTES, OutOfMemory, PAGE_BYTES};

use super::page;
use crate::kernel::load::Replicas;
use crate::kernel::sync::{Mutex, Once};

pub(super) static FRAMES: Once<Frames> = Once::new();

/// The first word of a free frame. Workloads never write it.
const POISON: u64 = 0xdead_beef_dead_beef;

/// Number of nodes.
pub(crate) const NODES: usize = 2;

/// All frames.
pub(crate) struct Frames {
    first: u64,
    /// Number of frames of each node but the last, which may have one less.
    count_of_node: u64,
    user_counts: Box<[AtomicU32]>,
    /// For each frame with a page table of the last level, a bit for each CPU whose replica links
    /// to the table. Empty if there are no replicas.
    sharers: Box<[AtomicU64]>,
    free: [Mutex<FreeFrames>; NODES],
    stale_writes: AtomicU64,
}

/// The free frames of a node.
struct FreeFrames {
    /// Indices of frames that have been used. The frame that was freed last is allocated first.
    used: Vec<u32>,
    /// Numbers of the frames that have never been used.
    fresh: Range<u64>,
}

pub(super) fn set_up(numbers: Range<u64>, replicas: Replicas) {
    let Range { start: first, end } = numbers;
    let shared = if replicas == Replicas::Never { 0 } else { end - first };
    let sharers = (0..shared).map(|_| AtomicU64::new(0)).collect();
    let user_counts = numbers.map(|_| AtomicU32::new(0)).collect();
    let count_of_node = (end - first).div_ceil(NODES as u64);
    let free = core::array::from_fn(|node| {
        let start = end.min(first + node as u64 * count_of_node);
        let fresh = start..end.min(start + count_of_node);
        // The list never grows: frames are freed where nothing may be allocated.
        let used = Vec::with_capacity((fresh.end - fresh.start) as usize);
        Mutex::new(FreeFrames { used, fresh })
    });
    let stale_writes = AtomicU64::new(0);
    FRAMES.set(Frames { first, count_of_node, user_counts, sharers, free, stale_writes });
}

impl Frames {
    /// Allocates a frame with one user and undefined contents, on the first node that has one.
    pub(crate) fn allocate(&self) -> Result<Frame, OutOfMemory> {
        (0..NODES).find_map(|node| self.allocate_on(node).ok()).ok_or(OutOfMemory)
    }

    /// Allocates a frame of one node with one user and undefined contents.
    pub(crate) fn allocate_on(&self, node: usize) -> Result<Frame, OutOfMemory> {
        let mut free = self.free.get(node).ok_or(OutOfMemory)?.lock();
        let used = free.used.pop().map(|index| Frame(self.first + u64::from(index)));
        let frame = used.or_else(|| free.fresh.next().map(Frame)).ok_or(OutOfMemory)?;
        drop(free);
        if used.is_some() && page::word_at(frame, 0).load(Ordering::Relaxed) != POISON {
            self.stale_writes.fetch_add(1, Ordering::Relaxed);
        }
        self.users(frame).store(1, Ordering::Relaxed);
        Ok(frame)
    }

    /// Allocates the frames of a large page, from those that have never been used.
    pub(crate) fn allocate_large(&self) -> Result<Frame, OutOfMemory> {
        const COUNT: u64 = LARGE_PAGE_BYTES / PAGE_BYTES;
        let start = self.free.iter().find_map(|free| {
            let mut free = free.lock();
            let start = free.fresh.start.next_multiple_of(COUNT);
            if start + COUNT > free.fresh.end {
                return None;
            }
            for number in free.fresh.start..start {
                self.free(&mut free, Frame(number));
            }
            free.fresh.start = start + COUNT;
            Some(start)
        });
        let start = start.ok_or(OutOfMemory)?;
        for number in start..start + COUNT {
            self.users(Frame(number)).store(1, Ordering::Relaxed);
        }
        Ok(Frame(start))
    }

    /// The node of a frame.
    pub(crate) fn node_of(&self, frame: Frame) -> usize {
        ((frame.0 - self.first) / self.count_of_node) as usize
    }

    /// Adds a user.
    pub(crate) fn share(&self, frame: Frame) {
        self.users(frame).fetch_add(1, Ordering::Relaxed);
    }

    /// Number of users of a frame.
    pub(crate) fn user_count(&self, frame: Frame) -> u64 {
        u64::from(self.users(frame).load(Ordering::Acquire))
    }

    /// Removes a user, and frees the frame if it was the last.
    pub(crate) fn release(&self, frame: Frame) {
        let before = self.users(frame).fetch_sub(1, Ordering::AcqRel);
        assert!(before != 0, "{frame:?} is free: the memory manager is broken");
        if before == 1 {
            self.free(&mut self.free[self.node_of(frame)].lock(), frame);
        }
    }

    /// The sharers of a page table, a bit for each CPU; `None` if there are no replicas.
    pub(crate) fn sharers(&self, table: Frame) -> Option<&AtomicU64> {
        self.sharers.get((table.0 - self.first) as usize)
    }

    /// Number of frames that are in use.
    pub(crate) fn in_use(&self) -> u64 {
        let all = self.user_counts.len() as u64;
        let free = self.free.iter().map(|free| {
            let free = free.lock();
            free.fresh.end - free.fresh.start + free.used.len() as u64
        });
        all - free.sum::<u64>()
    }

    /// Number of free frames to which a thread has written.
    pub(crate) fn stale_writes(&self) -> u64 {
        self.stale_writes.load(Ordering::Relaxed)
    }

    fn free(&self, free: &mut FreeFrames, frame: Frame) {
        page::word_at(frame, 0).store(POISON, Ordering::Relaxed);
        free.used.push((frame.0 - self.first) as u32);
    }

    fn users(&self, frame: Frame) -> &AtomicU32 {
        &self.user_counts[(frame.0 - self.first) as usize]
    }
}
