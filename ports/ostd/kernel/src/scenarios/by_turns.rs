//! Many processes on each CPU take turns.

use alloc::sync::Arc;
use alloc::vec::Vec;

use ostd::cpu::num_cpus;
use ostd::mm::VmSpace;
use ostd::task::Task;

use crate::gate::Gate;
use crate::measurement::{add_stale_reads, is_counted, measure};
use crate::process::{FRESH, WORK, WRITTEN, map_fresh, process, unmap};
use crate::scheduler::spawn;
use crate::user;

/// Processes on each CPU.
const PROCESSES: usize = 4;

/// Turns of each thread. A turn is short, and CPUs contend for the framework's locks, so that with
/// fewer turns the counts differ by some percent from one order of events to another.
const TURNS_COUNTED: usize = 1000;

/// Turns of each thread if nothing is counted.
const TURNS: usize = 125;

/// Four processes for each CPU; then four that run on all CPUs.
pub fn switches() {
    let own = (0..PROCESSES * num_cpus()).map(|_| process()).collect();
    take_turns("switches", own);
    let shared: Vec<_> = (0..PROCESSES).map(|_| process()).collect();
    take_turns("switches-shared", shared);
}

fn take_turns(name: &str, processes: Vec<Arc<VmSpace>>) {
    let threads = PROCESSES * num_cpus();
    let turns = if is_counted() { TURNS_COUNTED } else { TURNS };
    let [ready, go, done] = [(); 3].map(|()| Arc::new(Gate::default()));
    for thread in 0..threads {
        let cpu = thread % num_cpus();
        let space = processes[thread * processes.len() / threads].clone();
        let (its_space, ready, go, done) = (space.clone(), ready.clone(), go.clone(), done.clone());
        spawn(cpu, Some(&space), move || {
            run_turns(&its_space, cpu, turns, &ready, &go);
            done.arrive();
        });
    }
    ready.wait_for(threads);
    measure(name, (threads * turns) as u64, || {
        go.arrive();
        done.wait_for(threads);
    });
}

/// Writes to a page in each turn, and replaces it in every eighth.
fn run_turns(space: &VmSpace, cpu: usize, turns: usize, ready: &Gate, go: &Gate) {
    const REPLACED_EACH: usize = 8;
    let mut user = user::thread();
    let own = WORK + cpu * 0x1_0000;
    map_fresh(space, own, 1);
    ready.arrive();
    go.spin_until(1);
    let mut expected = FRESH;
    for turn in 1..=turns {
        let unmapped = |address| panic!("{address:#x} is not mapped");
        add_stale_reads(user::touch(&mut user, own, 1, expected, WRITTEN, unmapped));
        expected = WRITTEN;
        if turn % REPLACED_EACH == 0 {
            unmap(space, own, 1);
            map_fresh(space, own, 1);
            expected = FRESH;
        }
        Task::yield_now();
    }
    unmap(space, own, 1);
}
