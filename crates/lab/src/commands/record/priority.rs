//! The priorities of the recorder's threads.

use rustix::process::setpriority_process;
use rustix::thread::{Pid, gettid};
use thread_priority::{
    RealtimeThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id,
};

/// Above all priorities that programs use in practice. The kernel's own threads use 99.
const REAL_TIME: u8 = 98;
/// The highest ordinary priority (`nice`), and a low one: a tenth of the time of a program.
const HIGHEST: i32 = -20;
const LOW: i32 = 10;

/// Raises the calling thread above the recorded programs, also above those with real-time
/// priority, because it must empty the kernel's buffers before they overflow. Returns `false` if
/// the kernel refuses.
///
/// Threads and processes that the thread creates afterwards inherit the priority.
pub(super) fn raise() -> bool {
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    let real_time = ThreadPriority::from_posix(thread_priority::ScheduleParams {
        sched_priority: REAL_TIME.into(),
    });
    set_thread_priority_and_policy(thread_native_id(), real_time, policy).is_ok()
        || setpriority_process(None, HIGHEST).is_ok()
}

/// A thread whose priority another thread changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Background(Pid);

impl Background {
    /// Leaves the calling thread as it is: a user waits for what it computes.
    pub(super) fn ordinary() -> Self {
        Self(gettid())
    }

    /// Lowers the calling thread below programs of ordinary priority.
    pub(super) fn enter() -> Self {
        let thread = gettid();
        // A thread that cannot be lowered only disturbs more.
        let _ = setpriority_process(Some(thread), LOW);
        Self(thread)
    }

    /// Raises the thread above ordinary programs, because it falls behind.
    pub(super) fn hurry(self) {
        // Without the right to do so, the thread remains slow, and lost events are counted.
        let _ = setpriority_process(Some(self.0), HIGHEST);
    }
}
