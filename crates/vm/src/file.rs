//! A file, as far as memory is concerned: its pages that are in memory. (Linux: `address_space`.)

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use lock_api::Mutex;

use crate::platform::{Frame, FrameUse, OutOfMemory, Platform};

/// The page cache of one file. What is shared without a file has one of its own, as in Linux.
///
/// The cache counts as one user of each of its pages, so that nobody who maps one takes it for its
/// own. When the last area and the last holder are gone, so are the pages: there is no disk to
/// read them from again.
pub struct File<P: Platform> {
    platform: P,
    pages: Mutex<P::SpinLock, BTreeMap<u64, Frame>>,
}

impl<P: Platform> File<P> {
    /// A file with nothing in memory, and zeros on its disk.
    pub const fn new(platform: P) -> Self {
        Self { platform, pages: Mutex::new(BTreeMap::new()) }
    }

    /// How many of its pages are in memory.
    pub fn resident_pages(&self) -> usize {
        self.pages.lock().len()
    }

    /// The pages that are in memory of those with `numbers`, in order. They stay, but are not
    /// counted for the caller.
    pub(crate) fn cached(&self, numbers: Range<u64>) -> Vec<(u64, Frame)> {
        self.pages.lock().range(numbers).map(|(&number, &page)| (number, page)).collect()
    }

    /// The page with this number, read in if need be, and counted once more for the caller.
    pub(crate) fn page(&self, number: u64) -> Result<Frame, OutOfMemory> {
        // Cached pages stay, so that this need not be one with the counting.
        let cached = self.pages.lock().get(&number).copied();
        if let Some(page) = cached {
            self.platform.share(page);
            return Ok(page);
        }
        let new = self.platform.allocate(FrameUse::Page)?;
        self.platform.clear_page(new);
        let page = match self.pages.lock().entry(number) {
            Entry::Vacant(vacant) => *vacant.insert(new),
            // Another CPU has read it in meanwhile.
            Entry::Occupied(found) => *found.get(),
        };
        if page != new {
            self.platform.release(new);
        }
        self.platform.share(page);
        Ok(page)
    }
}

impl<P: Platform> Drop for File<P> {
    fn drop(&mut self) {
        for &page in self.pages.get_mut().values() {
            self.platform.release(page);
        }
    }
}

impl<P: Platform> fmt::Debug for File<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").finish_non_exhaustive()
    }
}
