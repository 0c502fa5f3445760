//! The scheduler: threads, a queue of ready ones for each CPU, and what CPUs do without any.
//!
//! It places threads as the simulator's does, so that both can be compared: a thread stays on its
//! CPU; one that wakes goes to an idle CPU if its own is busy; an idle CPU takes a thread from the
//! longest queue; a thread whose timeslice is over goes to the end of its CPU's queue, on its way
//! back to user mode. There are no priorities; a thread that wakes preempts none, and no thread is
//! preempted in the kernel.
//!
//! All of it is under one lock, which is taken with interrupts masked, and held across the change
//! of stacks: so no CPU finds a thread in a queue that is still running on another. It is not this
//! scheduler that is tested here.
//!
//! It knows spaces, and no processes: a thread has a space that its CPU loads when it runs.

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
pub(crate) use queues::{Next, Settings, set_up};
pub(crate) use sleeping_lock::SleepingLock;
pub(crate) use switch::{load_space, run_cpu};
pub(crate) use thread::{Affinity, Stack, ThreadId, Waits};
pub(crate) use watchdog::watch;
