//! The page cache of a file: its pages that are in memory. (Linux: `address_space`.)

use alloc::boxed::Box;
use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use lock_api::Mutex;

use crate::platform::{FileId, Frame, OutOfMemory, Platform};
use crate::{LARGE_PAGE_BYTES, PAGE_BYTES};

/// The page cache of one file. Memory that is shared without a file has a cache of its own, as in
/// Linux.
///
/// The cache counts as one user of each of its pages, so that no space that maps a page treats the
/// page as private. When the last area and the last reference are gone, the pages are released.
pub struct File<P: Platform> {
    platform: P,
    /// The number of the stored file; `None` if the file is not stored.
    stored: Option<FileId>,
    /// In memory of its own, so that the lock stays where it is when the last reference moves the
    /// file out of its `Arc`. A simulated lock that moved would leave its cache line behind.
    cache: Box<Mutex<P::SpinLock, Cache>>,
}

/// The pages in memory, and those that are being read in.
struct Cache {
    pages: BTreeMap<u64, Frame>,
    /// The first pages of folios: of large pages, whose frames are consecutive.
    folios: BTreeSet<u64>,
    /// Pages that are being read in.
    reading: BTreeMap<u64, Reading>,
}

/// Number of pages of a folio.
const FOLIO_PAGES: u64 = LARGE_PAGE_BYTES / PAGE_BYTES;

/// The pages in memory among those of a folio.
enum Found {
    /// None.
    Nothing,
    /// Small pages.
    Small,
    /// All of them, from this frame on.
    Folio(Frame),
}

/// The read of a page that is in progress. Before it is complete, another CPU may read the page in
/// also, map it, write to it, and have it written out and dropped again. The data of the first read
/// is then outdated.
#[derive(Default)]
struct Reading {
    readers: usize,
    /// Number of times that the page was dropped since the first reader began.
    drops: u64,
}

impl<P: Platform> File<P> {
    /// Creates a file with no page in memory, whose pages are zeros at first. It is not stored, so
    /// its pages stay in memory as long as the file exists.
    pub fn new(platform: P) -> Self {
        Self { platform, stored: None, cache: Box::new(Mutex::new(Cache::new())) }
    }

    /// Creates a stored file with no page in memory yet. Its pages are [read in](Platform::read_in)
    /// when they are needed, and may be written out and dropped when memory is short.
    pub fn stored(platform: P, id: FileId) -> Self {
        Self { platform, stored: Some(id), cache: Box::new(Mutex::new(Cache::new())) }
    }

    /// Returns `true` if the file is stored.
    pub const fn is_stored(&self) -> bool {
        self.stored.is_some()
    }

    /// Number of its pages that are in memory.
    pub fn resident_pages(&self) -> usize {
        self.cache.lock().pages.len()
    }

    /// Returns `true` if this page is in memory.
    pub(crate) fn is_resident(&self, number: u64) -> bool {
        self.cache.lock().pages.contains_key(&number)
    }

    /// Returns the pages among `numbers` that are in memory and for which `is_wanted` returns
    /// `true`, in order. Counts one more user of each, for the caller.
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

    /// Returns the page with this number, and counts one more user for the caller. Reads the page
    /// into a frame from `allocate` if it is not in memory.
    ///
    /// If two CPUs need the page at the same time, both read it in, and one of the copies is
    /// dropped.
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
                // Another CPU has read it in.
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

    /// Returns the first frame of the folio that begins with page `first`, and counts one more user
    /// of that frame. If none of the folio's pages is in memory, makes the folio, in frames from
    /// `allocate`. `None` if there are small pages, or no memory.
    ///
    /// The file must not be reclaimed from: pages that belong to a folio are not released one by
    /// one.
    pub(crate) fn folio(
        &self,
        first: u64,
        allocate: impl FnOnce() -> Result<Frame, OutOfMemory>,
    ) -> Option<Frame> {
        debug_assert!(first.is_multiple_of(FOLIO_PAGES));
        match self.find_folio(first) {
            Found::Folio(frame) => return Some(frame),
            Found::Small => return None,
            Found::Nothing => {}
        }
        let new = allocate().ok()?;
        let frames = (new.0..new.0 + FOLIO_PAGES).map(Frame);
        frames.clone().for_each(|frame| self.platform.clear_page(frame));
        let mut cache = self.cache.lock();
        if cache.is_empty(first) {
            cache.folios.insert(first);
            cache.pages.extend((first..).zip(frames));
            self.platform.share(new);
            return Some(new);
        }
        drop(cache);
        frames.for_each(|frame| self.platform.release(frame));
        match self.find_folio(first) {
            Found::Folio(frame) => Some(frame),
            Found::Small | Found::Nothing => None,
        }
    }

    /// Finds a folio, and counts one more user of its first frame.
    fn find_folio(&self, first: u64) -> Found {
        let cache = self.cache.lock();
        if cache.is_empty(first) {
            return Found::Nothing;
        }
        if !cache.folios.contains(&first) {
            return Found::Small;
        }
        let frame = cache.pages[&first];
        self.platform.share(frame);
        Found::Folio(frame)
    }

    /// Returns the page, if it is in memory, and counts one more user.
    fn find(&self, number: u64) -> Option<Frame> {
        let cache = self.cache.lock();
        let page = cache.pages.get(&number).copied();
        // Count under the lock: `remove_unused` also holds it while it checks the count.
        page.inspect(|&page| self.platform.share(page))
    }

    /// Removes a page if the cache is its only user. No CPU can then reach the page any more.
    pub(crate) fn remove_unused(&self, number: u64, page: Frame) -> bool {
        let mut cache = self.cache.lock();
        let is_there = cache.pages.get(&number) == Some(&page);
        let is_unused = is_there && self.platform.user_count(page) == 1;
        if is_unused {
            cache.remove(number);
        }
        is_unused
    }

    /// Makes the device drop the data from page `first` on, and reads of it start again. Returns
    /// the pages there that are in memory, and still have their contents.
    pub(crate) fn begin_truncation(&self, first: u64) -> Vec<u64> {
        let mut cache = self.cache.lock();
        self.truncate_stored(first..u64::MAX);
        cache.reading.range_mut(first..).for_each(|(_, reading)| reading.drops += 1);
        cache.pages.range(first..).map(|(&number, _)| number).collect()
    }

    /// Returns the page, if it is in memory, and counts one more user. Otherwise makes the device
    /// drop the page, which reclaim may have written out.
    pub(crate) fn find_or_drop(&self, number: u64) -> Option<Frame> {
        let cache = self.cache.lock();
        let page = cache.pages.get(&number).copied();
        match page {
            Some(page) => self.platform.share(page),
            None => self.truncate_stored(number..number + 1),
        }
        page
    }

    /// Removes a page, in memory and on the device, if `page` is still its frame and has this
    /// number of users. The cache's count becomes the caller's.
    pub(crate) fn remove_used(&self, number: u64, page: Frame, users: u64) -> bool {
        let mut cache = self.cache.lock();
        let is_there = cache.pages.get(&number) == Some(&page);
        let is_removed = is_there && self.platform.user_count(page) == users;
        if is_removed {
            cache.remove(number);
            self.truncate_stored(number..number + 1);
        }
        is_removed
    }

    fn truncate_stored(&self, numbers: Range<u64>) {
        if let Some(id) = self.stored {
            self.platform.truncate(id, numbers);
        }
    }

    /// Replaces a page by another frame, if only the cache and the caller, once each, are users of
    /// the page. Calls `copy` before the replacement, while no other CPU can reach either frame.
    /// Moves the cache's count from the old frame to the new one.
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

    /// Writes a page to where the file is stored.
    pub(crate) fn write_out(&self, number: u64, page: Frame) {
        if let Some(id) = self.stored {
            self.platform.write_out(id, number, page);
        }
    }

    /// Removes and returns all pages, at the end of the file.
    pub(crate) fn into_pages(mut self) -> BTreeMap<u64, Frame> {
        core::mem::take(&mut self.cache.get_mut().pages)
    }
}

impl Cache {
    const fn new() -> Self {
        Self { pages: BTreeMap::new(), folios: BTreeSet::new(), reading: BTreeMap::new() }
    }

    /// Returns `true` if no page of a folio is in memory, or being read in.
    fn is_empty(&self, first: u64) -> bool {
        let numbers = first..first + FOLIO_PAGES;
        self.pages.range(numbers.clone()).next().is_none()
            && self.reading.range(numbers).next().is_none()
    }

    /// Begins to read a page in. Returns the number of times that the page was dropped. If
    /// [`end_reading`](Self::end_reading) returns another number, the data that was read may be
    /// older than data that was written out in between.
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
