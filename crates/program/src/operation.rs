//! The language of workloads: what a thread does, one step after the other.
//!
//! Plain data, so that a benchmark, a recording of a real program, the simulator and a kernel that
//! boots all speak it. Areas and threads are named by numbers that the workload chose; which
//! addresses they get is the machine's business.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

/// An area of a process's memory, by the number under which it was mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AreaId(pub u32);

/// A file, by number. Files are empty of all but zeros, and as large as one likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u32);

/// A thread's program, by number; also the thread that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgramId(pub u32);

/// A lock of the program's own, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockId(pub u32);

/// What may be done with an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Nothing.
    None,
    /// Reading.
    Read,
    /// Reading and writing.
    ReadWrite,
}

/// What is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// Zeros of the process's own.
    Anonymous,
    /// A file, whose pages become the process's own when they are written.
    PrivateFile(FileId),
    /// A file, shared with all who map it.
    SharedFile(FileId),
}

/// What is done with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is read.
    Read,
    /// It is written.
    Write,
}

/// One step of a thread, which exits when there is none left, and its process with its last thread.
/// Pages are numbered from the beginning of their area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Maps so many pages (`mmap`).
    Map {
        /// The name by which the area is known from now on.
        area: AreaId,
        /// Its size.
        pages: u64,
        /// What may be done with it.
        permission: Permission,
        /// What it shows.
        mapping: Mapping,
    },
    /// Unmaps pages (`munmap`).
    Unmap {
        /// Of which area.
        area: AreaId,
        /// Which.
        pages: Range<u64>,
    },
    /// Changes what may be done with pages (`mprotect`).
    Protect {
        /// Of which area.
        area: AreaId,
        /// Which.
        pages: Range<u64>,
        /// What may be done with them from now on.
        permission: Permission,
    },
    /// Gives pages back, and keeps the area (`madvise(MADV_DONTNEED)`).
    Discard {
        /// Of which area.
        area: AreaId,
        /// Which.
        pages: Range<u64>,
    },
    /// Moves pages to the memory of a node, as far as there is room (`move_pages`).
    MovePages {
        /// Of which area.
        area: AreaId,
        /// Which.
        pages: Range<u64>,
        /// Where to.
        node: usize,
    },
    /// Reads or writes one word of each of some pages.
    Touch {
        /// Of which area.
        area: AreaId,
        /// Which.
        pages: Range<u64>,
        /// How.
        access: Access,
    },
    /// Writes to a page that must not be written, and handles the signal (`SIGSEGV`).
    Segfault {
        /// Of which area.
        area: AreaId,
        /// Which.
        page: u64,
    },
    /// Changes or uses memory that is named by its address.
    ByAddress(ByAddress),
    /// Makes a process that is a copy of this one, and runs a program in it (`fork`).
    Fork(ProgramId),
    /// Makes a thread in this process (`clone`).
    Spawn(ProgramId),
    /// Waits until a program that was forked or spawned is done (`wait`, `pthread_join`).
    Join(ProgramId),
    /// Throws away all of the process's memory, and starts with none (`exec`).
    Exec,
    /// Moves to a CPU, and stays there (`sched_setaffinity`).
    Migrate(usize),
    /// Lets other threads of this CPU run (`sched_yield`).
    Yield,
    /// Waits for a [`Wake`](Self::Wake) that has not been waited for yet (reads from a pipe).
    Block,
    /// Sleeps for so many nanoseconds (`nanosleep`; or a device that takes its time).
    Sleep(u64),
    /// Wakes a thread, or has its next [`Block`](Self::Block) not wait (writes to a pipe).
    Wake(ProgramId),
    /// Takes a lock; sleeps while another thread has it (`pthread_mutex_lock`).
    Lock(LockId),
    /// Lets go of a lock.
    Unlock(LockId),
    /// Asks the kernel for something that leaves memory as it is (`getpid`, `open`).
    SystemCall,
    /// Computes for so many nanoseconds.
    Compute(u64),
    /// What is measured begins here, if it has not begun yet.
    Begin,
    /// What is measured ends here, unless another thread ends it later. Counts so many iterations.
    End {
        /// How often the thread did what is measured.
        iterations: u64,
    },
}

/// Below this page nothing is mapped on demand, as nothing may be mapped under Linux: an access
/// there is a program's null pointer.
pub const LOWEST_PAGE: u64 = 16;

/// More pages than these, 1 GiB, are not filled at once, whatever a recording asks for.
pub const FILLED_MAX: u64 = 1 << 18;

/// Memory by address, as recordings of real programs have it.
///
/// A recording knows what a program asked for, and not all that the kernel did: it does not show
/// what `exec` maps, for one thing. So these operations take memory as they find it. What is not
/// mapped is passed over where it is changed, and mapped where it is used. Addresses are given as
/// numbers of pages, from address 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ByAddress {
    /// Maps these pages, instead of what is there.
    Map {
        /// Which.
        pages: Range<u64>,
        /// What may be done with them.
        permission: Permission,
        /// What they show.
        mapping: Mapping,
        /// Whether they are there from the beginning.
        filling: Filling,
    },
    /// Unmaps pages (`munmap`).
    Unmap(Range<u64>),
    /// Changes what may be done with pages (`mprotect`).
    Protect {
        /// Which.
        pages: Range<u64>,
        /// What may be done with them from now on.
        permission: Permission,
    },
    /// Gives pages back (`madvise(MADV_DONTNEED)`).
    Discard(Range<u64>),
    /// Offers pages, to be taken when memory is short (`madvise(MADV_FREE)`).
    Offer(Range<u64>),
    /// Makes large pages of small ones, as far as can be (`madvise(MADV_COLLAPSE)`). Not of
    /// recordings.
    Collapse(Range<u64>),
    /// Moves pages to the memory of a node, as far as there is room (`move_pages`). Not of
    /// recordings.
    MovePages {
        /// Which.
        pages: Range<u64>,
        /// Where to.
        node: usize,
    },
    /// Moves, grows or shrinks what is mapped (`mremap`).
    Move {
        /// From where.
        from: Range<u64>,
        /// To where.
        to: Range<u64>,
    },
    /// Uses a page as a recorded page fault says.
    Fault {
        /// Which.
        page: u64,
        /// How.
        access: Access,
        /// What the page table had for it.
        entry: Entry,
    },
}

/// When mapped pages get their contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filling {
    /// Each when it is first used.
    OnDemand,
    /// All at once (`MAP_POPULATE`).
    AtOnce,
}

/// What a page table had for a page whose access was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Nothing.
    Absent,
    /// An entry that did not allow the access. If there is none in the simulation, the kernel had
    /// mapped the page along with a neighbour, and it is read first.
    Refusing,
}

/// What becomes of a thread whose memory is not what it takes it for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refusals {
    /// The run ends, with the error.
    #[default]
    Fatal,
    /// It goes on with the next page, or the next operation: an access is a signal that it handles,
    /// and a change an error that it ignores. Threads of which one unmaps what another uses are
    /// sound then. An access, a move or a fork for which there is no memory ends the run all the
    /// same.
    Survived,
}

/// A thread's program: its steps in order.
pub type Steps = Box<dyn Iterator<Item = Operation>>;

/// What programs there are, and which of them run from the beginning.
pub trait Workload {
    /// Its name, with its parameters.
    fn name(&self) -> String;
    /// The processes that run from the beginning, each with one thread.
    fn processes(&self) -> Vec<Start>;
    /// The steps of a program.
    fn steps(&self, program: ProgramId) -> Steps;
}

/// A thread that runs from the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// What it does.
    pub program: ProgramId,
    /// The CPU to which it is bound, if it is.
    pub cpu: Option<usize>,
}
