//! LATR: the CPUs that an `munmap` interrupts, and the time until its flush is complete, with
//! counts calculated by hand; no use of unmapped pages after that; and broken rules, which the
//! oracle must detect.

use std::cell::RefCell;
use std::rc::Rc;

use crate::rig::{Rig, Unmapped};
use shootdown_designs::linux::v4_12::latr::RING_STATES;
use shootdown_designs::{Latr, LatrRule};
use shootdown_sim::ViolationKind;

/// The results when CPU 0 unmaps pages, CPU 1 runs the same space or has run it, and CPU 2 ticks in
/// another space.
struct Outcome {
    /// Time until the flush was complete, in microseconds; `None` if it never was.
    complete_after_us: Option<u64>,
    interrupts_sent: u64,
    interrupts_taken: u64,
    pages_invalidated: u64,
    violations: Vec<ViolationKind>,
}

/// CPU 1's steps after it has used the pages, until 5 ms. The pages are unmapped at 1.1 ms.
type During = fn(&Rc<Rig<Latr>>);

fn unmap_while(during: During, broken: Option<LatrRule>) -> Outcome {
    let rig = Rig::new(8, |sim| Latr::with_broken_rule(sim, broken));
    let whole = Rc::clone(&rig);
    rig.thread(1, 0, move |rig| {
        rig.touch(0..8);
        during(&whole);
        rig.touch(3..8);
    });
    rig.thread(2, 1, |rig| rig.until(5000));
    let complete_after_us = Rc::new(RefCell::new(None));
    let result = Rc::clone(&complete_after_us);
    rig.thread(0, 0, move |rig| {
        rig.touch(0..8);
        rig.until(1100);
        let began = rig.sim.now();
        let Some(unmapped) = rig.unmap_later(0, 0..3) else { return rig.until(5000) };
        while !rig.is_complete(&unmapped) && rig.sim.now().us() < 4900. {
            rig.sim.spin_hint();
        }
        if rig.is_complete(&unmapped) {
            result.replace(Some((rig.sim.now() - began).us() as u64));
            rig.complete(unmapped);
        }
        rig.until(5000);
    });
    rig.run_unchecked();
    let target = rig.sim.counts_of(1);
    Outcome {
        complete_after_us: complete_after_us.take(),
        interrupts_sent: rig.sim.counts().interrupts_sent,
        interrupts_taken: target.interrupts_taken,
        pages_invalidated: target.pages_invalidated,
        violations: rig.sim.first_violations().iter().map(|first| first.kind).collect(),
    }
}

fn computes(rig: &Rc<Rig<Latr>>) {
    rig.until(5000);
}

/// Continues to use the unmapped pages, as an incorrect program may.
fn uses_unmapped_pages(rig: &Rc<Rig<Latr>>) {
    for us in [1200, 1900, 4500] {
        rig.until(us);
        let faulted = rig.faults(0..3);
        assert!(faulted.is_empty() || faulted == [0, 1, 2]);
    }
    rig.until(5000);
}

/// Yields to a kernel thread, which runs from 1.3 ms to 4.9 ms.
fn yields_to_kernel_thread(rig: &Rc<Rig<Latr>>) {
    rig.until(1300);
    rig.kernel_thread(1, |rig| rig.until(4900));
    rig.sim.yield_now();
    rig.until(5000);
}

/// Yields to a thread of the same space, which runs from 1.3 ms to 4.9 ms.
fn yields_to_sibling(rig: &Rc<Rig<Latr>>) {
    rig.until(1300);
    rig.thread(1, 0, |rig| rig.until(4900));
    rig.sim.yield_now();
    rig.until(5000);
}

/// Idles from the start to 4.9 ms.
fn idles(rig: &Rc<Rig<Latr>>) {
    rig.sleep_until(4900, 5);
    rig.until(5000);
}

#[test]
fn busy_cpu_sweeps_at_next_tick() {
    let outcome = unmap_while(computes, None);
    assert_eq!(outcome.interrupts_sent, 0);
    // Pages are unmapped at 1.1 ms, and the next tick is at 2 ms.
    let complete_after_us = outcome.complete_after_us.unwrap();
    assert!((899..=902).contains(&complete_after_us), "{complete_after_us}");
    assert_eq!(outcome.pages_invalidated, 3);
    assert_eq!(outcome.violations, []);
}

#[test]
fn switching_cpu_sweeps_at_the_switch() {
    for during in [yields_to_kernel_thread as During, yields_to_sibling] {
        let outcome = unmap_while(during, None);
        assert_eq!(outcome.interrupts_sent, 0);
        let complete_after_us = outcome.complete_after_us.unwrap();
        assert!((200..=210).contains(&complete_after_us), "{complete_after_us}");
        assert_eq!(outcome.violations, []);
    }
}

#[test]
fn idle_cpu_is_interrupted_after_two_ticks() {
    let outcome = unmap_while(idles, None);
    assert_eq!((outcome.interrupts_sent, outcome.interrupts_taken), (1, 1));
    // Pages are unmapped at 1.1 ms. At 3 ms that is 1.9 ms ago, and at 4 ms too long ago.
    let complete_after_us = outcome.complete_after_us.unwrap();
    assert!((2899..=2905).contains(&complete_after_us), "{complete_after_us}");
    assert_eq!(outcome.pages_invalidated, 3);
    assert_eq!(outcome.violations, []);
}

#[test]
fn unmapped_pages_stay_unused_until_complete() {
    let outcome = unmap_while(uses_unmapped_pages, None);
    assert_eq!(outcome.interrupts_sent, 0);
    assert_eq!(outcome.violations, []);
}

#[test]
fn oracle_detects_reuse_before_sweeps() {
    let outcome = unmap_while(uses_unmapped_pages, Some(LatrRule::WaitForSweeps));
    assert!(!outcome.violations.is_empty());
}

#[test]
fn oracle_detects_sweep_without_invalidation() {
    let outcome = unmap_while(uses_unmapped_pages, Some(LatrRule::InvalidateOnSweep));
    assert!(!outcome.violations.is_empty());
}

#[test]
fn uninterrupted_idle_cpu_blocks_completion() {
    let outcome = unmap_while(idles, Some(LatrRule::InterruptIdle));
    assert_eq!(outcome.complete_after_us, None);
}

#[test]
fn forced_completion_interrupts_other_cpus() {
    let rig = Rig::new(4, Latr::new);
    for cpu in [1, 2] {
        rig.thread(cpu, 0, |rig| {
            rig.touch(0..8);
            rig.until(900);
        });
    }
    rig.thread(0, 0, |rig| {
        rig.touch(0..8);
        rig.until(100);
        let unmapped = rig.unmap_later(0, 0..3).unwrap();
        let interrupts_sent = || rig.sim.counts().interrupts_sent;
        assert!(!rig.is_complete(&unmapped));
        assert_eq!(interrupts_sent(), 0);
        rig.complete(unmapped);
        assert_eq!(interrupts_sent(), 2);
        assert!(rig.sim.now().us() < 120.);
    });
    rig.run();
}

#[test]
fn completing_cpu_sweeps_for_itself() {
    let rig = Rig::new(4, Latr::new);
    let deferred = Rc::new(RefCell::new(None));
    let unmapped = Rc::clone(&deferred);
    rig.thread(1, 0, move |rig| {
        rig.touch(0..8);
        rig.until(200);
        rig.complete(unmapped.take().unwrap());
        assert_eq!(rig.sim.counts().interrupts_sent, 0);
        assert_eq!(rig.faults(0..8), [0, 1, 2]);
    });
    rig.thread(0, 0, move |rig| {
        rig.touch(0..8);
        rig.until(100);
        deferred.replace(rig.unmap_later(0, 0..3));
        rig.until(900);
    });
    rig.run();
}

#[test]
fn full_ring_interrupts_other_cpus() {
    let rig = Rig::new(4, Latr::new);
    rig.thread(1, 0, |rig| {
        rig.touch(0..64);
        rig.until(900);
    });
    rig.thread(0, 0, |rig| {
        rig.touch(0..64);
        rig.until(100);
        let mut all: Vec<Unmapped<_>> = Vec::new();
        assert_eq!(RING_STATES, 64);
        all.extend((0..63).map(|page| rig.unmap_later(0, page..page + 1).unwrap()));
        all.push(rig.unmap_later(0, 0..1).unwrap());
        assert_eq!(rig.sim.counts().interrupts_sent, 0);
        assert!(rig.unmap_later(0, 63..64).is_none());
        assert_eq!(rig.sim.counts().interrupts_sent, 1);
        // The interrupted CPU sweeps all states, after it has completed the interrupt's flush.
        rig.until(200);
        assert!(all.iter().all(|unmapped| rig.is_complete(unmapped)));
        // A state that is published again is not the earlier publication.
        let again = rig.unmap_later(0, 63..64).unwrap();
        assert!(!rig.is_complete(&again));
        assert!(all.iter().all(|unmapped| rig.is_complete(unmapped)));
        all.into_iter().for_each(|unmapped| rig.complete(unmapped));
        assert_eq!(rig.sim.counts().interrupts_sent, 1);
    });
    rig.run();
}

#[test]
fn unshared_space_defers_nothing() {
    let rig = Rig::new(2, Latr::new);
    rig.thread(0, 0, |rig| {
        rig.touch(0..8);
        assert!(rig.unmap_later(0, 0..3).is_none());
        assert_eq!(rig.sim.counts().interrupts_sent, 0);
        assert_eq!(rig.faults(0..8), [0, 1, 2]);
    });
    rig.run();
}
