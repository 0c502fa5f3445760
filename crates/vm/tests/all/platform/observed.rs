//! What tests read from the machine: numbers of frames, and the uses of the records of pages.

use std::sync::atomic::Ordering::Relaxed;

use shootdown::Root;
use shootdown_vm::Frame;

use super::{FREE, Host, TABLE};

/// A use of the kernel's record of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordUse {
    Request,
    /// A user more or less.
    Count,
}

impl Host {
    /// Number of frames that are not free.
    pub fn frames_in_use(&self) -> usize {
        self.0.frames.iter().filter(|frame| frame.kind.load(Relaxed) != FREE).count()
    }

    pub fn tables_in_use(&self) -> usize {
        self.0.frames.iter().filter(|frame| frame.kind.load(Relaxed) == TABLE).count()
    }

    /// Number of mapped pages of a space, as far as the memory manager counts them.
    pub fn resident(&self, root: Root) -> isize {
        self.0.resident.lock().get(&Frame(root.0 >> 12)).copied().unwrap_or(0)
    }

    /// Number of exchanges that found another entry than they expected.
    pub fn failed_exchanges(&self) -> usize {
        self.0.failed_exchanges.load(Relaxed)
    }

    /// Returns the uses of records since the last call, and notes them from now on.
    pub fn take_records(&self) -> Vec<(RecordUse, Frame)> {
        self.0.records.lock().replace(Vec::new()).unwrap_or_default()
    }

    pub(super) fn use_record(&self, kind: RecordUse, page: Frame) {
        if let Some(records) = &mut *self.0.records.lock() {
            records.push((kind, page));
        }
    }
}
