//! Prediction at the first read of an anonymous page: will a write follow?
//!
//! If the read maps the shared page of zeros, a write that follows must replace it, and flush on
//! every CPU that runs the space, although hardly any of them has read the page. Nearly all
//! interrupts of a recorded compressor have this cause, and many of those of Go and Java programs:
//! they read a page, and write to it microseconds later. If the first read maps a separate page,
//! the write causes no flush. The cost is one page of memory if no write follows.
//!
//! So the space predicts. A write to a page that had been read first makes the space predict a
//! write for the next [`PREDICTIONS`] first reads. The first read after those maps the shared page
//! again, and a write to it starts the next series.
//!
//! A prediction is wrong if no write follows: it has cost a page. Predicted pages are therefore not
//! marked as dirty in advance, and at the end of a series the space looks which of its pages were
//! written. When as many were not written as the policy allows
//! ([`predicted_in_vain_max`](crate::Policy::predicted_in_vain_max)), the space predicts no more.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::area::{Access, Area, Protection};
use crate::coherence::ZeroPage;
use crate::format::Marks;
use crate::platform::Platform;
use crate::space::{AddressSpace, count};
use crate::system::System;

/// Number of predictions after a write that was not predicted: they risk 64 KiB, and save 16 of 17
/// interrupts.
const PREDICTIONS: u64 = 16;

/// The state of a space's predictions. All words are hints: no other access depends on their
/// values.
#[derive(Debug, Default)]
pub(crate) struct ZeroPagePredictor {
    /// Number of first reads for which a write is still predicted.
    left: AtomicU64,
    /// Addresses of the pages of the current series; 0 for none.
    series: [AtomicU64; PREDICTIONS as usize],
    /// Number of pages that were not written by the end of their series.
    in_vain: AtomicU64,
}

impl ZeroPagePredictor {
    /// Returns the access to prepare for at the first access to a page of an area: a write if it is
    /// predicted to follow a read, and `access` otherwise.
    pub(crate) fn expected<P: Platform>(
        &self,
        policy: ZeroPage,
        area: &Area<P>,
        access: Access,
    ) -> Access {
        let is_predicted = policy != ZeroPage::Shared
            && access == Access::Read
            && area.is_private_anonymous()
            && area.protection.contains(Protection::WRITE)
            && (policy == ZeroPage::Separate || self.left.load(Relaxed) != 0);
        if is_predicted { Access::Write } else { access }
    }

    /// Records that the first read of a page was treated as a write.
    pub(crate) fn record_prediction(&self, page: u64) {
        // Two concurrent faults may use the same prediction, which costs one more page.
        let left = self.left.load(Relaxed).saturating_sub(1);
        self.series[(left % PREDICTIONS) as usize].store(page, Relaxed);
        self.left.store(left, Relaxed);
    }

    /// Ends a series, and begins the next one unless that could exceed `in_vain_max`. Returns the
    /// number of pages of the series for which `is_written` returns `false`.
    fn begin_series(&self, in_vain_max: u64, is_written: impl Fn(u64) -> bool) -> u64 {
        let pages = self.series.iter().map(|page| page.swap(0, Relaxed)).filter(|&page| page != 0);
        let in_vain = pages.filter(|&page| !is_written(page)).count() as u64;
        let before = self.in_vain.fetch_add(in_vain, Relaxed);
        let may_predict = before + in_vain + PREDICTIONS <= in_vain_max;
        self.left.store(if may_predict { PREDICTIONS } else { 0 }, Relaxed);
        in_vain
    }
}

impl<S: System> AddressSpace<S> {
    /// Records a write to a page of `area`, which is locked, that had been read first.
    pub(crate) fn record_write_after_read(&self, area: &Area<S::Platform>) {
        count(&self.counters.written_after_read, 1);
        if self.vm.policy.zero_page != ZeroPage::Predicted {
            return;
        }
        // The tables of other areas may be freed at any time, so a page there counts as not
        // written.
        let is_written = |page| {
            let leaf = || self.mappings.tables.leaf(&self.vm.platform, page);
            area.range.contains(&page)
                && leaf().is_none_or(|leaf| leaf.marks.contains(Marks::DIRTY))
        };
        let in_vain_max = self.vm.policy.predicted_in_vain_max;
        let in_vain = self.zero_page_predictor.begin_series(in_vain_max, is_written);
        count(&self.counters.predicted_in_vain, in_vain as usize);
    }
}
