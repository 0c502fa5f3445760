//! A process forks: its child runs on another CPU and ends, and the parent copies what it writes.

use super::others;
use crate::measurement::{add_stale_reads, measure};
use crate::process::{
    FRESH, WORK, WRITTEN, copy_on_write, fork, map_fresh, process, touch_fresh, unmap,
};
use crate::readers::Readers;
use crate::scheduler::run_on;
use crate::user;

const FORKS: usize = 50;
const PAGES: usize = 16;

/// The parent's other threads sleep on the other CPUs.
pub fn forks() {
    let space = process();
    let readers = Readers::start(&space, &others());
    readers.park();
    run_on(0, &space, |space| {
        let mut user = user::thread();
        map_fresh(space, WORK, PAGES);
        touch_fresh(&mut user, WORK, PAGES);
        measure("forks", FORKS as u64, || {
            let mut contents = WRITTEN;
            for _ in 0..FORKS {
                let child = fork(space, WORK, PAGES);
                let last = others().last().copied().unwrap_or(0);
                let (expected, next) = (contents, contents + 1);
                // The child finds the contents of the fork, whatever the parent writes.
                let of_child = move |child: &alloc::sync::Arc<ostd::mm::VmSpace>| {
                    let on_fault = |address| copy_on_write(child, address);
                    let stale =
                        user::touch(&mut user::thread(), WORK, PAGES, expected, FRESH, on_fault);
                    add_stale_reads(stale);
                };
                let on_fault = |address| copy_on_write(space, address);
                let stale = user::touch(&mut user, WORK, PAGES, expected, next, on_fault);
                add_stale_reads(stale);
                run_on(last, &child, of_child);
                contents = next;
            }
        });
        unmap(space, WORK, PAGES);
    });
    readers.end();
}
