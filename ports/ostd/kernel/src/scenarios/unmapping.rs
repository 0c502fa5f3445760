//! A process maps pages, writes to them in user mode, and unmaps them. Other CPUs have run the
//! process, or run it now.

use alloc::sync::Arc;

use ostd::cpu::num_cpus;
use ostd::mm::{Vaddr, VmSpace};

use super::{others, round_count};
use crate::gate::Gate;
use crate::measurement::measure;
use crate::process::{WORK, map_fresh, process, touch_fresh, unmap, unmap_without_wait};
use crate::readers::Readers;
use crate::scheduler::{run_on, spawn};
use crate::user;

/// An address whose page table maps nothing else.
const OWN_TABLE: Vaddr = 0x8000_0000;

fn rounds(space: &VmSpace, address: Vaddr, pages: usize, rounds: usize) {
    let mut user = user::thread();
    for _ in 0..rounds {
        map_fresh(space, address, pages);
        touch_fresh(&mut user, address, pages);
        assert_eq!(unmap(space, address, pages), pages);
    }
}

fn measure_rounds(name: &str, space: &VmSpace, pages: usize) {
    measure(name, round_count() as u64, || rounds(space, WORK, pages, round_count()));
}

/// Unmaps a page together with its page table.
fn rounds_with_table(space: &VmSpace) {
    /// A cursor over no more than one page table keeps the table.
    const TWO_TABLES: usize = 1024;
    let mut user = user::thread();
    for _ in 0..round_count() {
        map_fresh(space, OWN_TABLE, 1);
        touch_fresh(&mut user, OWN_TABLE, 1);
        assert_eq!(unmap(space, OWN_TABLE, TWO_TABLES), 1);
    }
}

/// No other CPU has run the process.
pub fn alone() {
    run_on(0, &process(), |space| measure_rounds("alone", space, 1));
}

/// A thread of the process sleeps on every other CPU, which idles.
pub fn idle() {
    let space = process();
    let readers = Readers::start(&space, &others());
    readers.park();
    run_on(0, &space, |space| {
        measure_rounds("idle", space, 1);
        measure_rounds("idle-16", space, 16);
        measure("idle-tables", round_count() as u64, || rounds_with_table(space));
    });
    // The other CPUs come back to the process, and catch up.
    for &cpu in &others() {
        run_on(cpu, &space, |space| rounds(space, WORK, 1, 1));
    }
    readers.end();
}

/// A thread of the process runs in user mode on every other CPU.
pub fn active() {
    let space = process();
    let readers = Readers::start(&space, &others());
    run_on(0, &space, |space| {
        measure_rounds("active", space, 1);
        measure_rounds("active-16", space, 16);
    });
    readers.end();
}

/// As [`active`], but the process does not wait for its flushes.
pub fn unwaited() {
    let space = process();
    let readers = Readers::start(&space, &others());
    run_on(0, &space, |space| {
        measure("unwaited", round_count() as u64, || {
            let mut user = user::thread();
            for _ in 0..round_count() {
                map_fresh(space, WORK, 1);
                touch_fresh(&mut user, WORK, 1);
                unmap_without_wait(space, WORK, 1);
            }
        });
    });
    readers.end();
}

/// The process runs on one CPU after the other.
pub fn moved() {
    let space = process();
    let names = ["moved-0", "moved-1", "moved-2", "moved-3"];
    for (cpu, name) in names.into_iter().enumerate().take(num_cpus()) {
        run_on(cpu, &space, |space| measure_rounds(name, space, 1));
    }
}

/// Threads of one process on all CPUs unmap at the same time, each its own page.
pub fn storm() {
    let (space, cpus) = (process(), num_cpus());
    let [ready, go, done] = [(); 3].map(|()| Arc::new(Gate::default()));
    for cpu in 0..cpus {
        let (its_space, ready, go, done) = (space.clone(), ready.clone(), go.clone(), done.clone());
        spawn(cpu, Some(&space), move || {
            let own = 0x1000_0000 * (cpu + 8);
            rounds(&its_space, own, 1, 1);
            ready.arrive();
            go.spin_until(1);
            rounds(&its_space, own, 1, round_count());
            done.arrive();
        });
    }
    ready.wait_for(cpus);
    measure("storm", (cpus * round_count()) as u64, || {
        go.arrive();
        done.wait_for(cpus);
    });
}
