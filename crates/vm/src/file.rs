//! A file, as far as memory is concerned: its pages that are in memory. (Linux: `address_space`.)

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use lock_api::Mutex;

use crate::platform::{FileId, Frame, OutOfMemory, Platform};

/// The page cache of one file. What is shared without a file has one of its own, as in Linux.
///
/// The cache counts as one user of each of its pages, so that nobody who maps one takes it for its
/// own. When the last area and the last holder are gone, so are the pages.
pub struct File<P: Platform> {
    platform: P,
    /// Where it is stored.
    stored: Option<FileId>,
    pages: Mutex<P::SpinLock, BTreeMap<u64, Frame>>,
}

impl<P: Platform> File<P> {
    /// A file with nothing in memory, and zeros on its disk. It is stored nowhere: what was once
    /// read or written stays in memory for as long as the file is there.
    pub const fn new(platform: P) -> Self {
        Self { platform, stored: None, pages: Mutex::new(BTreeMap::new()) }
    }

    /// A file that is stored, with nothing in memory yet. Its pages are
    /// [read in](Platform::read_in) when they are needed, and may be written out and dropped when
    /// memory is.
    pub const fn stored(platform: P, id: FileId) -> Self {
        Self { platform, stored: Some(id), pages: Mutex::new(BTreeMap::new()) }
    }

    /// Whether it is.
    pub const fn is_stored(&self) -> bool {
        self.stored.is_some()
    }

    /// How many of its pages are in memory.
    pub fn resident_pages(&self) -> usize {
        self.pages.lock().len()
    }

    /// Whether this page is in memory.
    pub(crate) fn holds(&self, number: u64) -> bool {
        self.pages.lock().contains_key(&number)
    }

    /// The pages that are in memory and wanted of those with `numbers`, in order, each counted once
    /// more for the caller.
    pub(crate) fn cached(
        &self,
        numbers: Range<u64>,
        is_wanted: impl Fn(u64) -> bool,
    ) -> Vec<(u64, Frame)> {
        let pages = self.pages.lock();
        let cached = pages.range(numbers).map(|(&number, &page)| (number, page));
        let wanted = cached.filter(|&(number, _)| is_wanted(number));
        wanted.inspect(|&(_, page)| self.platform.share(page)).collect()
    }

    /// The page with this number, read in if need be, into a frame of `allocate`'s, and counted
    /// once more for the caller.
    ///
    /// Two CPUs that miss it at once both read it in, and one has done so in vain.
    pub(crate) fn page(
        &self,
        number: u64,
        allocate: impl FnOnce() -> Result<Frame, OutOfMemory>,
    ) -> Result<Frame, OutOfMemory> {
        {
            let pages = self.pages.lock();
            if let Some(&page) = pages.get(&number) {
                // Under the lock: reclaim, which takes what nobody else counts, has it, too.
                self.platform.share(page);
                return Ok(page);
            }
        }
        let new = allocate()?;
        match self.stored {
            Some(id) => self.platform.read_in(id, number, new),
            None => self.platform.clear_page(new),
        }
        let page = {
            let mut pages = self.pages.lock();
            let page = match pages.entry(number) {
                Entry::Vacant(vacant) => *vacant.insert(new),
                // Another CPU has read it in meanwhile.
                Entry::Occupied(found) => *found.get(),
            };
            self.platform.share(page);
            page
        };
        if page != new {
            self.platform.release(new);
        }
        Ok(page)
    }

    /// Takes a page out, if nobody else counts it: nobody can come to it any more.
    pub(crate) fn take_unused(&self, number: u64, page: Frame) -> bool {
        let mut pages = self.pages.lock();
        let is_unused = pages.get(&number) == Some(&page) && self.platform.user_count(page) == 1;
        if is_unused {
            pages.remove(&number);
        }
        is_unused
    }

    /// Puts another frame in a page's place, with the cache's count of both, if nobody but the
    /// caller, who counts once, and the cache have it. Has it copied before, while nobody can come
    /// to either.
    pub(crate) fn replace(&self, number: u64, old: Frame, new: Frame, copy: impl FnOnce()) -> bool {
        let mut pages = self.pages.lock();
        let is_ours = pages.get(&number) == Some(&old) && self.platform.user_count(old) == 2;
        if is_ours {
            copy();
            self.platform.share(new);
            pages.insert(number, new);
            self.platform.release(old);
        }
        is_ours
    }

    /// Writes a page to where it is stored.
    pub(crate) fn write_out(&self, number: u64, page: Frame) {
        if let Some(id) = self.stored {
            self.platform.write_out(id, number, page);
        }
    }

    /// Takes everything out, at the end.
    pub(crate) fn into_pages(mut self) -> BTreeMap<u64, Frame> {
        core::mem::take(self.pages.get_mut())
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
        f.debug_struct("File").field("stored", &self.stored).finish_non_exhaustive()
    }
}
