//! Frames, and how many users each has.
//!
//! The first word of a free frame, which is the one that workloads use, is [`POISON`]. Who reads
//! that by a translation that outlived its page has read what nobody wrote; who writes there is
//! found out when the frame is next given to somebody.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use shootdown_vm::{Frame, LARGE_PAGE_BYTES, OutOfMemory, PAGE_BYTES};

use super::page;
use crate::kernel::sync::{Mutex, Once};

pub(super) static FRAMES: Once<Frames> = Once::new();

/// What is in the first word of a free frame: no word that a workload writes.
const POISON: u64 = 0xdead_beef_dead_beef;

/// All frames, from the first one on.
pub(crate) struct Frames {
    first: u64,
    user_counts: Box<[AtomicU32]>,
    free: Mutex<Free>,
    stale_writes: AtomicU64,
}

struct Free {
    /// Those that were used before: the last one to become free is the first to be used again.
    used: Vec<u32>,
    /// Those that never were.
    fresh: Range<u64>,
}

pub(super) fn set_up(numbers: Range<u64>) {
    let count = (numbers.end - numbers.start) as usize;
    let user_counts = (0..count).map(|_| AtomicU32::new(0)).collect();
    // It never grows: frames are given back where nothing is to be allocated.
    let used = Vec::with_capacity(count);
    FRAMES.set(Frames {
        first: numbers.start,
        user_counts,
        free: Mutex::new(Free { used, fresh: numbers }),
        stale_writes: AtomicU64::new(0),
    });
}

impl Frames {
    /// A frame with one user, and with whatever was in it.
    pub(crate) fn allocate(&self) -> Result<Frame, OutOfMemory> {
        let mut free = self.free.lock();
        let used = free.used.pop().map(|index| Frame(self.first + u64::from(index)));
        let frame = used.or_else(|| free.fresh.next().map(Frame)).ok_or(OutOfMemory)?;
        drop(free);
        if used.is_some() && page::word_at(frame, 0).load(Ordering::Relaxed) != POISON {
            self.stale_writes.fetch_add(1, Ordering::Relaxed);
        }
        self.users(frame).store(1, Ordering::Relaxed);
        Ok(frame)
    }

    /// The frames of a large page, of those that were never used.
    pub(crate) fn allocate_large(&self) -> Result<Frame, OutOfMemory> {
        const COUNT: u64 = LARGE_PAGE_BYTES / PAGE_BYTES;
        let mut free = self.free.lock();
        let start = free.fresh.start.next_multiple_of(COUNT);
        if start + COUNT > free.fresh.end {
            return Err(OutOfMemory);
        }
        for number in free.fresh.start..start {
            self.give_back(&mut free, Frame(number));
        }
        free.fresh.start = start + COUNT;
        drop(free);
        for number in start..start + COUNT {
            self.users(Frame(number)).store(1, Ordering::Relaxed);
        }
        Ok(Frame(start))
    }

    /// Counts one more user.
    pub(crate) fn share(&self, frame: Frame) {
        self.users(frame).fetch_add(1, Ordering::Relaxed);
    }

    /// How many users it has.
    pub(crate) fn user_count(&self, frame: Frame) -> u64 {
        u64::from(self.users(frame).load(Ordering::Acquire))
    }

    /// Counts one user less; without any, it is free.
    pub(crate) fn release(&self, frame: Frame) {
        let before = self.users(frame).fetch_sub(1, Ordering::AcqRel);
        assert!(before != 0, "{frame:?} is free: the memory manager is broken");
        if before == 1 {
            self.give_back(&mut self.free.lock(), frame);
        }
    }

    /// How many are in use.
    pub(crate) fn in_use(&self) -> u64 {
        let free = self.free.lock();
        free.fresh.start - self.first - free.used.len() as u64
    }

    /// How often somebody wrote to a frame that was free.
    pub(crate) fn stale_writes(&self) -> u64 {
        self.stale_writes.load(Ordering::Relaxed)
    }

    fn give_back(&self, free: &mut Free, frame: Frame) {
        page::word_at(frame, 0).store(POISON, Ordering::Relaxed);
        free.used.push((frame.0 - self.first) as u32);
    }

    fn users(&self, frame: Frame) -> &AtomicU32 {
        &self.user_counts[(frame.0 - self.first) as usize]
    }
}
