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
    cache: Mutex<P::SpinLock, Cache>,
}

/// What is in memory, and what is on its way.
struct Cache {
    pages: BTreeMap<u64, Frame>,
    /// Pages that are being read in.
    reading: BTreeMap<u64, Reading>,
}

/// Somebody reads a page in. Until that is done, others may read it in, too, map it, write to it,
/// and have it written out and dropped again: then what was read is outdated.
#[derive(Default)]
struct Reading {
    readers: usize,
    /// How often the page was dropped since the first of them began.
    drops: u64,
}

impl<P: Platform> File<P> {
    /// A file with nothing in memory, and zeros on its disk. It is stored nowhere: what was once
    /// read or written stays in memory for as long as the file is there.
    pub const fn new(platform: P) -> Self {
        Self { platform, stored: None, cache: Mutex::new(Cache::new()) }
    }

    /// A file that is stored, with nothing in memory yet. Its pages are
    /// [read in](Platform::read_in) when they are needed, and may be written out and dropped when
    /// memory is.
    pub const fn stored(platform: P, id: FileId) -> Self {
        Self { platform, stored: Some(id), cache: Mutex::new(Cache::new()) }
    }

    /// Whether it is.
    pub const fn is_stored(&self) -> bool {
        self.stored.is_some()
    }

    /// How many of its pages are in memory.
    pub fn resident_pages(&self) -> usize {
        self.cache.lock().pages.len()
    }

    /// Whether this page is in memory.
    pub(crate) fn holds(&self, number: u64) -> bool {
        self.cache.lock().pages.contains_key(&number)
    }

    /// The pages that are in memory and wanted of those with `numbers`, in order, each counted once
    /// more for the caller.
    pub(crate) fn cached(
        &self,
        numbers: Range<u64>,
        is_wanted: impl Fn(u64) -> bool,
    ) -> Vec<(u64, Frame)> {
        let cache = self.cache.lock();
        let cached = cache.pages.range(numbers).map(|(&number, &page)| (number, page));
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
        if let Some(page) = self.find(number) {
            return Ok(page);
        }
        let new = allocate()?;
        loop {
            let drops = self.cache.lock().begin_reading(number);
            match self.stored {
                Some(id) => self.platform.read_in(id, number, new),
                None => self.platform.clear_page(new),
            }
            let mut cache = self.cache.lock();
            let is_outdated = cache.end_reading(number) != drops;
            let page = match cache.pages.entry(number) {
                Entry::Vacant(_) if is_outdated => continue,
                Entry::Vacant(vacant) => *vacant.insert(new),
                // Another CPU has read it in meanwhile.
                Entry::Occupied(found) => *found.get(),
            };
            self.platform.share(page);
            drop(cache);
            if page != new {
                self.platform.release(new);
            }
            return Ok(page);
        }
    }

    /// The page, if it is in memory, counted once more.
    fn find(&self, number: u64) -> Option<Frame> {
        let cache = self.cache.lock();
        let page = cache.pages.get(&number).copied();
        // Under the lock: reclaim, which takes what nobody else counts, has it, too.
        page.inspect(|&page| self.platform.share(page))
    }

    /// Takes a page out, if nobody else counts it: nobody can come to it any more.
    pub(crate) fn remove_unused(&self, number: u64, page: Frame) -> bool {
        let mut cache = self.cache.lock();
        let is_there = cache.pages.get(&number) == Some(&page);
        let is_unused = is_there && self.platform.user_count(page) == 1;
        if is_unused {
            cache.remove(number);
        }
        is_unused
    }

    /// Puts another frame in a page's place, with the cache's count of both, if nobody but the
    /// caller, who counts once, and the cache have it. Has it copied before, while nobody can come
    /// to either.
    pub(crate) fn replace(&self, number: u64, old: Frame, new: Frame, copy: impl FnOnce()) -> bool {
        let mut cache = self.cache.lock();
        let is_there = cache.pages.get(&number) == Some(&old);
        let is_ours = is_there && self.platform.user_count(old) == 2;
        if is_ours {
            copy();
            self.platform.share(new);
            cache.pages.insert(number, new);
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
        core::mem::take(&mut self.cache.get_mut().pages)
    }
}

impl Cache {
    const fn new() -> Self {
        Self { pages: BTreeMap::new(), reading: BTreeMap::new() }
    }

    /// Somebody begins to read a page in. Returns how often it was dropped: if that is not what
    /// [`end_reading`](Self::end_reading) returns, what was read may be older than what was written
    /// out since.
    fn begin_reading(&mut self, number: u64) -> u64 {
        let reading = self.reading.entry(number).or_default();
        reading.readers += 1;
        reading.drops
    }

    fn end_reading(&mut self, number: u64) -> u64 {
        let Some(reading) = self.reading.get_mut(&number) else { return 0 };
        let drops = reading.drops;
        reading.readers -= 1;
        if reading.readers == 0 {
            self.reading.remove(&number);
        }
        drops
    }

    fn remove(&mut self, number: u64) {
        self.pages.remove(&number);
        if let Some(reading) = self.reading.get_mut(&number) {
            reading.drops += 1;
        }
    }
}

impl<P: Platform> Drop for File<P> {
    fn drop(&mut self) {
        for &page in self.cache.get_mut().pages.values() {
            self.platform.release(page);
        }
    }
}

impl<P: Platform> fmt::Debug for File<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("stored", &self.stored).finish_non_exhaustive()
    }
}
