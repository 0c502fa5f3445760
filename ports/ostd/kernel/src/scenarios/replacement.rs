//! A page that others read is replaced, and the old one gets another owner.

use core::sync::atomic::Ordering::SeqCst;

use ostd::mm::PageFlags;

use super::{NOTIFIES, others, round_count};
use crate::measurement::{Measurement, spin};
use crate::process::{FRESH, POISON, SHARED, fill, map, page, process, unmap};
use crate::readers::Readers;
use crate::scheduler::run_on;

/// Ticks for which each state lasts, so that every reader observes it.
const UNTIL_READ: u64 = 50_000;

pub fn replaces() {
    let space = process();
    let others = others();
    let readers = Readers::start(&space, &others);
    run_on(0, &space, |space| {
        let mut measurement = Measurement::start();
        measurement.stop();
        for _ in 0..round_count() {
            spin(UNTIL_READ);
            let old = crate::process::mapped(space, SHARED).expect("the page was mapped");
            measurement.resume();
            unmap(space, SHARED, 1);
            measurement.stop();
            fill(&old, POISON);
            spin(UNTIL_READ);
            map(space, SHARED, page(FRESH), PageFlags::RW);
        }
        measurement.print("replaces", round_count() as u64);
    });
    let faults = readers.end();
    let expected = if NOTIFIES.load(SeqCst) { others.len() } else { 0 };
    assert!(faults >= expected, "readers do not read the page that is unmapped");
}
