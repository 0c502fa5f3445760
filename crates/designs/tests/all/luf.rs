//! Linux with LUF: batches of clean pages that wait until their frames are needed.

use crate::rig::{Batch, Rig};
use shootdown_designs::Linux70;

/// Runs readers of space 0 on CPUs 1 and 2, while CPU 0 reclaims pages 0 to 2, each in a batch of
/// its own. Checks the interrupts that were sent after each step.
#[test]
fn one_flush_stands_for_all_batches_that_waited() {
    let rig = Rig::new(3, Linux70::luf);
    for cpu in [1, 2] {
        rig.thread(cpu, 0, |rig| {
            rig.touch(0..4);
            rig.until(500);
            assert_eq!(rig.faults(0..4), [0, 1, 2], "the pages are gone");
        });
    }
    rig.kernel_thread(0, |rig| {
        rig.until(100);
        let sent = || rig.sim.counts().interrupts_sent;
        let reclaim = |page| {
            let mut batch = Batch::new();
            rig.reclaim(&mut batch, 0, page..page + 1);
            rig.defer_batch(batch)
        };
        let [first, second] = [0, 1].map(reclaim);
        assert_eq!(sent(), 0, "the batches wait");
        assert!(rig.is_batched(0));
        rig.complete_batch(first);
        assert_eq!(sent(), 2);
        rig.complete_batch(second);
        assert_eq!(sent(), 2, "the flush of the first covers the second");
        let third = reclaim(2);
        rig.complete_batch(third);
        assert_eq!(sent(), 4, "the third was unmapped after that flush");
    });
    rig.run();
}

/// A flush that does not wait covers batches that do.
#[test]
fn flush_of_another_batch_covers_waiting_ones() {
    let rig = Rig::new(2, Linux70::luf);
    rig.thread(1, 0, |rig| {
        rig.touch(0..4);
        rig.until(500);
        assert_eq!(rig.faults(0..4), [0, 1]);
    });
    rig.kernel_thread(0, |rig| {
        rig.until(100);
        let (mut clean, mut written) = (Batch::new(), Batch::new());
        rig.reclaim(&mut clean, 0, 0..1);
        let clean = rig.defer_batch(clean);
        rig.reclaim(&mut written, 0, 1..2);
        rig.flush_batch(written);
        rig.complete_batch(clean);
        assert_eq!(rig.sim.counts().interrupts_sent, 1);
    });
    rig.run();
}
