//! The scheduler: threads, a queue of ready threads for each CPU, and the idle loop.
//!
//! It places threads as the simulator's scheduler does, so that the two can be compared:
//!
//! - A thread stays on its CPU. A thread that wakes goes to an idle CPU if its own CPU is busy.
//! - An idle CPU takes a thread from the longest queue.
//! - A thread whose timeslice is over goes to the end of its CPU's queue, on its way back to user
//!   mode.
//! - There are no priorities. A thread that wakes preempts no other thread, and no thread is
//!   preempted in the kernel.
//!
//! One lock protects the whole scheduler. It is taken with interrupts masked and held across the
//! change of stacks, so that no CPU finds a thread in a queue while the thread still runs on
//! another CPU. The scheduler is simple because it is not what the kernel tests.
//!
//! The scheduler does not know processes. Each thread has a [space](ThreadSpace), which a CPU loads
//! when it runs the thread.

// In reading order.
mod thread;
mod queues;
mod watchdog;
mod switch;
mod calls;
mod sleeping_lock;

pub(crate) use calls::{
    block, create, current, migrate, preemption_point, set_space, sleep, tick, wake, yield_now,
};
pub(crate) use queues::{Next, set_up};
pub(crate) use sleeping_lock::SleepingLock;
pub(crate) use switch::{load_space, run_cpu};
pub(crate) use thread::{Affinity, Stack, ThreadId, ThreadSpace, WaitReason};
pub(crate) use watchdog::watch;
