//! Linux on RISC-V: the CPUs that the firmware fences, with counts calculated by hand.

use std::rc::Rc;

use crate::rig::{Hardware, Rig};
use shootdown_designs::{LinuxRule, Riscv};
use shootdown_sim::ViolationKind;
use shootdown_vm::Freed::{self, Pages, Tables};

/// The counts of CPU 0 for a flush of a space. If `shared`, CPU 1 has run the space and left it for
/// another.
fn flush(
    tags: usize,
    shared: bool,
    pages: core::ops::Range<u64>,
    freed: Freed,
) -> shootdown_sim::Counts {
    let rig = Rig::on(Hardware::Fence.machine(tags, 2), 2, Riscv::new);
    if shared {
        rig.thread(1, 0, |rig| rig.touch(0..4));
    }
    rig.thread(1, 1, |rig| rig.until(100));
    let result = Rc::new(std::cell::Cell::new(None));
    let set = Rc::clone(&result);
    rig.thread(0, 0, move |rig| {
        rig.until(50);
        let before = rig.sim.counts_of(0);
        rig.flush(0, pages.clone(), freed);
        set.set(Some(rig.sim.counts_of(0).since(&before)));
    });
    rig.run();
    assert_eq!(rig.sim.counts().interrupts_sent, 0);
    result.get().unwrap()
}

#[test]
fn fence_targets_all_past_users_and_this_cpu() {
    let counts = flush(15, true, 0..3, Pages);
    assert_eq!((counts.remote_fences, counts.flushes_ranged), (2, 0));
}

#[test]
fn cpu_without_tags_leaves_the_mask() {
    let counts = flush(4, true, 0..3, Pages);
    assert_eq!((counts.remote_fences, counts.flushes_ranged), (0, 1));
}

#[test]
fn local_flush_is_by_page_up_to_64() {
    for (pages, freed, erased) in [(64, Pages, 64), (65, Pages, 0), (3, Pages, 3), (3, Tables, 0)] {
        let counts = flush(15, false, 0..pages, freed);
        assert_eq!((counts.remote_fences, counts.pages_invalidated), (0, erased));
        assert_eq!(counts.flushes_full, u64::from(erased == 0));
    }
}

#[test]
fn mask_is_interrupted_without_firmware() {
    let rig = Rig::on(Hardware::Plain.machine(15, 3), 2, Riscv::new);
    rig.thread(1, 0, |rig| rig.touch(0..4));
    rig.thread(2, 0, |rig| rig.touch(0..4));
    rig.thread(2, 1, |rig| rig.until(100));
    rig.thread(0, 0, |rig| {
        rig.until(50);
        rig.flush(0, 0..3, Pages);
    });
    rig.run();
    let counts = rig.sim.counts();
    assert_eq!((counts.interrupts_sent, counts.interrupts_to_lazy), (1, 1));
    assert_eq!((counts.tags_taken, counts.remote_fences), (0, 0));
}

#[test]
fn oracle_detects_missing_flush_after_rollover() {
    for (rule, caught) in [(None, false), (Some(LinuxRule::FlushAfterRollover), true)] {
        let machine = Hardware::Fence.machine(5, 2);
        let rig = Rig::on(machine, 12, |sim| Riscv::with_broken_rule(sim, rule));
        for space in 0..12 {
            for cpu in [0, 1] {
                rig.thread(cpu, space, |rig| {
                    for _ in 0..3 {
                        rig.touch(0..4);
                        rig.sim.yield_now();
                    }
                });
            }
        }
        rig.run_unchecked();
        let first = rig.sim.first_violations();
        let is_foreign = first.iter().any(|first| first.kind == ViolationKind::ForeignTranslation);
        assert_eq!(is_foreign, caught);
        assert!(rig.sim.counts().rollovers > 0);
    }
}
