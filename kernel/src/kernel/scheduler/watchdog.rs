//! The watchdog: if no thread makes progress, prints the event for which each thread waits, and
//! ends the run.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::queues::{QUEUES, Queues};
use super::thread::State;
use crate::kernel::arch::{Arch, Architecture, Status};
use crate::kernel::console::println;
use crate::kernel::counts;
use crate::kernel::end::end;
use crate::kernel::sync::masked;

/// The sum of all CPUs' progress counters when it last changed, and the time of that change.
static DONE: AtomicU64 = AtomicU64::new(0);
static DONE_AT_NS: AtomicU64 = AtomicU64::new(0);

/// Ends the run if no thread has executed a step, entered user mode or been switched to for
/// `stall_ns`. The first CPU calls this from its timer's handler.
pub(crate) fn watch(cpus: u32, stall_ns: u64) {
    let of = |cpu| {
        let counts = counts::of(cpu);
        counts.steps.read() + counts.user_runs.read() + counts.switches.read()
    };
    let (done, now_ns) = ((0..cpus).map(of).sum(), Arch::now_ns());
    if DONE.swap(done, Relaxed) != done || DONE_AT_NS.load(Relaxed) == 0 || sleeps() {
        DONE_AT_NS.store(now_ns, Relaxed);
    } else if now_ns - DONE_AT_NS.load(Relaxed) > stall_ns {
        give_up("no progress");
    }
}

/// Returns `true` if threads only wait for a thread that sleeps.
fn sleeps() -> bool {
    // If the lock is held, another CPU is making progress.
    QUEUES.try_lock().is_some_and(|guard| guard.as_ref().is_some_and(Queues::only_sleeps))
}

/// Prints the event for which each thread waits, and ends the run.
pub(super) fn give_up(why: &str) -> ! {
    masked(|| {
        println!("error {why}: threads wait for ever");
        // If the lock is held for ever, that is the error.
        match QUEUES.try_lock() {
            Some(guard) => guard.iter().for_each(print),
            None => println!("error the scheduler's lock is held"),
        }
        end(Status::Failed)
    })
}

fn print(queues: &Queues) {
    let unfinished = queues.threads().filter(|(_, thread)| thread.state != State::Done);
    for (id, thread) in unfinished.take(64) {
        println!(
            "error thread={} program={} cpu={} {:?}, waits for {}",
            id.0, thread.program, thread.cpu, thread.state, thread.wait_reason,
        );
    }
}
