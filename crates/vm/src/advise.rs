//! Advice about pages. (Linux: `madvise`.)

use core::ops::Range;

use crate::coherence::Coherence;
use crate::error::RangeError;
use crate::format::Format;
use crate::gather::Gather;
use crate::platform::{Platform, Work};
use crate::space::AddressSpace;

/// What user space says of some pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Advice {
    /// They are not needed: private pages are discarded, and are as at first when next used.
    DontNeed,
}

impl<P: Platform, C: Coherence, F: Format> AddressSpace<P, C, F> {
    /// Takes advice about the pages in `range`.
    ///
    /// The lock is held for reading: faults, and other advice, go on. Page tables stay.
    ///
    /// # Errors
    ///
    /// If areas cannot be there; nothing is changed then. If there are holes between them; the
    /// advice is taken all the same, as in Linux.
    pub fn advise(&self, range: Range<u64>, advice: Advice) -> Result<(), RangeError> {
        let Advice::DontNeed = advice;
        self.vm.platform.work(Work::Areas, 1);
        let areas = self.areas.read();
        areas.check(&range)?;
        let is_covered = areas.cover(&range);
        let mut gather = Gather::begin(self, range.clone());
        for area in areas.overlapping(&range) {
            let start = area.range.start.max(range.start);
            gather.clear(&(start..area.range.end.min(range.end)));
        }
        gather.send().wait_and_unlock(areas);
        if is_covered { Ok(()) } else { Err(RangeError::NoArea) }
    }
}
