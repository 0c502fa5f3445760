//! The records of a recording.
//!
//! A recording contains two things side by side. The first is the program's operations on memory
//! and the scheduling of its threads; a replay repeats them. The second is the flushes and the
//! interrupts of the kernel that ran the program; they measure the fidelity of a replay.

/// The number that the recording gives a task.
///
/// Each thread of the recorded program is a task. Each address space of another program is one
/// task, which stands for all its threads. [`TaskId::KERNEL`] stands for idle CPUs and for kernel
/// threads, which borrow the address space that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u32);

impl TaskId {
    /// A kernel thread, or the idle loop. It is not a thread of a program.
    pub const KERNEL: Self = Self(0);
}

/// The number that the recording gives an address space. The first address space is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpaceId(pub u32);

/// The number that the recording gives a call in call stacks. A number stands for the call with all
/// its callers, so that stacks with the same callers share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub u32);

impl FrameId {
    /// No call: the caller of the outermost call. The first call is 1.
    pub const NONE: Self = Self(0);
}

/// A function in a call stack, and the place from which it calls the next one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Kernel or program.
    pub layer: Layer,
    /// Name of the function.
    pub function: String,
    /// The source file, or the executable or library if the source is not known; empty for the
    /// kernel.
    pub file: String,
    /// The line in the source file; 0 if it is not known.
    pub line: u32,
}

/// The half of the address space that a function belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layer {
    /// The kernel.
    Kernel,
    /// The program.
    User,
}

/// The program that a task belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The recorded program.
    Recorded,
    /// Another program.
    Other,
}

/// An event, with its time and its CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Nanoseconds since the recording began. Never less than the time of the previous record.
    pub time_ns: u64,
    /// The CPU on which the event happened.
    pub cpu: u32,
    /// The event. If a task performs it, the task is the one that runs on `cpu` according to the
    /// last [`Event::Switch`] or [`Event::Running`] of that CPU.
    pub event: Event,
}

/// An event of a recording. The name in parentheses is Linux's tracepoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Introduces a task that existed before the recording began, or a task of another program
    /// that is observed for the first time.
    Task {
        /// Number of the task. The first task is 1, the next one 2.
        task: TaskId,
        /// The program that the task belongs to.
        owner: Owner,
        /// The address space in which the task runs.
        space: SpaceId,
        /// Name of the task; empty for tasks of other programs.
        name: String,
    },
    /// A task runs on this CPU. Recorded at the beginning, and after records were lost.
    Running {
        /// The task.
        task: TaskId,
    },
    /// The CPU switched from the running task to another task. (`sched_switch`)
    Switch {
        /// The task that runs from now on.
        next: TaskId,
        /// State of the previous task.
        left: Left,
    },
    /// A task of the recorded program was woken. (`sched_waking`)
    Wake {
        /// The task that was woken.
        task: TaskId,
        /// The context that woke it.
        by: Waker,
    },
    /// The running task created another task. (`task_newtask`)
    Spawn {
        /// The new task, numbered as in [`Event::Task`].
        task: TaskId,
        /// The address space in which the new task runs: the creator's, or a new copy of it.
        space: SpaceId,
        /// Name of the new task.
        name: String,
    },
    /// The running task executed a program in a new address space. (`sched_process_exec`)
    Exec {
        /// The new address space.
        space: SpaceId,
        /// Name of the task from now on.
        name: String,
    },
    /// The running task ended. (`sched_process_exit`)
    Exit,
    /// The running task made a system call that concerns memory. (`sys_enter_*`)
    Call(Call),
    /// The last [`Event::Call`] of the running task returned. (`sys_exit_*`)
    Return {
        /// An address, zero, or a negative error number.
        value: i64,
    },
    /// The MMU refused an access of the running task to a user address.
    /// (`page_fault_user`, `page_fault_kernel`)
    Fault {
        /// Address of the access.
        address: u64,
        /// Error code of the fault.
        code: FaultCode,
    },
    /// The kernel flushed this CPU's TLB, or requested a flush on other CPUs. (`tlb_flush`)
    Flush {
        /// Reason that the kernel gave.
        reason: FlushReason,
        /// Number of pages; `None` for all pages.
        pages: Option<u64>,
    },
    /// The kernel sent flush interrupts from this CPU.
    /// (`ipi_send_cpu`, `ipi_send_cpumask` for `flush_tlb_func`)
    Interrupts {
        /// The target CPUs, in ascending order.
        targets: Vec<u32>,
    },
    /// The running task, or an interrupt, requested a flush from other CPUs. A target that already
    /// had a call in its queue is not interrupted again, so it is in no [`Event::Interrupts`].
    /// (`csd_queue_cpu` for `flush_tlb_func`)
    Requests {
        /// The target CPUs, in ascending order.
        targets: Vec<u32>,
    },
    /// Introduces a call of call stacks.
    Frame {
        /// Number of the call. The first call is 1, the next one 2.
        frame: FrameId,
        /// The call that called this function.
        caller: FrameId,
        /// The function.
        function: Frame,
    },
    /// The call stack of this CPU's last flush request ([`Event::Flush`] with
    /// [`FlushReason::Request`]). Only some requests have one: stacks are sampled.
    Stack {
        /// The innermost call.
        frame: FrameId,
        /// Number of requests for which the sample stands: those since the last sample on this CPU,
        /// with this one.
        requests: u64,
    },
    /// Names a call whose function was not known when the call was introduced: JIT compilers may
    /// write the names of their functions when the program ends.
    Name {
        /// Number of the call.
        frame: FrameId,
        /// Name of the function.
        function: String,
        /// The source file, or empty if it is not known.
        file: String,
    },
    /// The kernel's own counter of this CPU, which needs no tracing. Recorded when the recording
    /// begins and when it ends. (`TLB` of `/proc/interrupts`)
    Counted {
        /// Number of flushes that this CPU has performed because others requested them, since the
        /// system was started.
        requests: u64,
    },
    /// Events of this CPU were lost here.
    Lost {
        /// Number of lost events; 0 if the number is unknown.
        count: u64,
    },
}

/// The state of a task that leaves its CPU (`prev_state` of `sched_switch`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Left {
    /// The task could have continued: it was preempted, or it yielded.
    Runnable,
    /// The task waits for an event.
    Blocked,
    /// The task ended.
    Dead,
}

/// The context that woke a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Waker {
    /// The task that runs on this CPU.
    Running,
    /// An interrupt, such as that of a timer or a device.
    Interrupt,
}

/// A system call that concerns memory, with the arguments that Linux received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `mmap`.
    Map {
        /// Address that the caller requests or, with `MAP_FIXED`, requires.
        address: u64,
        /// Number of bytes.
        length: u64,
        /// Permissions, as bits `PROT_*`.
        protection: u32,
        /// Flags, as bits `MAP_*`.
        flags: u32,
    },
    /// `munmap`.
    Unmap {
        /// First address.
        address: u64,
        /// Number of bytes.
        length: u64,
    },
    /// `mprotect`.
    Protect {
        /// First address.
        address: u64,
        /// Number of bytes.
        length: u64,
        /// Permissions, as bits `PROT_*`.
        protection: u32,
    },
    /// `madvise`.
    Advise {
        /// First address.
        address: u64,
        /// Number of bytes.
        length: u64,
        /// `MADV_*`.
        advice: u32,
    },
    /// `mremap`.
    Remap {
        /// First address.
        address: u64,
        /// Number of bytes before the call.
        old_length: u64,
        /// Number of bytes after the call.
        new_length: u64,
        /// `MREMAP_*`.
        flags: u32,
        /// Destination; meaningful only if `flags` requests one.
        new_address: u64,
    },
    /// `msync`.
    Sync {
        /// First address.
        address: u64,
        /// Number of bytes.
        length: u64,
        /// `MS_*`.
        flags: u32,
    },
    /// `brk`.
    Break {
        /// The new end of the heap; 0 queries the current end.
        address: u64,
    },
}

/// The reason for a page fault: the error code that x86 pushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FaultCode(pub u32);

impl FaultCode {
    /// Returns `true` if the page table had an entry, which did not permit the access.
    #[must_use]
    pub const fn was_present(self) -> bool {
        self.0 & 1 != 0
    }
    /// Returns `true` if the program made the access, and `false` if the kernel made it.
    #[must_use]
    pub const fn is_user(self) -> bool {
        self.0 & 1 << 2 != 0
    }
    /// Returns `true` if the access was a write.
    #[must_use]
    pub const fn is_write(self) -> bool {
        self.0 & 1 << 1 != 0
    }
}

/// The reason that Linux's `tlb_flush` event gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlushReason {
    /// The CPU loaded an address space whose TLB tag was out of date.
    TaskSwitch,
    /// This CPU flushed because another CPU requested it.
    Remote,
    /// This CPU flushed its whole TLB.
    Local,
    /// The task that changed the loaded address space flushed it on this CPU.
    LocalSpace,
    /// This CPU is about to request a flush on other CPUs. Linux traces this before it selects the
    /// targets.
    Request,
    /// Another CPU requested the flush of an address space that was not loaded here.
    WrongCpu,
}
