//! The services that the memory manager needs from the machine and the kernel: frames, page-table
//! entries and locks. If the machine is simulated, the platform also accounts for work.

use core::ops::Range;
use core::sync::atomic::{Ordering, fence};

/// A physical page frame, by number: its address is the number times 4096.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frame(pub u64);

impl Frame {
    /// The physical address of the frame's first byte.
    #[must_use]
    #[inline]
    pub const fn address(self) -> u64 {
        self.0 << 12
    }
}

/// The purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameUse {
    /// A page table. The frame is filled with zeros.
    Table,
    /// A page of memory. The frame's contents are arbitrary.
    Page,
}

/// A stored file, by a number that the platform chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// No frame is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no frame left")]
pub struct OutOfMemory;

/// One entry of a page table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryAt {
    /// The table.
    pub table: Frame,
    /// Index of the entry in the table, from 0.
    pub index: usize,
}

/// A piece of work that takes time beyond the memory accesses that it makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Making, cutting, joining or removing areas.
    Areas,
    /// Finding the area of a call that changes none, such as advice.
    FindArea,
    /// Taking a page fault's exception, finding its cause, and returning from it.
    Fault,
    /// Examining one page-table entry in a loop over a range, present or not.
    Entry,
    /// Examining one page of a file, and its entry, around the page of a fault.
    AroundFault,
    /// Accounting for one page when it is unmapped.
    UnmapPage,
    /// Copying one page-table entry at a fork.
    ForkEntry,
    /// Moving one page to another node, besides its copy.
    MovePage,
}

/// The machine and the kernel underneath the memory manager: a small handle that is cheap to clone,
/// such as a reference, an `Rc`, or a unit type in a kernel that has only one platform.
///
/// Implementations must access entries atomically, because the hardware writes to them and faults
/// of one space run concurrently. A load must have acquire ordering, and a write release ordering.
pub trait Platform: Clone {
    /// The lock that guards the areas of a space, and the lock of one area. Faults take one of them
    /// for reading, and calls that change areas take both for writing. Waiters sleep.
    type SleepingLock: lock_api::RawRwLock + lock_api::RawRwLockDowngrade;
    /// The lock that guards the [index of areas](crate::FaultLock::Area). Each fault takes it for
    /// reading, for a search, and calls that change areas take it for writing, for a few hundred
    /// instructions. Any reader–writer lock will do. (Linux: RCU.)
    ///
    /// If the policy has [replicas](crate::Replication), it also guards those of a space, and
    /// [`switch_here`](crate::AddressSpace::switch_here) takes it for reading: it must then be one
    /// that the scheduler can take. Its writers only allocate while they hold it, and its readers
    /// take no other lock of the platform.
    type IndexLock: lock_api::RawRwLock;
    /// A lock that is held for a few hundred instructions. Waiters spin.
    ///
    /// If the policy has [replicas](crate::Replication), a thread may hold one while it waits for a
    /// flush of one CPU's replica, usually its own. A CPU that waits for the lock must therefore
    /// handle flush interrupts.
    type SpinLock: lock_api::RawMutex;

    /// Allocates a frame for `purpose`, with a count of one user.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] if no frame is left.
    fn allocate(&self, purpose: FrameUse) -> Result<Frame, OutOfMemory>;

    /// Allocates the frames of a large page: [`LARGE_PAGE_BYTES`](crate::LARGE_PAGE_BYTES) of
    /// consecutive frames, the first at a multiple of that size. Returns the first frame. Each
    /// frame is then an ordinary frame for a page, with its own count of one user, and is released
    /// on its own.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] if no such run of frames is free. The default implementation always fails,
    /// for platforms without large frames.
    fn allocate_large(&self) -> Result<Frame, OutOfMemory> {
        Err(OutOfMemory)
    }

    /// Requests the kernel's record of a frame, in which [`share`](Self::share) and
    /// [`release`](Self::release) count its users, for a write that follows soon. A hint: the CPU
    /// does not wait. (x86: `PREFETCHW`.)
    fn request_record(&self, page: Frame) {
        let _ = page;
    }

    /// Counts one more user of a page.
    fn share(&self, page: Frame);

    /// Number of users of a page. Any number if the frame was freed since the caller read its
    /// entry: a caller that has not claimed the entry exchanges it afterwards, which then fails, or
    /// finds a page of this space again.
    fn user_count(&self, page: Frame) -> u64;

    /// Counts one user of a page less. The frame is free when no user is left.
    ///
    /// No CPU may have a translation through which this user reached the page.
    fn release(&self, page: Frame);

    /// Empties these entries of a table of the last level, the only ones that may not be empty:
    /// the space has ended, and nothing writes to the table any more. CPUs may still walk it.
    ///
    /// When the table is [freed](Self::free_table), the platform can keep it as a table that need
    /// not be filled with zeros again. The default implementation does nothing.
    fn empty_table(&self, table: Frame, entries: Range<usize>) {
        let _ = (table, entries);
    }

    /// Frees a table. No CPU may be able to walk the table.
    fn free_table(&self, table: Frame);

    /// Loads an entry.
    fn load(&self, entry: EntryAt) -> u64;

    /// Writes an entry and returns its previous value.
    fn swap(&self, entry: EntryAt, value: u64) -> u64;

    /// Writes `new` if the value of the entry is `current`.
    ///
    /// # Errors
    ///
    /// The value of the entry, if it is not `current`.
    fn compare_exchange(&self, entry: EntryAt, current: u64, new: u64) -> Result<u64, u64>;

    /// Puts the translation of a page into the TLB of this CPU, from an entry of the loaded space
    /// that was just written without the accessed mark, and leaves the mark clear. The default
    /// implementation does nothing: the MMU walks at the first access.
    fn insert_translation(&self, entry: EntryAt, address: u64) {
        let _ = (entry, address);
    }

    /// Waits for a while until an entry is no longer `claim`. Another call has claimed the entry,
    /// and waits for a flush. The calling fault is retried afterwards. If the entry is still the
    /// same then, this is called again.
    ///
    /// The default implementation returns at once, so the access faults again and again until the
    /// flush is complete. Wait here only if this CPU answers interrupts meanwhile: the flush may be
    /// waiting for it. The caller holds the lock of an area or of the space for reading, as the
    /// other call does. (Linux: `migration_entry_wait`.)
    fn wait_for_claim(&self, entry: EntryAt, claim: u64) {
        let _ = (entry, claim);
    }

    /// Locks a page table of level 0 around a change of its entries. This memory manager changes
    /// entries atomically and needs no such lock; Linux has one (`pte_offset_map_lock`). A
    /// simulated platform charges for it, and lets CPUs wait as under Linux.
    fn lock_table(&self, table: Frame) {
        let _ = table;
    }

    /// Locks a page table as [`lock_table`](Self::lock_table) does, if no other CPU has locked it.
    /// Returns `true` if the table is locked now.
    fn try_lock_table(&self, table: Frame) -> bool {
        let _ = table;
        true
    }

    /// Ends [`lock_table`](Self::lock_table).
    fn unlock_table(&self, table: Frame) {
        let _ = table;
    }

    /// Accounts for a change of the number of pages that are mapped in the space with this root
    /// table. (Linux: `rss_stat`.)
    fn count_resident(&self, root: Frame, change: isize) {
        let _ = (root, change);
    }

    /// Fills a page with zeros.
    fn clear_page(&self, page: Frame);

    /// Fills a page with zeros that user threads may be reading and writing: each of their accesses
    /// finds a word as it was, or zero.
    fn zero_in_place(&self, page: Frame);

    /// Returns `true` if every byte of a page is zero. User threads may be writing to the page.
    fn is_zero(&self, page: Frame) -> bool;

    /// Copies a page.
    fn copy_page(&self, from: Frame, to: Frame);

    /// Reads page `number` of a stored file into `page`. May sleep.
    fn read_in(&self, file: FileId, number: u64, page: Frame) {
        let _ = (file, number);
        self.clear_page(page);
    }

    /// Writes `page` to page `number` of a stored file. May sleep. If a CPU writes to the page
    /// during the call, the stored data may be older or newer than that write; the memory manager
    /// then writes the page out again later.
    fn write_out(&self, file: FileId, number: u64, page: Frame) {
        let _ = (file, number, page);
    }

    /// Makes pages of a stored file zeros, where it is stored. Must not sleep. The default
    /// implementation does nothing, as for a file that is never written out.
    fn truncate(&self, file: FileId, numbers: Range<u64>) {
        let _ = (file, numbers);
    }

    /// Number of nodes, each with memory of its own.
    fn node_count(&self) -> usize {
        1
    }

    /// The node whose memory contains a frame.
    fn node_of(&self, page: Frame) -> usize {
        let _ = page;
        0
    }

    /// Allocates a frame for a page in the memory of a node, as [`allocate`](Self::allocate) does.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] if no frame is left on the node.
    fn allocate_on(&self, node: usize) -> Result<Frame, OutOfMemory> {
        let _ = node;
        self.allocate(FrameUse::Page)
    }

    /// Waits a little, because no frame is free and other threads are about to free some: they may
    /// be writing pages out. The memory manager calls this repeatedly until they have. May sleep,
    /// and should.
    fn wait_for_memory(&self) {
        core::hint::spin_loop();
    }

    /// Time since some fixed moment, in nanoseconds. It must not go back. It decides only when
    /// memory is freed.
    fn now_ns(&self) -> u64;

    /// Number of the CPU that calls.
    fn cpu(&self) -> usize {
        0
    }

    /// Adds a CPU to the *sharers* of a page table of the last level, and executes a full barrier,
    /// also for walks of page tables. A new table has no sharers.
    ///
    /// The sharers are a set in the kernel's record of the frame. The five methods about CPUs and
    /// sharers are called only if the policy has [replicas](crate::Replication).
    fn add_sharer(&self, table: Frame, cpu: usize) {
        let _ = (table, cpu);
    }

    /// Removes a CPU from the sharers of a table, after everything that the caller has done before
    /// (release).
    fn remove_sharer(&self, table: Frame, cpu: usize) {
        let _ = (table, cpu);
    }

    /// Calls `each` with the sharers of a table (acquire).
    fn sharers(&self, table: Frame, each: &mut dyn FnMut(usize)) {
        let _ = (table, each);
    }

    /// Executes a full barrier: writes of page-table entries before it come before every later
    /// access, as CPUs and their walks observe them. Called before the sharers are read.
    fn full_barrier(&self) {
        fence(Ordering::SeqCst);
    }

    /// Number of the calling thread, for [`Placement::PerThread`](crate::Placement::PerThread). A
    /// hint: threads with the same number place their mappings near each other.
    fn thread(&self) -> u64 {
        0
    }

    /// Accounts for work of the memory manager. If time is real, there is nothing to do.
    fn work(&self, work: Work, count: usize) {
        let _ = (work, count);
    }

    /// Returns the addresses that user areas may have.
    fn user_addresses(&self) -> Range<u64> {
        // The lower half, except its first and last 64 KiB, so that null pointers fault.
        0x1_0000..0x7fff_ffff_0000
    }
}
