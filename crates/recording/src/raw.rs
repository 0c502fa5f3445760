//! What Linux's trace events say, whichever way they reached us: the ring buffers of tracefs, the
//! text of `trace-cmd report`, or that of `perf script`. Tasks have Linux's own numbers here.

use super::record::{Call, FaultCode, FlushReason, Left};

/// A thread, by Linux's number for it (`gettid`); 0 is the idle loop of any CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tid(pub u32);

/// An event, in the order of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawEvent {
    /// On any clock that all CPUs share.
    pub time_ns: u64,
    /// Where it happened.
    pub cpu: u32,
    /// The thread that ran there, perhaps interrupted.
    pub tid: Tid,
    /// What it was interrupted by, if it was.
    pub during: During,
    /// What happened.
    pub kind: RawKind,
}

/// In which context of the kernel an event happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum During {
    /// On behalf of the thread.
    Task,
    /// In an interrupt, which has nothing to do with the thread.
    Interrupt,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawKind {
    /// `sched_switch`
    Switch {
        /// How the thread before was left.
        left: Left,
        /// The thread that runs next.
        next: Tid,
        /// Its name.
        next_name: String,
    },
    /// `sched_waking`
    Waking {
        /// Which thread is woken.
        tid: Tid,
    },
    /// `sched_wakeup`: a thread was put into a CPU's queue.
    Queued {
        /// Which thread.
        tid: Tid,
        /// Whose queue.
        target: u32,
    },
    /// `task_newtask`; or `sched_process_fork`, which does not say the flags.
    NewTask {
        /// The new thread.
        tid: Tid,
        /// `CLONE_*`, if they are known.
        clone_flags: Option<u64>,
        /// Its name.
        name: String,
    },
    /// `sched_process_exec`
    Exec {
        /// The file that is executed.
        file: String,
    },
    /// `sched_process_exit`
    Exit,
    /// `sys_enter_*` of a call that concerns memory.
    Enter(Call),
    /// `sys_exit_*` of such a call.
    Return {
        /// What it returned.
        value: i64,
    },
    /// `page_fault_user`, `page_fault_kernel`
    Fault {
        /// The address.
        address: u64,
        /// x86's error code.
        code: FaultCode,
    },
    /// `tlb_flush`
    Flush {
        /// Why.
        reason: FlushReason,
        /// How many pages; `None` if all.
        pages: Option<u64>,
    },
    /// `csd_queue_cpu`: a function is queued to be called on another CPU.
    QueueCall {
        /// Whether it is Linux's `flush_tlb_func`.
        function: Function,
    },
    /// `ipi_send_cpu`, `ipi_send_cpumask`
    Ipi {
        /// The targets, in ascending order.
        targets: Vec<u32>,
        /// What sent it.
        site: CallSite,
    },
    /// The source lost so many events of this CPU before this one; 0 if nobody knows how many.
    Lost {
        /// How many.
        count: u64,
    },
}

/// What another CPU is asked to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Function {
    /// `flush_tlb_func`: flush a space.
    FlushSpace,
    /// Anything else.
    Other,
}

/// What sent an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallSite {
    /// `smp_call_function_many_cond`, inlined or not: one of its callers flushes TLBs.
    CallFunction,
    /// Anything else, such as a wake-up.
    Other,
}
