//! What the memory manager needs of the machine and the kernel underneath: frames, page-table
//! entries, locks; and, where the machine is simulated, to be told what work it does.

use core::ops::Range;

/// A physical page frame, by number: its address is the number times 4096.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frame(pub u64);

impl Frame {
    /// The physical address of the frame's first byte.
    #[must_use]
    pub const fn address(self) -> u64 {
        self.0 << 12
    }
}

/// What a frame is allocated for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameUse {
    /// A page table. Comes filled with zeros.
    Table,
    /// A page of memory. Comes with whatever was in it.
    Page,
}

/// A file that is stored somewhere, by whatever number the platform knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// There is no frame left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no frame left")]
pub struct OutOfMemory;

/// One entry of a page table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryAt {
    /// The table.
    pub table: Frame,
    /// Which of its entries, from 0 on.
    pub index: usize,
}

/// A piece of work that takes time of its own, over and above the memory that it touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Finding, making, cutting or removing areas.
    Areas,
    /// Taking a page fault's exception, finding out what is wrong, and returning from it.
    Fault,
    /// Looking at one page-table entry in a loop over a range, present or not.
    Entry,
    /// Taking one page out of the books when it is unmapped.
    UnmapPage,
    /// Copying one page-table entry at a fork.
    ForkEntry,
}

/// The machine and the kernel underneath.
///
/// Entries are accessed atomically, for the hardware writes into them, too, and faults of one
/// space run side by side. The orderings are those of a lock-free structure: a load acquires, a
/// write releases.
pub trait Platform {
    /// The lock that guards the areas of a space: taken for reading by faults, for writing by who
    /// changes areas. Waiters sleep.
    type SleepingLock: lock_api::RawRwLock + lock_api::RawRwLockDowngrade;
    /// A lock that is held for some hundred instructions. Waiters spin.
    type SpinLock: lock_api::RawMutex;

    /// A frame for `purpose`, with a count of one user.
    ///
    /// # Errors
    ///
    /// If there is none left.
    fn allocate(&self, purpose: FrameUse) -> Result<Frame, OutOfMemory>;

    /// Frames for a large page: as many as [`LARGE_PAGE_BYTES`](crate::LARGE_PAGE_BYTES) have, one
    /// after the other, the first of which is returned, and has a number that is a multiple of that
    /// many. From then on each is a frame like others, for a page, with a count of one user of its
    /// own: they are released one by one.
    ///
    /// # Errors
    ///
    /// If there are not so many in a row; always, unless the platform has large frames.
    fn allocate_large(&self) -> Result<Frame, OutOfMemory> {
        Err(OutOfMemory)
    }

    /// Counts one more user of a page.
    fn share(&self, page: Frame);

    /// How many users a page has.
    fn user_count(&self, page: Frame) -> u64;

    /// Counts one user of a page less; the frame is free when none is left.
    ///
    /// No CPU may have a translation to it by which this user reached it.
    fn release(&self, page: Frame);

    /// Frees a table. No CPU may be able to walk it any more.
    fn free_table(&self, table: Frame);

    /// Reads an entry.
    fn load(&self, entry: EntryAt) -> u64;

    /// Writes an entry and returns what it held.
    fn swap(&self, entry: EntryAt, value: u64) -> u64;

    /// Writes `new` if the entry holds `current`.
    ///
    /// # Errors
    ///
    /// What the entry held instead.
    fn compare_exchange(&self, entry: EntryAt, current: u64, new: u64) -> Result<u64, u64>;

    /// Fills a page with zeros.
    fn clear_page(&self, page: Frame);

    /// Copies a page.
    fn copy_page(&self, from: Frame, to: Frame);

    /// Fills a page with what is stored as page `number` of a file. May sleep.
    fn read_in(&self, file: FileId, number: u64, page: Frame) {
        let _ = (file, number);
        self.clear_page(page);
    }

    /// Stores a page as page `number` of a file. May sleep. If the page is written meanwhile, it is
    /// stored again later, and what is stored now may be of either time.
    fn write_out(&self, file: FileId, number: u64, page: Frame) {
        let _ = (file, number, page);
    }

    /// How many nodes there are, each with memory of its own.
    fn node_count(&self) -> usize {
        1
    }

    /// The node whose memory a frame is.
    fn node_of(&self, page: Frame) -> usize {
        let _ = page;
        0
    }

    /// A frame for a page, in the memory of a node, as [`allocate`](Self::allocate).
    ///
    /// # Errors
    ///
    /// If there is none left there.
    fn allocate_on(&self, node: usize) -> Result<Frame, OutOfMemory> {
        let _ = node;
        self.allocate(FrameUse::Page)
    }

    /// Lets some time pass, for there is no frame, and others are about to free some: they may be
    /// writing pages out. Called again and again until they have. May sleep, and should.
    fn wait_for_memory(&self) {
        core::hint::spin_loop();
    }

    /// Is told what the memory manager does. Where time is real, there is nothing to do.
    fn work(&self, work: Work, count: usize) {
        let _ = (work, count);
    }

    /// The addresses that user areas may have.
    fn user_addresses(&self) -> Range<u64> {
        // The lower half, without its first and last 64 KiB: null pointers shall fault.
        0x1_0000..0x7fff_ffff_0000
    }
}
