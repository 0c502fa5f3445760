//! Physical memory: the kernel's heap, and frames for page tables and pages.

mod frames;
mod heap;
pub(crate) mod page;

use core::ops::Range;

use shootdown_vm::PAGE_BYTES;

use crate::kernel::load::Replicas;

pub(crate) use frames::{Frames, NODES};

/// The heap is a quarter of memory, up to a maximum. Most of it is for the stacks of threads.
const HEAP_PART: u64 = 4;
const HEAP_BYTES_MAX: u64 = 512 << 20;

/// Divides unused physical memory into heap and frames, at most `frames_max` of these. Call this
/// once, on the first CPU, before any allocation. Frames have room for sharers unless `replicas` is
/// [`Replicas::Never`].
pub(crate) fn set_up(memory: &Range<u64>, frames_max: u64, replicas: Replicas) {
    let start = memory.start.next_multiple_of(PAGE_BYTES);
    let bytes = memory.end.saturating_sub(start);
    let heap_end = start + (bytes / HEAP_PART).min(HEAP_BYTES_MAX) / PAGE_BYTES * PAGE_BYTES;
    heap::set_up(start..heap_end);
    let first = heap_end / PAGE_BYTES;
    let end = first.saturating_add(frames_max).min(memory.end / PAGE_BYTES);
    frames::set_up(first..end, replicas);
}

/// All frames.
pub(crate) fn frames() -> &'static Frames {
    frames::FRAMES.get()
}
