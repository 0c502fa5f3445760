//! Linux on ARC: erased pages and renamed spaces, with counts calculated by hand; tags that run
//! out; and a broken rule, which the oracle must detect.

use std::rc::Rc;

use crate::rig::{Hardware, Rig};
use shootdown_designs::{Arc, LinuxRule};
use shootdown_sim::{Sim, Time, ViolationKind};
use shootdown_vm::ExtraFlushes;
use shootdown_vm::Freed::{Pages, Tables};

fn rig(tags: usize, cpus: usize, spaces: u64) -> Rc<Rig<Arc>> {
    Rig::on(Hardware::Renamed.machine(tags, cpus), spaces, Arc::by_area)
}

#[test]
fn small_flush_erases_and_large_flush_renames() {
    for (pages, erased, taken) in [(1, 1, 0), (31, 31, 0), (32, 0, 1), (64, 0, 1)] {
        let rig = rig(255, 1, 2);
        rig.thread(0, 0, move |rig| {
            rig.touch(0..8);
            rig.flush(0, 0..pages, Tables);
            rig.touch(0..8);
        });
        rig.run();
        let counts = rig.sim.counts();
        assert_eq!(counts.pages_invalidated, erased, "{pages} pages");
        // The space takes one tag when it first runs.
        assert_eq!(counts.tags_taken, 1 + taken, "{pages} pages");
        let refilled = if taken == 1 { 8 } else { erased.min(8) };
        assert_eq!(counts.walks, 8 + refilled, "{pages} pages");
        assert_eq!(counts.flushes_full, 0, "{pages} pages");
    }
}

#[test]
fn tag_survives_switches_and_exit_flushes_nothing() {
    let rig = rig(255, 1, 3);
    for space in 0..3 {
        rig.thread(0, space, move |rig| {
            for _ in 0..5 {
                rig.touch(0..4);
                rig.sim.yield_now();
            }
            rig.exit(space);
        });
    }
    rig.run();
    let counts = rig.sim.counts();
    assert_eq!((counts.tags_taken, counts.walks), (3, 3 * 4));
    assert_eq!((counts.flushes_full, counts.flushes_ranged), (0, 0));
}

#[test]
fn other_cpus_rename_when_they_next_run() {
    let rig = rig(255, 3, 2);
    let sleeper = Rc::clone(&rig);
    rig.thread(1, 0, move |rig| {
        rig.touch(0..4);
        sleeper.sleep_until(100, 2);
        rig.touch(0..4);
    });
    rig.thread(0, 0, |rig| {
        rig.until(50);
        rig.flush(0, 0..64, Pages);
        // CPU 1 is idle, and has dropped its tag already.
        rig.flush(0, 0..64, Pages);
    });
    rig.run();
    let counts = rig.sim.counts();
    assert_eq!((counts.interrupts_sent, counts.interrupts_to_lazy), (2, 2));
    // CPU 0 takes a tag at its first load and with each flush. CPU 1 takes two.
    assert_eq!((counts.tags_taken, rig.sim.counts_of(1).tags_taken), (5, 2));
}

/// Twelve spaces take turns on CPUs with four tags, and flush themselves at intervals.
fn crowd(cpus: usize, design: impl FnOnce(Rc<Sim>) -> Arc) -> Rc<Rig<Arc>> {
    let rig = Rig::on(Hardware::Renamed.machine(4, cpus), 12, design);
    for thread in 0..24_u64 {
        let space = thread % 12;
        rig.thread(thread as usize % cpus, space, move |rig| {
            for turn in 0..20 {
                rig.touch(0..4);
                rig.sim.spend(Time::from_ns(500 + (thread * 31 + turn * 17) % 23 * 100));
                match (turn + thread) % 5 {
                    0 => rig.flush(space, 0..2, Pages),
                    1 => rig.flush(space, 0..40, Pages),
                    _ => {}
                }
                rig.sim.yield_now();
            }
        });
    }
    rig.run_unchecked();
    rig
}

#[test]
fn counter_wrap_flushes_the_tlb_once() {
    for cpus in [1, 3] {
        let rig = crowd(cpus, Arc::by_space);
        let first = rig.sim.first_violations();
        assert_eq!((rig.sim.violations(), rig.sim.hazards()), (0, 0), "{first:?}");
        for cpu in 0..cpus {
            let counts = rig.sim.counts_of(cpu);
            assert!(counts.rollovers > 0);
            assert_eq!(counts.rollovers, (counts.tags_taken - 1) / 4);
            assert_eq!(counts.flushes_full, counts.rollovers);
        }
    }
}

#[test]
fn oracle_detects_missing_flush_at_wrap() {
    let design = |sim| {
        let rule = Some(LinuxRule::FlushAtWrap);
        Arc::with_broken_rule(sim, ExtraFlushes::AREA_PER_UNMAP, rule)
    };
    let rig = crowd(1, design);
    let kinds: Vec<ViolationKind> =
        rig.sim.first_violations().iter().map(|first| first.kind).collect();
    assert!(kinds.contains(&ViolationKind::ForeignTranslation), "{kinds:?}");
}
