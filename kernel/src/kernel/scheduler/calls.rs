//! Operations of the scheduler for threads and for the timer's handler.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::mem;

use super::queues::{QUEUES, Queues, with_queues};
use super::switch::{end_switch, leave_cpu, load_space};
use super::thread::{Affinity, Body, State, Thread, ThreadId, ThreadSpace, WaitReason};
use crate::kernel::arch::{Arch, Architecture};
use crate::kernel::sync::masked;

/// Creates a thread of `space`, or a kernel thread if that is `None`. The thread runs `body` once
/// it is [woken](wake), so the caller can publish its number first.
///
/// The space must not be retired until the thread has switched to [another](set_space) or has
/// ended.
pub(crate) fn create(
    space: Option<Arc<dyn ThreadSpace>>,
    affinity: Affinity,
    program: u32,
    body: impl FnOnce() + Send + 'static,
) -> ThreadId {
    let body: Body = Box::new(body);
    // Allocate before interrupts are masked.
    let thread = Thread::new(space, affinity, program, body);
    with_queues(|queues| queues.add(thread))
}

/// The thread that this CPU runs; `None` in the idle loop and at boot.
pub(crate) fn current() -> Option<ThreadId> {
    masked(|| QUEUES.lock().as_mut()?.cpu(Arch::cpu()).current)
}

/// Makes a blocked thread ready. If the thread is not blocked, its next [`block`] returns
/// immediately.
pub(crate) fn wake(id: ThreadId) {
    with_queues(|queues| wake_in(queues, id));
}

fn wake_in(queues: &mut Queues, id: ThreadId) {
    let thread = queues.thread_mut(id);
    if thread.state != State::Blocked {
        thread.is_woken = true;
        return;
    }
    let target = queues.enqueue(id);
    queues.kick(target);
}

/// Blocks the calling thread until it is [woken](wake). It may be woken for another reason than
/// `reason`. Before the thread blocks, the thread that will wake it must be able to find it.
pub(crate) fn block(reason: WaitReason) {
    leave_cpu(State::Blocked, reason);
}

/// Blocks the calling thread for at least `time_ns`.
pub(crate) fn sleep(time_ns: u64) {
    let until_ns = Arch::now_ns().saturating_add(time_ns);
    while Arch::now_ns() < until_ns {
        with_queues(|queues| queues.sleep_until(Arch::cpu(), until_ns));
        block(WaitReason::Time(until_ns));
    }
}

/// Lets the other ready threads of this CPU run first, if there are any.
pub(crate) fn yield_now() {
    if !with_queues(|queues| queues.cpu(Arch::cpu()).ready.is_empty()) {
        leave_cpu(State::Ready, WaitReason::Turn);
    }
}

/// Yields the CPU if the thread's timeslice is over and another thread is ready. Call this where a
/// thread returns to user mode.
pub(crate) fn preemption_point() {
    let now_ns = Arch::now_ns();
    if with_queues(|queues| now_ns < queues.cpu(Arch::cpu()).slice_ends_ns) {
        return;
    }
    if current().is_some() {
        yield_now();
    }
    with_queues(|queues| {
        let slice_ns = queues.settings.slice_ns;
        queues.cpu(Arch::cpu()).slice_ends_ns = Arch::now_ns() + slice_ns;
        queues.set_timer(Arch::cpu());
    });
}

/// Moves the calling thread to `cpu`, where it stays until it moves again.
pub(crate) fn migrate(cpu: u32) {
    let is_elsewhere = with_queues(|queues| {
        let Some(id) = queues.cpu(Arch::cpu()).current else { return false };
        queues.thread_mut(id).affinity = Affinity::Cpu(cpu);
        cpu != Arch::cpu()
    });
    if is_elsewhere {
        leave_cpu(State::Ready, WaitReason::Turn);
    }
}

/// Changes the space of the calling thread and loads it. [`create`] has the contract of the space.
pub(crate) fn set_space(space: Option<Arc<dyn ThreadSpace>>) {
    let before = with_queues(|queues| {
        let id = queues.cpu(Arch::cpu()).current.expect("a thread is running");
        let thread = queues.thread_mut(id);
        let before = mem::replace(&mut thread.space, space);
        load_space(thread.space.as_deref());
        before
    });
    // Drop the old space after the lock is released: this may be the last reference to it.
    drop(before);
    end_switch();
}

/// Handles the timer's interrupt: wakes the threads whose sleep is over.
pub(crate) fn tick() {
    with_queues(|queues| {
        let cpu = Arch::cpu();
        while let Some(id) = queues.pop_sleeper(cpu, Arch::now_ns()) {
            wake_in(queues, id);
        }
        queues.set_timer(cpu);
    });
}
