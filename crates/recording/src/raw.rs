//! The trace events of Linux, independent of their source: the ring buffers of tracefs, the text of
//! `trace-cmd report`, or the text of `perf script`. Threads have Linux's own numbers here.

use super::record::{Call, FaultCode, FlushReason, Frame, Left};

/// The number that Linux gives a thread (`gettid`). 0 is the idle loop of any CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tid(pub u32);

/// An event. A source delivers its events in the order of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawEvent {
    /// Time on a clock that all CPUs share, in nanoseconds.
    pub time_ns: u64,
    /// The CPU on which the event happened.
    pub cpu: u32,
    /// The thread that ran on the CPU. An interrupt may have interrupted it.
    pub tid: Tid,
    /// The context in which the event happened.
    pub during: During,
    /// The event itself, with its fields.
    pub kind: RawKind,
}

/// The context of the kernel in which an event happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum During {
    /// The kernel ran on behalf of the thread.
    Task,
    /// The kernel handled an interrupt, which is unrelated to the thread.
    Interrupt,
}

/// The kind of an event, named after Linux's tracepoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawKind {
    /// `sched_switch`
    Switch {
        /// State of the previous thread.
        left: Left,
        /// The thread that runs next.
        next: Tid,
        /// Name of the next thread.
        next_name: String,
    },
    /// `sched_waking`
    Waking {
        /// The thread that is woken.
        tid: Tid,
    },
    /// `sched_wakeup`: a thread is put into the run queue of a CPU.
    Queued {
        /// The thread.
        tid: Tid,
        /// The CPU that has the run queue.
        target: u32,
    },
    /// `task_newtask`, or `sched_process_fork`, which lacks the flags.
    NewTask {
        /// The new thread.
        tid: Tid,
        /// `CLONE_*`; `None` if the event lacks them.
        clone_flags: Option<u64>,
        /// Name of the new thread.
        name: String,
    },
    /// `sched_process_exec`
    Exec {
        /// Path of the file that is executed.
        file: String,
    },
    /// `sched_process_exit`
    Exit,
    /// `sys_enter_*` of a call that concerns memory.
    Enter(Call),
    /// `sys_exit_*` of a call that concerns memory.
    Return {
        /// Value that the call returned.
        value: i64,
    },
    /// `page_fault_user`, `page_fault_kernel`
    Fault {
        /// Address of the access.
        address: u64,
        /// Error code of x86.
        code: FaultCode,
    },
    /// `tlb_flush`
    Flush {
        /// Reason that the kernel gave.
        reason: FlushReason,
        /// Number of pages; `None` for all pages.
        pages: Option<u64>,
    },
    /// `csd_queue_cpu`: a function is queued to be called on another CPU.
    QueueCall {
        /// The function.
        function: Function,
        /// The other CPU.
        target: u32,
    },
    /// `ipi_send_cpu`, `ipi_send_cpumask`
    Ipi {
        /// The target CPUs, in ascending order.
        targets: Vec<u32>,
        /// The caller that sent the interrupt.
        site: CallSite,
    },
    /// The call stack of the last `tlb_flush` of this CPU that requests a flush.
    Stack {
        /// The calls, the innermost first.
        frames: Vec<Frame>,
        /// Number of requests for which the sample stands.
        requests: u64,
    },
    /// The names of calls that were not known when their stacks were sampled.
    Names {
        /// The calls as they were recorded, and with their names.
        names: Vec<(Frame, Frame)>,
    },
    /// The kernel's own counter of this CPU (see [`Event::Counted`](super::record::Event)).
    Counted {
        /// Number of flushes that other CPUs requested, since the system was started.
        requests: u64,
    },
    /// The source lost events of this CPU before this one.
    Lost {
        /// Number of lost events; 0 if the source did not count them.
        count: u64,
    },
}

/// A function that another CPU is requested to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Function {
    /// `flush_tlb_func`, which flushes an address space.
    FlushSpace,
    /// Any other function.
    Other,
}

/// The caller that sent an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallSite {
    /// `smp_call_function_many_cond`, or a function that it is inlined into: one of its callers
    /// flushes TLBs. Or `shootdown_os_ring`, of the engine in Linux.
    CallFunction,
    /// Any other caller, such as a wake-up.
    Other,
}
