//! The watchdog: when nothing happens any more, prints what each thread waits for, and ends the
//! run.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::queues::{QUEUES, Queues};
use super::thread::State;
use crate::kernel::arch::{Arch, Architecture, Status};
use crate::kernel::console::println;
use crate::kernel::counts;
use crate::kernel::end::end;
use crate::kernel::sync::masked;

/// What had been done when it was last more than before, and when that was.
static DONE: AtomicU64 = AtomicU64::new(0);
static DONE_AT_NS: AtomicU64 = AtomicU64::new(0);

/// Called by the timer of the first CPU, now and then: gives up if no thread has done a step, been
/// in user mode or gone to sleep for too long.
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

/// Whether nothing but a thread that sleeps is waited for.
fn sleeps() -> bool {
    // While the lock is held, something happens.
    QUEUES.try_lock().is_some_and(|guard| guard.as_ref().is_some_and(Queues::only_sleeps))
}

/// Prints what every thread waits for, and ends the run.
pub(super) fn give_up(why: &str) -> ! {
    masked(|| {
        println!("error {why}: threads wait for ever");
        // If it is locked for ever, that is what went wrong.
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
            id.0, thread.program, thread.cpu, thread.state, thread.waits,
        );
    }
}
