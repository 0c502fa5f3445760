//! Linux 7.0, case by case: the behaviour of `flush_tlb_func` and `should_flush_tlb`, with counts
//! calculated by hand. For cases 2 and 7 of the handler, which need batches, see `batch.rs`; for
//! cases 3 and 4, which need global tags, see `invlpgb.rs`.

use std::rc::Rc;

use crate::rig::Rig;
use shootdown_designs::Linux70;
use shootdown_sim::Sim;
use shootdown_vm::Freed::{Pages, Tables};

fn rig(cpus: usize) -> Rc<Rig<Linux70>> {
    Rig::new(cpus, Linux70::uncounted)
}

/// Interrupts sent, full flushes, ranged flushes, and pages invalidated.
fn counts(rig: &Rig<Linux70>) -> (u64, u64, u64, u64) {
    let counts = rig.sim.counts();
    (counts.interrupts_sent, counts.flushes_full, counts.flushes_ranged, counts.pages_invalidated)
}

/// The first load of a space under a tag discards, which counts as one full flush in these tests.
#[test]
fn case_8_cpu_one_flush_behind_invalidates_pages() {
    let rig = rig(2);
    rig.thread(0, 0, |rig| {
        rig.until(50);
        rig.flush(0, 3..6, Pages);
    });
    rig.thread(1, 0, |rig| rig.until(100));
    rig.run();
    // Each of the two CPUs loads the space, and drops three pages.
    assert_eq!(counts(&rig), (1, 2, 2, 6));
}

#[test]
fn case_9_over_33_pages_flush_everything() {
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
fn case_9_and_6_concurrent_flushes_merge() {
    let rig = rig(3);
    for cpu in [0, 1] {
        rig.thread(cpu, 0, move |rig| {
            rig.until(50);
            rig.flush(0, cpu as u64..cpu as u64 + 1, Pages);
        });
    }
    rig.thread(2, 0, |rig| {
        rig.until(40);
        // Both flushes are counted before this CPU handles the first: it is two generations behind.
        rig.sim.mask();
        rig.until(60);
        rig.sim.unmask();
        rig.until(100);
    });
    rig.run();
    // Each flusher interrupts two CPUs, but CPU 2's queue was not empty for the second call. All
    // CPUs are two generations behind when they handle a flush, including the flushers. So there
    // are three full flushes after the three loads, and the handler returns early for the second
    // flush.
    assert_eq!(counts(&rig), (3, 3 + 3, 0, 0));
}

#[test]
fn case_5_lazy_cpu_leaves_for_freed_tables() {
    let rig = rig(2);
    rig.thread(1, 0, |rig| rig.until(10));
    rig.thread(0, 0, |rig| {
        rig.until(50);
        rig.flush(0, 0..1, Pages);
        assert_eq!(rig.sim.counts().interrupts_sent, 0, "CPU 1 is lazy");
        rig.flush(0, 0..1, Tables);
        assert_eq!(rig.sim.counts().interrupts_sent, 1);
        assert_eq!(rig.sim.counts().interrupts_to_lazy, 1);
        // The CPU is still in the mask and is interrupted again. Only now it removes itself (case
        // 1).
        rig.flush(0, 0..1, Tables);
        assert_eq!(rig.sim.counts().interrupts_sent, 2);
        rig.flush(0, 0..1, Tables);
        assert_eq!(rig.sim.counts().interrupts_sent, 2);
    });
    rig.run();
    assert_eq!(rig.sim.counts_of(1).flushes_full, 1, "only the first load");
}

#[test]
fn case_1_absent_cpu_is_trimmed_once_a_second() {
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
fn lazy_cpu_catches_up_on_switch() {
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
fn current_tag_is_kept_and_stale_tag_dropped() {
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
            // Of space 0, or of space 1, which does not affect CPU 1's tag for space 0.
            rig.flush(flushed, 0..1, Pages);
        });
        rig.run();
        assert_eq!(rig.sim.counts_of(1).root_loads_kept, kept);
    }
}

/// Until 6.13, a CPU left the mask when it switched.
#[test]
fn absent_cpu_is_asked_for_freed_tables_but_not_by_6_12() {
    let sent = |design: fn(Rc<Sim>) -> Linux70| {
        let rig = Rig::new(2, design);
        rig.thread(1, 0, |rig| rig.until(10));
        rig.thread(1, 1, |rig| rig.until(2_000));
        rig.thread(0, 0, |rig| {
            rig.until(1_000);
            rig.flush(0, 0..1, Tables);
        });
        rig.run();
        rig.sim.counts().interrupts_sent
    };
    assert_eq!((sent(Linux70::uncounted), sent(Linux70::clearing_at_switch)), (1, 0));
}

/// A lazy CPU has the space loaded, and stays in the mask in both.
#[test]
fn lazy_cpu_is_asked_for_freed_tables_by_6_12_as_well() {
    let rig = Rig::new(2, Linux70::clearing_at_switch);
    rig.thread(1, 0, |rig| rig.until(10));
    rig.thread(0, 0, |rig| {
        rig.until(50);
        rig.flush(0, 0..1, Pages);
        rig.flush(0, 0..1, Tables);
    });
    rig.run();
    assert_eq!(rig.sim.counts().interrupts_sent, 1);
}
