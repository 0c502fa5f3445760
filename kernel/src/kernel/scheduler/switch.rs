//! The change from one thread to another, and what a CPU does without any.

#![expect(unsafe_code, reason = "changes stacks, and holds a lock across that")]

use core::mem;

use shootdown_vm::Scheduling as _;

use super::queues::{Next, QUEUES, Queues, with_queues};
use super::thread::{Stack, State, ThreadId, Waits};
use super::watchdog;
use crate::kernel::arch::{Arch, Architecture};
use crate::kernel::coherence::Engine;
use crate::kernel::machine::SharedSpace;

/// Gives this CPU to the next thread, or to none. Returns when the calling thread runs again,
/// perhaps on another CPU; or at once, if it was to block and has been woken.
pub(super) fn leave_cpu(to_be: State, waits: Waits) {
    let were_masked = Arch::interrupts_masked();
    Arch::mask_interrupts();
    let mut guard = QUEUES.lock();
    let queues = guard.as_mut().expect("a thread is running");
    let cpu = Arch::cpu();
    let id = queues.of(cpu).current.expect("a thread is running");
    let thread = queues.thread_mut(id);
    if to_be == State::Blocked && mem::take(&mut thread.is_woken) {
        drop(guard);
        if !were_masked {
            Arch::unmask_interrupts();
        }
        return;
    }
    (thread.state, thread.waits) = (to_be, waits);
    assert!(thread.stack.as_ref().is_none_or(Stack::is_whole), "the stack of {id:?} is too small");
    let next = queues.pick(cpu);
    queues.make_current(cpu, next);
    match to_be {
        State::Ready => {
            let target = queues.enqueue(id);
            queues.kick(target);
        }
        State::Done => {
            queues.unfinished -= 1;
            // It is in use for a moment longer.
            let stack = queues.thread_mut(id).stack.take();
            queues.of(cpu).dead_stack = stack;
        }
        State::Blocked | State::Running => {}
    }
    let to = stack_pointer_of(queues, cpu, next);
    let from = &raw mut queues.thread_mut(id).stack_pointer;
    // Whoever runs next lets go of the lock.
    mem::forget(guard);
    // SAFETY: `to` was left, or made, under the lock that we hold, and is in no queue any more;
    // threads do not move under the lock.
    unsafe { Arch::switch_stack(from, to) };
    // SAFETY: whoever went on with us has left it locked.
    unsafe { QUEUES.force_unlock() };
    end_switch();
}

/// Loads the space of who is about to run, and returns where its stack is.
fn stack_pointer_of(queues: &mut Queues, cpu: u32, next: Option<ThreadId>) -> usize {
    let Some(id) = next else {
        load_space(None);
        return queues.of(cpu).idle_stack_pointer;
    };
    let thread = queues.thread_mut(id);
    load_space(thread.space.as_ref());
    if thread.body.is_some() {
        let stack = thread.stack.as_ref().expect("it has not ended");
        // SAFETY: nobody has used it yet.
        thread.stack_pointer = unsafe { Arch::new_stack(stack.end(), begin, id.0 as usize) };
    }
    thread.stack_pointer
}

/// Makes a space current on this CPU, or none.
pub(crate) fn load_space(space: Option<&SharedSpace>) {
    match space {
        // SAFETY: a thread has a space for no longer than that is in use: see `create`. It is
        // retired before its page tables are freed.
        Some(space) => unsafe { Engine.switch(space) },
        None => Engine.enter_lazy(),
    }
}

/// On the other side of a switch: lets interrupts in again, and does what could not be done in the
/// middle of it.
pub(super) fn end_switch() {
    let (dead_stack, next, after_switch) = with_queues(|queues| {
        let per_cpu = queues.of(Arch::cpu());
        let (dead_stack, current) = (per_cpu.dead_stack.take(), per_cpu.current);
        let has_space = current.is_some_and(|id| queues.thread(id).space.is_some());
        let next = if has_space { Next::Space } else { Next::NoSpace };
        (dead_stack, next, queues.after_switch)
    });
    Arch::unmask_interrupts();
    drop(dead_stack);
    after_switch(next);
}

/// Where a thread begins, with interrupts masked and the queues locked.
extern "C" fn begin(number: usize) -> ! {
    // SAFETY: whoever went on with us has left it locked.
    unsafe { QUEUES.force_unlock() };
    let body = with_queues(|queues| queues.thread_mut(ThreadId(number as u32)).body.take());
    end_switch();
    if let Some(body) = body {
        body();
    }
    leave_cpu(State::Done, Waits::Turn);
    unreachable!("a thread that is done is in no queue");
}

/// The idle loop of a CPU, which is set up, with interrupts masked.
pub(crate) fn run_cpu() -> ! {
    loop {
        let mut guard = QUEUES.lock();
        let queues = guard.as_mut().expect("they are made before CPUs start");
        let cpu = Arch::cpu();
        let Some(next) = queues.pick(cpu) else {
            let is_deadlocked = queues.is_deadlocked();
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
        let from = &raw mut queues.of(cpu).idle_stack_pointer;
        mem::forget(guard);
        // SAFETY: as in `leave_cpu`; CPUs' queues do not move.
        unsafe { Arch::switch_stack(from, to) };
        // SAFETY: as in `leave_cpu`.
        unsafe { QUEUES.force_unlock() };
        end_switch();
        Arch::mask_interrupts();
    }
}
