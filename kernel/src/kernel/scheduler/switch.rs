//! Switching from one thread to another, and the idle loop.

#![expect(unsafe_code, reason = "changes stacks, and holds a lock across the change")]

use core::mem;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use shootdown_vm::Scheduling as _;

use super::queues::{Next, QUEUES, Queues, with_queues};
use super::thread::{Stack, State, ThreadId, ThreadSpace, WaitReason};
use super::watchdog;
use crate::kernel::arch::{Arch, Architecture};
use crate::kernel::coherence::Engine;

/// Switches this CPU from the calling thread, whose state becomes `to_be`, to the next thread or to
/// the idle loop. Returns when the calling thread runs again, perhaps on another CPU. If the thread
/// was to block and has already been woken, returns immediately.
pub(super) fn leave_cpu(to_be: State, reason: WaitReason) {
    let were_masked = Arch::interrupts_masked();
    Arch::mask_interrupts();
    let mut guard = QUEUES.lock();
    let queues = guard.as_mut().expect("a thread is running");
    let cpu = Arch::cpu();
    let id = queues.cpu(cpu).current.expect("a thread is running");
    let thread = queues.thread_mut(id);
    if to_be == State::Blocked && mem::take(&mut thread.is_woken) {
        drop(guard);
        if !were_masked {
            Arch::unmask_interrupts();
        }
        return;
    }
    (thread.state, thread.wait_reason) = (to_be, reason);
    assert!(thread.stack.as_ref().is_none_or(Stack::is_whole), "{id:?} has overflowed its stack");
    let next = queues.pick(cpu);
    queues.make_current(cpu, next);
    match to_be {
        State::Ready => {
            let target = queues.enqueue(id);
            queues.kick(target);
        }
        State::Done => {
            queues.unfinished -= 1;
            // The stack is in use until the switch.
            let stack = queues.thread_mut(id).stack.take();
            queues.cpu(cpu).dead_stack = stack;
        }
        State::Blocked | State::Running => {}
    }
    let to = stack_pointer_of(queues, cpu, next);
    let from = &raw mut queues.thread_mut(id).stack_pointer;
    // The code that runs next unlocks the queues.
    mem::forget(guard);
    // SAFETY: `switch_stack` or `new_stack` made `to` under the lock that this CPU holds. The
    // thread of `to` is in no queue any more, and threads do not move in memory under the lock.
    unsafe { Arch::switch_stack(from, to) };
    // SAFETY: the CPU that switched back to this thread has locked the queues.
    unsafe { QUEUES.force_unlock() };
    end_switch();
}

/// Loads the space of the code that runs next, and returns the stack pointer of that code.
fn stack_pointer_of(queues: &mut Queues, cpu: u32, next: Option<ThreadId>) -> usize {
    let Some(id) = next else {
        load_space(None);
        return queues.cpu(cpu).idle_stack_pointer;
    };
    let thread = queues.thread_mut(id);
    load_space(thread.space.as_deref());
    if thread.body.is_some() {
        let stack = thread.stack.as_ref().expect("the thread has not ended");
        // SAFETY: nothing has used the stack yet.
        thread.stack_pointer = unsafe { Arch::new_stack(stack.end(), begin, id.0 as usize) };
    }
    thread.stack_pointer
}

/// Makes a space current on this CPU. With `None`, the CPU becomes lazy.
pub(crate) fn load_space(space: Option<&dyn ThreadSpace>) {
    match space {
        // SAFETY: the space is not retired before its threads have switched to another or ended:
        // see `create`. It is retired before its page tables are freed.
        Some(space) => unsafe { space.switch_here() },
        None => Engine.enter_lazy(),
    }
}

/// Completes a switch: enables interrupts, frees the stack of a thread that has ended, and calls
/// `after_switch`.
pub(super) fn end_switch() {
    let (dead_stack, next, after_switch) = with_queues(|queues| {
        let per_cpu = queues.cpu(Arch::cpu());
        let (dead_stack, current) = (per_cpu.dead_stack.take(), per_cpu.current);
        let has_space = current.is_some_and(|id| queues.thread(id).space.is_some());
        let next = if has_space { Next::Space } else { Next::NoSpace };
        (dead_stack, next, queues.after_switch)
    });
    Arch::unmask_interrupts();
    drop(dead_stack);
    IN_AFTER_SWITCH.fetch_add(1, Relaxed);
    after_switch(next);
    IN_AFTER_SWITCH.fetch_sub(1, Relaxed);
}

/// Number of CPUs in `after_switch`. An idle CPU may have a lock there, for which threads wait. It
/// releases the lock, and wakes them, before it leaves. Relaxed: a CPU that finds a thread blocked
/// for the lock also finds the count, because the two CPUs have locked the lock's guard, and
/// because the thread is woken, with the queues locked, before the count is decreased.
static IN_AFTER_SWITCH: AtomicUsize = AtomicUsize::new(0);

/// The beginning of each thread, with interrupts masked and the queues locked.
extern "C" fn begin(number: usize) -> ! {
    // SAFETY: the CPU that switched to this thread has locked the queues.
    unsafe { QUEUES.force_unlock() };
    let body = with_queues(|queues| queues.thread_mut(ThreadId(number as u32)).body.take());
    end_switch();
    if let Some(body) = body {
        body();
    }
    leave_cpu(State::Done, WaitReason::Turn);
    unreachable!("a thread that is done is in no queue");
}

/// The idle loop of a CPU. Call this with interrupts masked, when the CPU is set up.
pub(crate) fn run_cpu() -> ! {
    loop {
        let mut guard = QUEUES.lock();
        let queues = guard.as_mut().expect("`set_up` has run");
        let cpu = Arch::cpu();
        let Some(next) = queues.pick(cpu) else {
            let is_deadlocked = queues.is_deadlocked() && IN_AFTER_SWITCH.load(Relaxed) == 0;
            queues.set_timer(cpu);
            drop(guard);
            if is_deadlocked {
                watchdog::give_up("deadlock");
            }
            Arch::wait_for_interrupt();
            continue;
        };
        queues.make_current(cpu, Some(next));
        let to = stack_pointer_of(queues, cpu, Some(next));
        let from = &raw mut queues.cpu(cpu).idle_stack_pointer;
        mem::forget(guard);
        // SAFETY: see `leave_cpu`. The queues of CPUs do not move in memory.
        unsafe { Arch::switch_stack(from, to) };
        // SAFETY: see `leave_cpu`.
        unsafe { QUEUES.force_unlock() };
        end_switch();
        Arch::mask_interrupts();
    }
}
