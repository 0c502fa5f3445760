//! A process takes away and gives back the right to write.

use ostd::mm::PageFlags;

use super::{others, round_count};
use crate::measurement::{add_stale_reads, measure};
use crate::process::{FRESH, WORK, WRITTEN, map_fresh, process, touch_fresh, unmap};
use crate::readers::Readers;
use crate::scheduler::run_on;
use crate::user;

/// One other CPU runs the process; the rest have run it, and idle.
pub fn protect() {
    let space = process();
    let others = others();
    for &cpu in &others {
        run_on(cpu, &space, |space| {
            map_fresh(space, WORK, 1);
            touch_fresh(&mut user::thread(), WORK, 1);
            unmap(space, WORK, 1);
        });
    }
    let readers = Readers::start(&space, &others[..others.len().min(1)]);
    run_on(0, &space, |space| {
        map_fresh(space, WORK, 1);
        let mut user = user::thread();
        measure("protect", 2 * round_count() as u64, || {
            let mut expected = FRESH;
            for _ in 0..round_count() {
                let unmapped = |address| panic!("{address:#x} may not be written");
                let stale = user::touch(&mut user, WORK, 1, expected, WRITTEN, unmapped);
                add_stale_reads(stale);
                expected = WRITTEN;
                crate::process::protect(space, WORK, 1, PageFlags::R);
                crate::process::protect(space, WORK, 1, PageFlags::RW);
            }
        });
        unmap(space, WORK, 1);
    });
    readers.end();
}
