//! The language of workloads: the operations of a thread.
//!
//! A workload is plain data, so that benchmarks, recordings of real programs, the simulator and a
//! kernel that boots share one language. The workload numbers its areas, files, threads and locks.
//! The machine that runs it chooses the addresses.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

/// The number of an area in its process: the one that [`Operation::Map`] gave it. Processes number
/// their areas independently. A fork's child has its parent's areas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AreaId(pub u32);

/// The number of a file. All processes of a workload share its files. A file exists as soon as it
/// is mapped, holds zeros, and has no end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u32);

/// The number of a thread's program. It also names the thread that runs the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgramId(pub u32);

/// The number of a lock. All processes of a workload share its locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockId(pub u32);

/// The accesses that an area allows (`prot` of `mmap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// No access.
    None,
    /// Reads.
    Read,
    /// Reads and writes.
    ReadWrite,
}

/// The initial contents of an area, and the visibility of its writes (`flags` of `mmap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// Zeros. Writes are private to the process.
    Anonymous,
    /// A file from its first page. The first write to a page copies it; the copy is private to the
    /// process.
    PrivateFile(FileId),
    /// A file from its first page. Every process that maps the file sees the writes.
    SharedFile(FileId),
}

/// The cases in which an area gets another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moves {
    /// If it cannot grow where it is (`MREMAP_MAYMOVE`).
    IfNecessary,
    /// Always (`MREMAP_FIXED`, to addresses that are free).
    Always,
}

/// The kind of an access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A read.
    Read,
    /// A write.
    Write,
}

/// One step of a thread.
///
/// A thread exits after its last step. Its process ends with its last thread. Pages are 4 KiB, and
/// `pages` counts from the beginning of the area: `0..1` is its first page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Maps an area at an address that the kernel chooses (`mmap`).
    Map {
        /// The number that later operations give for the area. If the process has an area of this
        /// number, that area stays mapped and loses its number.
        area: AreaId,
        /// Size of the area in pages; at least 1.
        pages: u64,
        /// Accesses that the area allows.
        permission: Permission,
        /// Contents of the area.
        mapping: Mapping,
    },
    /// Unmaps pages (`munmap`).
    Unmap {
        /// The area that the pages belong to.
        area: AreaId,
        /// The pages to unmap; at least 1.
        pages: Range<u64>,
    },
    /// Changes the accesses that pages allow (`mprotect`).
    Protect {
        /// The area that the pages belong to.
        area: AreaId,
        /// The pages to change; at least 1, all mapped.
        pages: Range<u64>,
        /// Accesses that the pages allow from now on.
        permission: Permission,
    },
    /// Frees the contents of pages, which stay mapped (`madvise(MADV_DONTNEED)`).
    Discard {
        /// The area that the pages belong to.
        area: AreaId,
        /// The pages to free; at least 1.
        pages: Range<u64>,
    },
    /// Frees the contents of every `step`-th page, each as a range of its own, in one call with one
    /// flush (`process_madvise`).
    DiscardEach {
        /// The area that the pages belong to.
        area: AreaId,
        /// The first page, and the end; at least 1.
        pages: Range<u64>,
        /// The distance of two pages; 0 counts as 1.
        step: u64,
    },
    /// Marks pages that the kernel may free when memory is short (`madvise(MADV_FREE)`).
    Offer {
        /// The area that the pages belong to.
        area: AreaId,
        /// The pages; at least 1.
        pages: Range<u64>,
    },
    /// Replaces small pages by large ones, where possible (`madvise(MADV_COLLAPSE)`).
    Collapse {
        /// The area that the pages belong to.
        area: AreaId,
        /// The pages; at least 1.
        pages: Range<u64>,
    },
    /// Makes the first write to 2 MiB map a large page, where the area contains them whole
    /// (`madvise(MADV_HUGEPAGE)`).
    UseLargePages {
        /// The area that the pages belong to.
        area: AreaId,
        /// The pages; at least 1.
        pages: Range<u64>,
    },
    /// Writes pages of files out, if necessary, and reclaims them (`madvise(MADV_PAGEOUT)`). Other
    /// pages stay. The run fails if the memory manager does not record where pages are mapped.
    PageOut {
        /// The area that the pages belong to.
        area: AreaId,
        /// The pages to reclaim; at least 1.
        pages: Range<u64>,
    },
    /// Writes out the pages of files that were written, and protects them, so that the next write
    /// is a fault (`msync`). The run fails if the memory manager does not record where pages are
    /// mapped.
    Sync {
        /// The area that the pages belong to.
        area: AreaId,
        /// The pages to write out; at least 1.
        pages: Range<u64>,
    },
    /// Moves pages to the memory of a node, as far as the node has room (`move_pages`). The run
    /// fails if the memory manager does not record where pages are mapped.
    MovePages {
        /// The area that the pages belong to.
        area: AreaId,
        /// The pages to move; at least 1.
        pages: Range<u64>,
        /// The node, from 0 on. The run fails if the machine lacks it.
        node: usize,
    },
    /// Removes the pages of a file behind its first ones, which are unmapped everywhere and hold
    /// zeros from then on (`ftruncate`). Copies of private pages stay, and the file has no end. The
    /// run fails if the memory manager does not record where pages are mapped.
    Truncate {
        /// The file.
        file: FileId,
        /// Number of pages that stay.
        pages: u64,
    },
    /// Makes the next access to each page a fault, as the scan of NUMA balancing does.
    Hint {
        /// The area that the pages belong to.
        area: AreaId,
        /// The pages; at least 1.
        pages: Range<u64>,
    },
    /// Changes the size of an area, and moves it to an address that the kernel chooses if it must
    /// move (`mremap`). Its number stays.
    Remap {
        /// The area.
        area: AreaId,
        /// Size before, in pages; at least 1, all mapped.
        from: u64,
        /// Size afterwards, in pages; at least 1.
        to: u64,
        /// The cases in which the area moves.
        moves: Moves,
    },
    /// Reads or writes one word of each page, in ascending order.
    Touch {
        /// The area that the pages belong to.
        area: AreaId,
        /// The pages to access; none if the range is empty.
        pages: Range<u64>,
        /// The kind of each access.
        access: Access,
    },
    /// Writes to a page whose area forbids writes, and handles the signal (`SIGSEGV`). The run
    /// fails if the write succeeds.
    Segfault {
        /// The area that the page belongs to.
        area: AreaId,
        /// The page to write.
        page: u64,
    },
    /// Changes or accesses memory that is named by its address.
    RawAddress(RawAddress),
    /// Starts a process with a copy of this process's memory, and runs a program in it (`fork`).
    Fork(ProgramId),
    /// Starts a thread in this process (`clone`).
    Spawn(ProgramId),
    /// Waits until a thread has ended (`wait`, `pthread_join`). A thread that has not been started
    /// has not ended.
    Join(ProgramId),
    /// Replaces the process's memory by an empty address space (`exec`). Other threads of the
    /// process keep the old one.
    Exec,
    /// Moves to a CPU, and stays there until the next `Migrate` (`sched_setaffinity`).
    Migrate(usize),
    /// Lets other threads that are ready on this CPU run (`sched_yield`).
    Yield,
    /// Waits for one [`Wake`](Self::Wake) that no earlier `Block` has waited for (a read from a
    /// pipe).
    Block,
    /// Sleeps for a number of nanoseconds (`nanosleep`, or a device that takes this long).
    Sleep(u64),
    /// Wakes a thread, or lets its next [`Block`](Self::Block) return without waiting (a write to a
    /// pipe). Wakes are counted.
    Wake(ProgramId),
    /// Locks a lock, and sleeps while another thread holds it (`pthread_mutex_lock`).
    Lock(LockId),
    /// Unlocks a lock that this thread holds.
    Unlock(LockId),
    /// Makes a system call that leaves memory unchanged (`getpid`, `open`).
    SystemCall,
    /// Computes in user mode for a number of nanoseconds.
    Compute(u64),
    /// Begins the measurement, unless a thread has begun it before.
    Begin,
    /// Ends the measurement, unless another thread ends it later.
    End {
        /// Number of iterations that the thread has done. The measurement adds up the iterations of
        /// all threads.
        iterations: u64,
    },
}

impl Operation {
    /// Maps an area.
    #[must_use]
    pub const fn map(area: AreaId, pages: u64, permission: Permission, mapping: Mapping) -> Self {
        Self::Map { area, pages, permission, mapping }
    }

    /// Maps an area of zeros, which can be read and written.
    #[must_use]
    pub const fn map_own(area: AreaId, pages: u64) -> Self {
        Self::map(area, pages, Permission::ReadWrite, Mapping::Anonymous)
    }

    /// Unmaps pages.
    #[must_use]
    pub const fn unmap(area: AreaId, pages: Range<u64>) -> Self {
        Self::Unmap { area, pages }
    }

    /// Changes the accesses that pages allow.
    #[must_use]
    pub const fn protect(area: AreaId, pages: Range<u64>, permission: Permission) -> Self {
        Self::Protect { area, pages, permission }
    }

    /// Frees the contents of pages.
    #[must_use]
    pub const fn discard(area: AreaId, pages: Range<u64>) -> Self {
        Self::Discard { area, pages }
    }

    /// Reads each page.
    #[must_use]
    pub const fn read(area: AreaId, pages: Range<u64>) -> Self {
        Self::Touch { area, pages, access: Access::Read }
    }

    /// Writes each page.
    #[must_use]
    pub const fn write(area: AreaId, pages: Range<u64>) -> Self {
        Self::Touch { area, pages, access: Access::Write }
    }
}

/// The lowest page that an access maps on demand. As under Linux, no page below it can be mapped:
/// an access there is a null pointer of the program.
pub const LOWEST_PAGE: u64 = 16;

/// The largest number of pages that [`Filling::AtOnce`] fills: 1 GiB. Larger mappings of a
/// recording are filled on demand.
pub const FILLED_MAX: u64 = 1 << 18;

/// An operation on memory that is named by its address, as in recordings of real programs.
///
/// A recording contains the calls of a program, but not every mapping that the kernel made: `exec`
/// maps areas that it does not show. These operations therefore tolerate gaps. A change skips
/// addresses that are not mapped, and an access maps them. Pages are numbered from address 0 and
/// have 4 KiB. An operation on addresses outside of user space does nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawAddress {
    /// Maps pages, and replaces what is mapped there (`mmap` with `MAP_FIXED`).
    Map {
        /// The pages to map.
        pages: Range<u64>,
        /// Accesses that the pages allow.
        permission: Permission,
        /// Contents of the pages. Every mapping of a file gets a file of its own, because a
        /// recording does not show which mappings share one. Addresses that are multiples of 2 MiB
        /// have pages of the file whose places are multiples of 2 MiB also.
        mapping: Mapping,
        /// The time at which the pages get their contents.
        filling: Filling,
    },
    /// Sets the pages that one page-table entry may map, for mappings of files.
    UseFolios {
        /// The pages of the mappings.
        pages: Range<u64>,
        /// The sizes.
        folios: Folios,
    },
    /// Unmaps pages (`munmap`).
    Unmap(Range<u64>),
    /// Changes the accesses that pages allow (`mprotect`).
    Protect {
        /// The pages to change.
        pages: Range<u64>,
        /// Accesses that the pages allow from now on.
        permission: Permission,
    },
    /// Frees the contents of pages (`madvise(MADV_DONTNEED)`).
    Discard(Range<u64>),
    /// Marks pages that the kernel may free when memory is short (`madvise(MADV_FREE)`).
    Offer(Range<u64>),
    /// Maps pages as accesses of this kind would, without accesses
    /// (`madvise(MADV_POPULATE_READ)`, `MADV_POPULATE_WRITE`).
    Populate {
        /// The pages to map.
        pages: Range<u64>,
        /// The kind of the accesses.
        access: Access,
    },
    /// Marks pages as not used recently (`madvise(MADV_COLD)`).
    Cool(Range<u64>),
    /// Reclaims pages of files (`madvise(MADV_PAGEOUT)`). Anonymous pages stay, as on a system
    /// without swap space. Does nothing if the memory manager does not reclaim.
    PageOut(Range<u64>),
    /// Writes out the pages of files that were written, and protects them (`msync`). Does nothing
    /// if the memory manager does not reclaim.
    Sync(Range<u64>),
    /// Replaces small pages by large ones, where possible (`madvise(MADV_COLLAPSE)`). Recordings
    /// do not contain this operation.
    Collapse(Range<u64>),
    /// Moves pages to the memory of a node, as far as the node has room (`move_pages`). Recordings
    /// do not contain this operation.
    MovePages {
        /// The pages to move.
        pages: Range<u64>,
        /// The node, from 0 on. No page moves to a node that the machine lacks.
        node: usize,
    },
    /// Moves, grows or shrinks mappings (`mremap`).
    Move {
        /// The pages before the call.
        from: Range<u64>,
        /// The pages after the call. If both ranges begin at the same page, the mapping grows or
        /// shrinks in place.
        to: Range<u64>,
    },
    /// Accesses a page, at a page fault that was recorded.
    Fault {
        /// The page of the faulting address.
        page: u64,
        /// The kind of the access.
        access: Access,
        /// The page-table entry that the recorded fault found.
        entry: Entry,
    },
}

/// The time at which mapped pages get their contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filling {
    /// At the first access to each page.
    OnDemand,
    /// In the call that maps them (`MAP_POPULATE`).
    AtOnce,
}

/// The pages that one page-table entry of a mapping of a file may map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folios {
    /// A page of 4 KiB.
    Small,
    /// 2 MiB.
    Large,
    /// 2 MiB. If a read has made the entry, the first write faults, because the file system tracks
    /// writes.
    LargeTracked,
}

/// The page-table entry that a recorded page fault found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// No entry.
    Absent,
    /// An entry that forbade the access. If the simulated page table has no entry, the recorded
    /// kernel had mapped the page along with a neighbour, and the interpreter reads the page first.
    Refusing,
}

/// The consequence of an access or a change that memory refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFault {
    /// The run ends with the error.
    #[default]
    Fatal,
    /// The thread goes on: with the next page after an access, whose signal it handles, and with
    /// the next operation after a change, whose error it ignores. A workload in which one thread
    /// unmaps pages that another uses needs this. An access, a move or a fork that finds no memory
    /// ends the run in any case.
    Survived,
}

/// The steps of a thread's program, in order.
pub type Steps = Box<dyn Iterator<Item = Operation>>;

/// A set of programs, and the processes that start with the workload.
pub trait Workload {
    /// Returns the name of the workload, with its parameters.
    fn name(&self) -> String;
    /// Returns the processes that start with the workload, each with one thread. The default is one
    /// process, which runs program 0 on any CPU.
    fn processes(&self) -> Vec<Start> {
        Vec::from([Start { program: ProgramId(0), cpu: None }])
    }
    /// Returns the steps of a program.
    fn steps(&self, program: ProgramId) -> Steps;
}

/// A thread that starts with the workload, in a process of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The program that the thread runs.
    pub program: ProgramId,
    /// The CPU that the thread is bound to; `None` if it may run on any.
    pub cpu: Option<usize>,
}
