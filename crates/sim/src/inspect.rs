//! Inspection of memory from outside the machine: on no CPU, through no TLB, and in no time.

use core::ops::Range;

use crate::lines::LineId;
use crate::memory::FrameNumber;
use crate::mmu::{
    ENTRIES_PER_TABLE, LARGE, LEVEL_BITS, PAGE_SHIFT, PRESENT, TOP_SHIFT, entry_frame, page_frame,
};
use crate::sim::{Sim, with_running};

/// Returns `true` if a cache of the simulation that runs on this thread of the host has a line of
/// this memory of the host. Memory that is freed must not be cached any more: see
/// [`SimWord`](crate::SimWord). `false` while the simulation itself uses its caches.
///
/// Allocates no memory, so that an allocator of a test can call it.
#[must_use]
pub fn is_cached(memory: Range<usize>) -> bool {
    let is_cached = |sim: &Sim| {
        let lines = sim.lines.try_borrow().ok()?;
        Some(LineId::all_of_host(memory).any(|line| lines.contains(line)))
    };
    with_running(is_cached).flatten().unwrap_or(false)
}

impl Sim {
    /// The pages that are mapped by the page tables below `root`, as pairs of address and frame in
    /// the order of addresses. A large page is a pair for each small page in it. For an entry that
    /// is not present, `absent` returns the frame to list, if any.
    #[must_use]
    pub fn pages_below(
        &self,
        root: FrameNumber,
        absent: impl Fn(u64) -> Option<FrameNumber>,
    ) -> Vec<(u64, FrameNumber)> {
        let mut pages = Vec::new();
        self.visit(root, TOP_SHIFT, 0, &mut |address, shift, entry| {
            if entry & PRESENT == 0 {
                pages.extend(absent(entry).map(|frame| (address, frame)));
                return;
            }
            let (frame, count) = (page_frame(entry, shift), 1 << (shift - PAGE_SHIFT));
            pages.extend((0..count).map(|page| (address + (page << PAGE_SHIFT), frame + page)));
        });
        pages
    }

    /// Visits the last-level entries that are not 0.
    fn visit(
        &self,
        table: FrameNumber,
        shift: u8,
        base: u64,
        found: &mut impl FnMut(u64, u8, u64),
    ) {
        for index in 0..ENTRIES_PER_TABLE {
            let entry = self.memory.borrow().entry(table, index);
            let address = base | (index as u64) << shift;
            if entry & PRESENT != 0 && shift != PAGE_SHIFT && entry & LARGE == 0 {
                self.visit(entry_frame(entry), shift - LEVEL_BITS, address, found);
            } else if entry != 0 && (shift == PAGE_SHIFT || entry & PRESENT != 0) {
                found(address, shift, entry);
            }
        }
    }
}
