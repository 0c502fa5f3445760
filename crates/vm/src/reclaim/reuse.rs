//! Pages of files that reclaim has unmapped, and flushes when it needs their frames.
//!
//! No CPU could write the page. It stays in the page cache, so a fault finds it there and maps it
//! again: a CPU with the old translation then reads the same frame. The page keeps the counts of
//! its cleared entries, so it cannot be freed, moved or replaced before its flush, also if it is
//! unmapped a second time. So the flush can wait until the CPUs have caught up by themselves, or
//! until one interrupt makes a CPU catch up with all pages that wait. (Linux: LUF.)

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::{Reclaimed, Reclaiming};
use crate::area::Protection;
use crate::coherence::{Batching, CleanPages, Defer};
use crate::format::Format;
use crate::platform::{Frame, Platform};
use crate::reclaim::rmap::{Age, Owner, Rmap};
use crate::system::{Batch, Deferred, System};
use crate::vm::Vm;

/// The part of the pages on reclaim's lists that may wait: one in eight. Waiting pages occupy
/// memory that reclaim was asked for.
const WAITING_PART: usize = 8;
/// Largest number of pages that may wait: 8 MiB. One interrupt of a CPU then stands for 64 batches.
const WAITING_MAX: usize = 2048;

/// Number of pages that may wait while `listed` pages are on reclaim's lists.
const fn waiting_max(listed: usize) -> usize {
    let part = listed / WAITING_PART;
    if part < WAITING_MAX { part } else { WAITING_MAX }
}

/// Pages that were unmapped together, and their flush.
struct Unmapped<S: System> {
    flush: Deferred<S>,
    pages: Vec<Reclaiming<S>>,
}

/// All pages that wait for their flush, the oldest first.
pub(super) struct Waiting<S: System> {
    unmapped: VecDeque<Unmapped<S>>,
    page_count: usize,
}

impl<S: System> Default for Waiting<S> {
    fn default() -> Self {
        Self { unmapped: VecDeque::new(), page_count: 0 }
    }
}

impl<S: System> Waiting<S> {
    fn push(&mut self, unmapped: Unmapped<S>) {
        self.page_count += unmapped.pages.len();
        self.unmapped.push_back(unmapped);
    }

    /// Takes the oldest pages, if more than `page_count_max` wait.
    fn pop_beyond(&mut self, page_count_max: usize) -> Option<Unmapped<S>> {
        if self.page_count <= page_count_max {
            return None;
        }
        let oldest = self.unmapped.pop_front()?;
        self.page_count -= oldest.pages.len();
        Some(oldest)
    }
}

impl<S: System> Vm<S> {
    /// Returns the time at which a page is flushed that reclaim is about to unmap.
    pub(super) fn clean_pages(&self, rmap: &Rmap<S>, page: Frame) -> CleanPages {
        if self.policy.clean_pages == CleanPages::AsOthers {
            return CleanPages::AsOthers;
        }
        let is_clean = rmap.with(page, |record| {
            matches!(record.owner, Owner::File(..))
                && !record.mappings.is_empty()
                && record.mappings.iter().all(|mapping| {
                    let entry = self.entry_of(page, mapping).map(|(_, entry)| entry);
                    let leaf = entry.and_then(S::Format::as_leaf);
                    let may_write =
                        |leaf: crate::format::Leaf| leaf.protection.contains(Protection::WRITE);
                    leaf.is_some_and(|leaf| !may_write(leaf))
                })
        });
        if is_clean == Some(true) { CleanPages::AtReuse } else { CleanPages::AsOthers }
    }

    /// Lets unmapped pages wait for the flush of their batch. Flushes and frees the oldest ones, if
    /// too many wait.
    pub(super) fn defer(
        &self,
        rmap: &Rmap<S>,
        batch: Batch<S>,
        pages: Vec<Reclaiming<S>>,
        reclaimed: &mut Reclaimed,
        keep: &mut impl FnMut(Frame, Age),
    ) {
        // A page that was writable after all was flushed, and is not marked as dirty yet: a call
        // that writes files out would miss it.
        let was_written = pages.iter().any(|page| page.was_written);
        let flush = if was_written {
            self.coherence.flush_batch(batch);
            None
        } else {
            self.coherence.defer_batch(batch)
        };
        let Some(flush) = flush else {
            for page in pages {
                self.finish(rmap, page, reclaimed, keep);
            }
            return;
        };
        let listed: usize = (0..rmap.node_count()).map(|node| rmap.listed(node)).sum();
        rmap.waiting().lock().push(Unmapped { flush, pages });
        self.reuse_beyond(rmap, waiting_max(listed), reclaimed, keep);
    }

    /// Flushes and frees all pages that wait.
    pub(super) fn reuse_all(&self, rmap: &Rmap<S>) -> Reclaimed {
        let (mut reclaimed, mut kept) = (Reclaimed::default(), Vec::new());
        self.reuse_beyond(rmap, 0, &mut reclaimed, &mut |page, age| kept.push((page, age)));
        for (page, age) in kept {
            rmap.put_back(self.platform.node_of(page), [(page, age)]);
        }
        reclaimed
    }

    /// Flushes and frees the oldest pages, until no more than `page_count_max` wait.
    fn reuse_beyond(
        &self,
        rmap: &Rmap<S>,
        page_count_max: usize,
        reclaimed: &mut Reclaimed,
        keep: &mut impl FnMut(Frame, Age),
    ) {
        loop {
            // The lock is not held during the flush, which waits for other CPUs.
            let oldest = rmap.waiting().lock().pop_beyond(page_count_max);
            let Some(Unmapped { flush, pages }) = oldest else { return };
            self.coherence.complete(flush);
            for page in pages {
                self.finish(rmap, page, reclaimed, keep);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_pages_are_a_part_and_bounded() {
        let pages = [7, 8, 15, 16_383, 16_384, 16_392, 1 << 30];
        assert_eq!(pages.map(waiting_max), [0, 1, 1, 2047, 2048, 2048, 2048]);
    }
}
