//! What threads, and the timer's interrupt, ask of the scheduler.

use alloc::boxed::Box;
use core::mem;

use super::queues::{QUEUES, Queues, with_queues};
use super::switch::{end_switch, leave_cpu, load_space};
use super::thread::{Affinity, Body, State, Thread, ThreadId, Waits};
use crate::kernel::arch::{Arch, Architecture};
use crate::kernel::machine::SharedSpace;
use crate::kernel::sync::masked;

/// Makes a thread with a space, or of the kernel alone, which runs `body` as soon as it is
/// [woken](wake): so the caller can publish it before it does anything.
///
/// The space must be in use, not retired, until the thread has [another](set_space) or has ended.
pub(crate) fn create(
    space: Option<SharedSpace>,
    affinity: Affinity,
    program: u32,
    body: impl FnOnce() + Send + 'static,
) -> ThreadId {
    let body: Body = Box::new(body);
    // Allocates what it can before anything is masked.
    let thread = Thread::new(space, affinity, program, body);
    with_queues(|queues| queues.add(thread))
}

/// The thread that runs this; `None` where a CPU idles, or starts.
pub(crate) fn current() -> Option<ThreadId> {
    masked(|| QUEUES.lock().as_mut()?.of(Arch::cpu()).current)
}

/// Makes a blocked thread ready. One that is not has its next [`block`] return at once.
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

/// Blocks the calling thread until it is [woken](wake), perhaps for another reason than it waits
/// for. Who wakes it must have a way to find it before it blocks.
pub(crate) fn block(waits: Waits) {
    leave_cpu(State::Blocked, waits);
}

/// Blocks the calling thread for so long.
pub(crate) fn sleep(time_ns: u64) {
    let until_ns = Arch::now_ns().saturating_add(time_ns);
    while Arch::now_ns() < until_ns {
        with_queues(|queues| queues.sleep_until(Arch::cpu(), until_ns));
        block(Waits::Time(until_ns));
    }
}

/// Lets other threads of this CPU run, if there are any.
pub(crate) fn yield_now() {
    if !with_queues(|queues| queues.of(Arch::cpu()).ready.is_empty()) {
        leave_cpu(State::Ready, Waits::Turn);
    }
}

/// Where a thread returns to user mode: gives the CPU up if its timeslice is over and another
/// thread waits.
pub(crate) fn preemption_point() {
    let now_ns = Arch::now_ns();
    if with_queues(|queues| now_ns < queues.of(Arch::cpu()).slice_ends_ns) {
        return;
    }
    if current().is_some() {
        yield_now();
    }
    with_queues(|queues| {
        let slice_ns = queues.settings.slice_ns;
        queues.of(Arch::cpu()).slice_ends_ns = Arch::now_ns() + slice_ns;
        queues.set_timer(Arch::cpu());
    });
}

/// Moves the calling thread to a CPU, for ever or until it moves again.
pub(crate) fn migrate(cpu: u32) {
    let is_elsewhere = with_queues(|queues| {
        let Some(id) = queues.of(Arch::cpu()).current else { return false };
        queues.thread_mut(id).affinity = Affinity::Cpu(cpu);
        cpu != Arch::cpu()
    });
    if is_elsewhere {
        leave_cpu(State::Ready, Waits::Turn);
    }
}

/// Changes the space of the calling thread, and loads it; as [`create`].
pub(crate) fn set_space(space: Option<SharedSpace>) {
    let before = with_queues(|queues| {
        let id = queues.of(Arch::cpu()).current.expect("a thread is running");
        let thread = queues.thread_mut(id);
        let before = mem::replace(&mut thread.space, space);
        load_space(thread.space.as_ref());
        before
    });
    // Not under the lock: it may be the last to have it.
    drop(before);
    end_switch();
}

/// The timer's interrupt: wakes who has slept long enough.
pub(crate) fn tick() {
    with_queues(|queues| {
        let cpu = Arch::cpu();
        while let Some(id) = queues.take_sleeper(cpu, Arch::now_ns()) {
            wake_in(queues, id);
        }
        queues.set_timer(cpu);
    });
}
