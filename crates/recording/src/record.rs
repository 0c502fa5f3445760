//! What a recording says, one record after the other.
//!
//! A recording keeps two things side by side: what a program asked of its memory and how its
//! threads were scheduled, which is what a replay does again; and what the kernel that ran it did
//! for it (flushes, interrupts), which is what a replay is judged by.

use core::fmt;

/// A task, by a number that the recording gave it.
///
/// Every thread of the recorded program has one; every address space of another program has one,
/// for all its threads; and [`TaskId::KERNEL`] stands for idle CPUs and for kernel threads, which
/// borrow whatever space is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u32);

impl TaskId {
    /// No thread of any program: a kernel thread, or the idle loop.
    pub const KERNEL: Self = Self(0);
}

/// An address space, by a number that the recording gave it, from 0 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpaceId(pub u32);

/// Whose a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The recorded program's.
    Recorded,
    /// Another program's.
    Other,
}

/// When, where, and what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Since the recording began. Never less than in the record before.
    pub time_ns: u64,
    /// The CPU on which it happened.
    pub cpu: u32,
    /// What happened. Where a task does something, it is the one that runs on `cpu`, as the last
    /// [`Event::Switch`] or [`Event::Running`] of that CPU says.
    pub event: Event,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// There is a task that was there before the recording began, or that belongs to another
    /// program and is seen for the first time.
    Task {
        /// Its number; the first task has 1, the next 2.
        task: TaskId,
        /// Whose it is.
        owner: Owner,
        /// The space it runs in.
        space: SpaceId,
        /// Its name, empty for other programs' tasks.
        name: String,
    },
    /// A task runs on this CPU: said where the recording begins, and after records were lost.
    Running {
        /// Which.
        task: TaskId,
    },
    /// The CPU went from the task that ran to another. (`sched_switch`)
    Switch {
        /// Which runs from now on.
        next: TaskId,
        /// How the one before was left.
        left: Left,
    },
    /// A task of the recorded program was woken. (`sched_waking`)
    Wake {
        /// Which.
        task: TaskId,
        /// By whom.
        by: Waker,
    },
    /// The running task made another. (`task_newtask`)
    Spawn {
        /// Which; numbered as in [`Event::Task`].
        task: TaskId,
        /// The space it runs in: its maker's, or a new one, which is a copy of that.
        space: SpaceId,
        /// Its name.
        name: String,
    },
    /// The running task began a new program in a space that is new. (`sched_process_exec`)
    Exec {
        /// The space.
        space: SpaceId,
        /// The task's name from now on.
        name: String,
    },
    /// The running task ended. (`sched_process_exit`)
    Exit,
    /// The running task made a system call that concerns memory. (`sys_enter_*`)
    Call(Call),
    /// The last [`Event::Call`] of the running task returned. (`sys_exit_*`)
    Return {
        /// What: an address, zero, or a negative error number.
        value: i64,
    },
    /// An access of the running task to a user address was refused by the MMU.
    /// (`page_fault_user`, `page_fault_kernel`)
    Fault {
        /// The address.
        address: u64,
        /// As x86 has it: see [`FaultCode`].
        code: FaultCode,
    },
    /// The kernel flushed this CPU's TLB, or asked for it on others. (`tlb_flush`)
    Flush {
        /// Why.
        reason: FlushReason,
        /// How many pages; `None` if all.
        pages: Option<u64>,
    },
    /// The kernel sent flush interrupts from this CPU.
    /// (`ipi_send_cpu`, `ipi_send_cpumask` for `flush_tlb_func`)
    Interrupts {
        /// To these CPUs, in ascending order.
        targets: Vec<u32>,
    },
    /// So many events of this CPU were lost here.
    Lost {
        /// How many; 0 if nobody knows.
        count: u64,
    },
}

/// How a task left its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Left {
    /// It could have run on: it was preempted, or gave way.
    Runnable,
    /// It waits for something.
    Blocked,
    /// It ended.
    Dead,
}

/// Who woke a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Waker {
    /// The task that runs on this CPU.
    Running,
    /// An interrupt: a timer, a device.
    Interrupt,
}

/// A system call that concerns memory, with its arguments as Linux got them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `mmap`.
    Map {
        /// Where it would like to, or must be.
        address: u64,
        /// In bytes.
        length: u64,
        /// `PROT_*`.
        protection: u32,
        /// `MAP_*`.
        flags: u32,
    },
    /// `munmap`.
    Unmap {
        /// From where.
        address: u64,
        /// In bytes.
        length: u64,
    },
    /// `mprotect`.
    Protect {
        /// From where.
        address: u64,
        /// In bytes.
        length: u64,
        /// `PROT_*`.
        protection: u32,
    },
    /// `madvise`.
    Advise {
        /// From where.
        address: u64,
        /// In bytes.
        length: u64,
        /// `MADV_*`.
        advice: u32,
    },
    /// `mremap`.
    Remap {
        /// From where.
        address: u64,
        /// In bytes.
        old_length: u64,
        /// In bytes.
        new_length: u64,
        /// `MREMAP_*`.
        flags: u32,
        /// To where, if the flags say that it is meant.
        new_address: u64,
    },
    /// `brk`.
    Break {
        /// The new end of the heap; 0 asks where it is.
        address: u64,
    },
}

/// Why a page fault was raised: the error code that x86 pushes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FaultCode(pub u32);

impl FaultCode {
    /// There was an entry, and it did not allow the access.
    #[must_use]
    pub const fn was_present(self) -> bool {
        self.0 & 1 != 0
    }
    /// It was a write.
    #[must_use]
    pub const fn is_write(self) -> bool {
        self.0 & 1 << 1 != 0
    }
    /// User mode did it; else the kernel, for the program.
    #[must_use]
    pub const fn is_user(self) -> bool {
        self.0 & 1 << 2 != 0
    }
    /// It was the fetch of an instruction.
    #[must_use]
    pub const fn is_fetch(self) -> bool {
        self.0 & 1 << 4 != 0
    }
}

impl fmt::Debug for FaultCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultCode({:#x})", self.0)
    }
}

/// What Linux's `tlb_flush` event gives as its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlushReason {
    /// Loading a space, whose tag was out of date.
    TaskSwitch,
    /// Another CPU asked for it, and this one did it.
    Remote,
    /// Of everything, on this CPU.
    Local,
    /// Of the space that is loaded, on this CPU, by the task that changed it.
    LocalSpace,
    /// This CPU is about to ask others: said before anyone is chosen.
    Request,
    /// Another CPU asked in vain: the space was not loaded.
    WrongCpu,
}
