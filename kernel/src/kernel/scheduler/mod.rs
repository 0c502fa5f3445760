//! The scheduler: threads, a queue of ready ones for each CPU, and what CPUs do without any.
//!
//! It places threads as the simulator's does, so that both can be compared: a thread stays on its
//! CPU; one that wakes goes to an idle CPU if its own is busy; an idle CPU takes a thread from the
//! longest queue; a thread whose timeslice is over goes to the end of its CPU's queue, on its way
//! back to user mode. No priorities, no preemption by who wakes, none in the kernel.
//!
//! All of it is under one lock, which is taken with interrupts masked, and held across the change
//! of stacks: so nobody finds a thread in a queue that is still on its CPU. It is not this
//! scheduler that is tested here.
//!
//! In reading order: `queues` is who is where; `thread` what a thread is made of; `switch` the
//! change from one to another, and idling; this file what threads ask for; `stall` who waits for
//! what, when nothing happens any more.

mod queues;
mod stall;
mod switch;
mod thread;

use alloc::boxed::Box;
use alloc::sync::Arc;

use crate::kernel::arch::{Arch, Architecture, Interrupt};
use crate::kernel::counts;
use crate::kernel::process::Process;
use crate::kernel::sync::{Mutex, masked};
use queues::{Queues, State};
use switch::leave_cpu;

pub(crate) use stall::watch;
pub(crate) use switch::{end_switch, load_space_of, run_cpu};
pub(crate) use thread::{Affinity, Stack, ThreadId, Waits};

use thread::{Body, Thread};

static QUEUES: Mutex<Option<Queues>> = Mutex::new(None);

/// What was decided when the kernel was started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// How many CPUs there are.
    pub(crate) cpus: u32,
    /// After how long a thread gives its CPU up to others.
    pub(crate) slice_ns: u64,
    /// How often a CPU that runs a thread looks up.
    pub(crate) tick_ns: u64,
    /// After how long without progress the run is given up.
    pub(crate) stall_ns: u64,
}

/// Makes the queues. Once, by the first CPU, before any other uses them.
pub(crate) fn set_up(settings: Settings) {
    *QUEUES.lock() = Some(Queues::new(settings));
}

/// Calls `f` with the queues, interrupts masked.
fn with_queues<R>(f: impl FnOnce(&mut Queues) -> R) -> R {
    masked(|| f(QUEUES.lock().as_mut().expect("they are made before they are used")))
}

/// Makes a thread of a process, or of the kernel alone, which is to run `body` as soon as it is
/// [woken](wake): so whoever is to find it can be told of it before it does anything.
pub(crate) fn create(
    process: Option<Arc<Process>>,
    affinity: Affinity,
    program: u32,
    body: impl FnOnce() + Send + 'static,
) -> ThreadId {
    let body: Body = Box::new(body);
    // Allocates what it can before anything is masked.
    let thread = Thread::new(process, affinity, program, body);
    with_queues(|queues| queues.add(thread))
}

/// The thread that runs this; `None` where a CPU idles, or starts.
pub(crate) fn current() -> Option<ThreadId> {
    masked(|| {
        let mut queues = QUEUES.lock();
        queues.as_mut()?.of(Arch::cpu()).current
    })
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
    poke(queues, target);
}

/// Has a CPU look at its queue, if it idles.
fn poke(queues: &mut Queues, target: u32) {
    if target != Arch::cpu() && queues.of(target).current.is_none() {
        counts::here().wake_interrupts_sent.add(1);
        Arch::send(&mut [target].into_iter(), Interrupt::Wake);
    }
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

/// Changes the process whose memory the calling thread uses, and loads its space.
pub(crate) fn set_process(process: Option<Arc<Process>>) {
    let before = masked(|| {
        let mut guard = QUEUES.lock();
        let queues = guard.as_mut().expect("a thread is running");
        let id = queues.of(Arch::cpu()).current.expect("a thread is running");
        let thread = queues.thread_mut(id);
        let before = core::mem::replace(&mut thread.process, process);
        load_space_of(thread.process.as_deref());
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
