//! ABIS: the CPUs that a flush interrupts, by the accessed bits of its pages.

use std::rc::Rc;

use shootdown_designs::{Linux412, LinuxRule};

use crate::rig::Rig;

fn rig(broken: Option<LinuxRule>) -> Rc<Rig<Linux412>> {
    Rig::new(3, |sim| Linux412::abis(sim, broken))
}

/// CPUs 1 and 2 use pages, which CPU 0 unmaps one after the other.
fn run(broken: Option<LinuxRule>) -> Rc<Rig<Linux412>> {
    let rig = rig(broken);
    rig.thread(1, 0, |rig| {
        rig.insert(0, 1..3);
        rig.touch(1..3);
        rig.until(200);
        assert_eq!(rig.sim.counts_of(1).walks, 0, "its pages are in the TLB");
        // Not an interrupt: the page was flushed, and is mapped again.
        rig.fault_in(0, 1);
        rig.insert(0, 1..2);
        rig.until(400);
        rig.faults(2..3);
        rig.until(600);
    });
    rig.thread(2, 0, |rig| {
        rig.until(30);
        // CPU 1 has inserted the page, and this CPU walks to its entry.
        rig.touch(2..3);
        rig.until(400);
        rig.faults(2..3);
        rig.until(600);
    });
    rig.thread(0, 0, move |rig| {
        rig.insert(0, 3..4);
        rig.until(100);
        let interrupts = |page| {
            let before = rig.sim.counts().interrupts_sent;
            rig.unmap(0, page);
            rig.sim.counts().interrupts_sent - before
        };
        assert_eq!(interrupts(0), 0, "no CPU has used the page");
        assert_eq!(interrupts(1), 1, "CPU 1 has inserted the page");
        assert_eq!(interrupts(3), 0, "this CPU has inserted the page");
        rig.until(300);
        assert_eq!(interrupts(1), 1, "CPU 1 has inserted another page");
        let accessed = interrupts(2);
        assert!(broken.is_some() || accessed == 2, "{accessed}: the page is accessed");
        rig.until(500);
    });
    rig
}

#[test]
fn flush_interrupts_cpus_that_may_hold_a_page() {
    run(None).run();
}

#[test]
fn accessed_page_may_be_in_any_tlb() {
    let rig = run(Some(LinuxRule::SeeAccessed));
    rig.run_unchecked();
    assert!(rig.sim.violations() > 0);
}

/// CPU 1 has masked interrupts while CPU 0 unmaps its page, and CPU 2 maps and unmaps another page
/// there. Returns the number of violations.
fn remapped(broken: Option<LinuxRule>) -> u64 {
    let rig = rig(broken);
    rig.thread(1, 0, |rig| {
        rig.insert(0, 0..1);
        rig.sim.masked(|| {
            rig.until(100);
            // Allowed: no flush is complete.
            rig.faults(0..1);
        });
        rig.until(200);
    });
    rig.thread(0, 0, |rig| {
        rig.until(30);
        rig.unmap(0, 0);
    });
    rig.thread(2, 0, |rig| {
        rig.until(50);
        rig.fault_in(0, 0);
        rig.insert(0, 0..1);
        rig.unmap(0, 0);
    });
    rig.run_unchecked();
    rig.sim.violations()
}

#[test]
fn flush_of_page_being_flushed_interrupts_all() {
    assert_eq!(remapped(None), 0);
    assert!(remapped(Some(LinuxRule::MarkFlushing)) > 0);
}
