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
//! again, and a write to it starts the next series. Wrong predictions cost at most [`PREDICTIONS`]
//! pages for each page that was written after it was read.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::area::{Access, Area, Protection};
use crate::platform::Platform;

/// Number of predictions after a write that was not predicted: they risk 64 KiB, and save 16 of 17
/// interrupts.
const PREDICTIONS: u64 = 16;

/// The state of a space's predictions.
#[derive(Debug, Default)]
pub(crate) struct ZeroPagePredictor {
    /// Number of first reads for which a write is still predicted. A hint: no other access depends
    /// on its value.
    left: AtomicU64,
}

impl ZeroPagePredictor {
    /// Records a write to a page that had been read first.
    #[inline]
    pub(crate) fn record_write(&self) {
        self.left.store(PREDICTIONS, Relaxed);
    }

    /// Returns the access to prepare for at the first access to a page of an area: a write if it is
    /// predicted to follow a read, and `access` otherwise.
    pub(crate) fn expected<P: Platform>(&self, area: &Area<P>, access: Access) -> Access {
        let is_predicted = access == Access::Read
            && area.is_private_anonymous()
            && area.protection.contains(Protection::WRITE)
            && self.left.load(Relaxed) != 0;
        if is_predicted { Access::Write } else { access }
    }

    /// Records that a first read was treated as a write.
    pub(crate) fn record_prediction(&self) {
        // Two concurrent faults may use the same prediction, which costs one more page.
        let left = self.left.load(Relaxed);
        self.left.store(left.saturating_sub(1), Relaxed);
    }
}
