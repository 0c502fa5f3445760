//! Linux 7.0, case by case: what `flush_tlb_func` and `should_flush_tlb` do, with counts worked out
//! by hand. Cases 2 and 7 of the handler need batches (`batch.rs`), and 3 and 4 global tags
//! (`invlpgb.rs`).

use std::rc::Rc;

use crate::rig::Rig;
use shootdown_designs::Linux70;
use shootdown_vm::Freed::{Pages, Tables};

fn rig(cpus: usize) -> Rc<Rig<Linux70>> {
    Rig::new(cpus, Linux70::new)
}

/// Interrupts sent, full flushes, ranged flushes, pages.
fn counts(rig: &Rig<Linux70>) -> (u64, u64, u64, u64) {
    let counts = rig.sim.counts();
    (counts.interrupts_sent, counts.flushes_full, counts.flushes_ranged, counts.pages_invalidated)
}

/// Every first load of a space under a tag discards: one full flush each, in what follows.
#[test]
fn case_8_a_cpu_that_is_one_behind_invalidates_the_pages() {
    let rig = rig(2);
    rig.thread(0, 0, |rig| {
        rig.until(50);
        rig.flush(0, 3..6, Pages);
    });
    rig.thread(1, 0, |rig| rig.until(100));
    rig.run();
    // Two loads; each of the two CPUs drops three pages.
    assert_eq!(counts(&rig), (1, 2, 2, 6));
}

#[test]
fn case_9_more_than_33_pages_are_all_of_them() {
    let rig = rig(2);
    rig.thread(0, 0, |rig| {
        rig.until(50);
        rig.flush(0, 0..33, Pages);
        rig.flush(0, 0..34, Pages);
    });
    rig.thread(1, 0, |rig| rig.until(100));
    rig.run();
    assert_eq!(counts(&rig), (2, 2 + 2, 2, 66));
}

#[test]
fn case_9_and_6_two_flushes_at_once_are_one_full_flush_and_one_early_return() {
    let rig = rig(3);
    for cpu in [0, 1] {
        rig.thread(cpu, 0, move |rig| {
            rig.until(50);
            rig.flush(0, cpu as u64..cpu as u64 + 1, Pages);
        });
    }
    rig.thread(2, 0, |rig| {
        rig.until(40);
        // Both have counted when it looks: it is behind by two.
        rig.sim.mask();
        rig.until(60);
        rig.sim.unmask();
        rig.until(100);
    });
    rig.run();
    // Each flusher sends to two; CPU 2's queue was not empty when the second came. All are behind
    // by two when they look, the flushers included: three full flushes after the three loads, and
    // whoever looks again returns early.
    assert_eq!(counts(&rig), (3, 3 + 3, 0, 0));
}

#[test]
fn case_5_a_lazy_cpu_is_told_of_freed_tables_alone_and_then_switches_to_the_kernel() {
    let rig = rig(2);
    rig.thread(1, 0, |rig| rig.until(10));
    rig.thread(0, 0, |rig| {
        rig.until(50);
        rig.flush(0, 0..1, Pages);
        assert_eq!(rig.sim.counts().interrupts_sent, 0, "CPU 1 is lazy");
        rig.flush(0, 0..1, Tables);
        assert_eq!(rig.sim.counts().interrupts_sent, 1);
        assert_eq!(rig.sim.counts().interrupts_to_lazy, 1);
        // It is in the mask still, and told again; only now does it take itself out (case 1).
        rig.flush(0, 0..1, Tables);
        assert_eq!(rig.sim.counts().interrupts_sent, 2);
        rig.flush(0, 0..1, Tables);
        assert_eq!(rig.sim.counts().interrupts_sent, 2);
    });
    rig.run();
    assert_eq!(rig.sim.counts_of(1).flushes_full, 1, "the first load, and nothing else");
}

#[test]
fn case_1_who_is_elsewhere_is_told_once_a_second_and_leaves_the_mask() {
    let rig = rig(2);
    rig.thread(1, 0, |rig| rig.until(10));
    rig.thread(1, 1, |rig| rig.until(2_500_000));
    rig.thread(0, 0, |rig| {
        for (ms, sent) in [(1, 0), (900, 0), (1100, 1), (1200, 1), (2300, 1)] {
            rig.until(ms * 1000);
            rig.flush(0, 0..1, Pages);
            assert_eq!(rig.sim.counts().interrupts_sent, sent, "after {ms} ms");
        }
    });
    rig.run();
}

#[test]
fn a_cpu_that_comes_back_from_lazy_drops_everything_if_it_missed_a_flush() {
    for (missed, full) in [(0, 1), (1, 2)] {
        let rig = rig(2);
        let sleeper = Rc::clone(&rig);
        rig.thread(1, 0, move |rig| {
            rig.touch(0..8);
            sleeper.sleep_until(50, 1);
            rig.touch(0..8);
        });
        rig.thread(0, 0, move |rig| {
            rig.until(30);
            for _ in 0..missed {
                rig.flush(0, 20..21, Pages);
            }
            rig.until(100);
        });
        rig.run();
        assert_eq!(rig.sim.counts().interrupts_sent, 0);
        assert_eq!(rig.sim.counts_of(1).flushes_full, full);
        let refills = if missed == 0 { 0 } else { 8 };
        assert_eq!(rig.sim.counts_of(1).walks, 8 + refills);
    }
}

#[test]
fn a_tag_that_is_current_is_kept_and_one_that_is_behind_is_dropped() {
    for (flushed, kept) in [(1, 1), (0, 0)] {
        let rig = rig(3);
        // CPU 1 alternates between the spaces: 0, 1, 0.
        let sleeper = Rc::clone(&rig);
        rig.thread(1, 0, move |rig| {
            rig.touch(0..4);
            sleeper.sleep_until(60, 2);
            rig.touch(0..4);
        });
        rig.thread(1, 1, |rig| rig.until(50));
        rig.thread(0, 1, move |rig| {
            rig.until(40);
            // Of space 0, or of one that does not matter here.
            rig.flush(flushed, 0..1, Pages);
        });
        rig.run();
        assert_eq!(rig.sim.counts_of(1).root_loads_kept, kept);
    }
}
