//! Linux on arm64, with and without seed 003: who is told of what, by counts worked out by hand;
//! tags that run out; and each rule broken once, so that the oracle is seen to notice.

use std::rc::Rc;

use crate::rig::{Hardware, Rig};
use shootdown_designs::linux::arm64::Variant;
use shootdown_designs::{Arm64, LinuxRule};
use shootdown_sim::{Counts, Sim, Time, ViolationKind};
use shootdown_vm::Freed::{Pages, Tables};

const TAGS: usize = 255;

fn rig(cpus: usize, design: fn(Rc<Sim>) -> Arm64) -> Rc<Rig<Arm64>> {
    Rig::on(Hardware::Broadcast.machine(TAGS, cpus), 2, design)
}

fn breaking(variant: Variant, rule: Option<LinuxRule>) -> impl Fn(Rc<Sim>) -> Arm64 {
    move |sim| Arm64::with_broken_rule(sim, variant, rule)
}

/// What a flush did, of pages that two CPUs have touched, by CPU 0; CPU 1 is then in the state that
/// `other` leaves it in, and touches the pages again in the end.
fn flush_with(
    design: fn(Rc<Sim>) -> Arm64,
    other: fn(&Rc<Rig<Arm64>>),
    pages: core::ops::Range<u64>,
    freed: shootdown_vm::Freed,
) -> (Counts, Counts) {
    let rig = rig(3, design);
    let sleeper = Rc::clone(&rig);
    rig.thread(1, 0, move |rig| {
        rig.touch(0..8);
        other(&sleeper);
        rig.touch(0..8);
    });
    let flushed = Rc::new(std::cell::Cell::new(None));
    let seen = Rc::clone(&flushed);
    rig.thread(0, 0, move |rig| {
        rig.until(30);
        let before = rig.sim.counts_of(0);
        rig.flush(0, pages.clone(), freed);
        seen.set(Some(rig.sim.counts_of(0).since(&before)));
    });
    rig.run();
    assert_eq!(rig.sim.counts().interrupts_sent, 0);
    (flushed.get().unwrap(), rig.sim.counts_of(1))
}

fn idles(rig: &Rc<Rig<Arm64>>) {
    rig.sleep_until(100, 2);
}

fn computes(rig: &Rc<Rig<Arm64>>) {
    rig.until(100);
}

#[test]
fn stock_broadcasts_whoever_is_there() {
    for other in [idles, computes] {
        let (flush, _) = flush_with(Arm64::stock, other, 3..6, Pages);
        assert_eq!((flush.broadcasts, flush.pages_invalidated), (3, 0));
        // More than 511 pages are all of them.
        let (flush, _) = flush_with(Arm64::stock, other, 0..511, Pages);
        assert_eq!(flush.broadcasts, 511);
        let (flush, _) = flush_with(Arm64::stock, other, 0..512, Pages);
        assert_eq!(flush.broadcasts, 1);
    }
}

#[test]
fn who_is_alone_flushes_locally_and_who_comes_later_drops_the_tag() {
    for freed in [Pages, Tables] {
        let (flush, other) = flush_with(Arm64::skip, idles, 3..6, freed);
        assert_eq!((flush.broadcasts, flush.flushes_ranged, flush.pages_invalidated), (0, 1, 3));
        assert_eq!((other.flushes_full, other.walks), (1, 16));
    }
}

#[test]
fn who_is_not_alone_broadcasts_and_nobody_drops_the_tag() {
    let (flush, other) = flush_with(Arm64::skip, computes, 3..6, Pages);
    assert_eq!((flush.broadcasts, flush.pages_invalidated), (3, 0));
    assert_eq!((other.flushes_full, other.walks), (0, 8 + 3));
}

#[test]
fn a_mark_is_heeded_once() {
    let rig = rig(3, Arm64::skip);
    let sleeper = Rc::clone(&rig);
    rig.thread(1, 0, move |rig| {
        rig.touch(0..8);
        sleeper.sleep_until(100, 2);
        rig.touch(0..8);
        sleeper.sleep_until(200, 2);
        rig.touch(0..8);
    });
    rig.thread(0, 0, |rig| {
        rig.until(30);
        // The marks are there after the first.
        (0..3).for_each(|_| rig.flush(0, 0..1, Pages));
    });
    rig.run();
    assert_eq!(rig.sim.counts_of(1).flushes_full, 1);
    assert_eq!(rig.sim.counts().broadcasts, 0);
}

#[test]
fn an_exit_that_nobody_is_active_for_tells_nobody() {
    for (design, broadcasts) in [(Arm64::stock as fn(_) -> _, 1), (Arm64::skip, 0)] {
        let rig = rig(3, design);
        rig.thread(1, 0, |rig| rig.touch(0..8));
        rig.thread(0, 0, |rig| {
            rig.touch(0..8);
            rig.until(50);
            rig.exit(0);
        });
        // Whoever is lazy holds the root until another space runs there.
        rig.thread(1, 1, |rig| rig.until(100));
        rig.kernel_thread(2, |rig| {
            rig.until(100);
            rig.thread(0, 1, |_| ());
        });
        rig.run();
        assert_eq!(rig.sim.counts().broadcasts, broadcasts);
        assert_eq!(rig.freed().len(), 1);
    }
}

/// Twelve spaces take turns on three CPUs, two threads of each, with so many tags; their pages are
/// flushed by turns.
fn crowd(tags: usize, design: impl FnOnce(Rc<Sim>) -> Arm64) -> Rc<Rig<Arm64>> {
    const SPACES: u64 = 12;
    let rig = Rig::on(Hardware::Broadcast.machine(tags, 3), SPACES, design);
    for thread in 0..2 * SPACES {
        let (space, cpu) = (thread % SPACES, (thread * 7 / 5 % 3) as usize);
        rig.thread(cpu, space, move |rig| {
            for turn in 0..20 {
                rig.touch(0..4);
                rig.sim.spend(Time::from_ns(500 + (thread * 31 + turn * 17) % 23 * 100));
                if turn % 3 == thread % 3 {
                    rig.flush(space, 0..2, Pages);
                }
                rig.sim.yield_now();
            }
        });
    }
    rig.run_whatever_happens();
    rig
}

fn wrongs(rig: &Rig<Arm64>) -> Vec<ViolationKind> {
    rig.sim.first_violations().iter().map(|violation| violation.kind).collect()
}

#[test]
fn when_tags_run_out_each_cpu_drops_all_at_most_once() {
    for tags in [4, 7, 15] {
        let rig = crowd(tags, Arm64::stock);
        assert_eq!(wrongs(&rig), [], "{tags} tags");
        let counts = rig.sim.counts();
        let has_room = tags > 12;
        assert_eq!(counts.rollovers == 0, has_room, "{tags} tags, {} rollovers", counts.rollovers);
        assert!(counts.flushes_full <= 3 * counts.rollovers, "{tags} tags");
        assert_eq!(has_room, counts.tags_taken == 12);
        let skip = crowd(tags, Arm64::skip);
        assert_eq!(wrongs(&skip), [], "{tags} tags");
        assert!(skip.sim.counts().broadcasts < counts.broadcasts);
    }
}

#[test]
fn without_tags_or_broadcast_every_switch_drops_and_flushes_interrupt() {
    for variant in [Variant::Stock, Variant::Skip] {
        let design = breaking(variant, None);
        let rig = Rig::on(Hardware::Plain.machine(6, 2), 2, design);
        rig.thread(1, 0, |rig| {
            rig.touch(0..8);
            rig.until(100);
            rig.touch(0..8);
        });
        rig.thread(0, 0, |rig| {
            rig.until(50);
            rig.flush(0, 0..3, Pages);
        });
        rig.run();
        let counts = rig.sim.counts();
        assert_eq!((counts.interrupts_sent, counts.broadcasts, counts.tags_taken), (1, 0, 0));
        assert_eq!((counts.flushes_full, counts.pages_invalidated), (2, 6));
    }
}

#[test]
fn a_tag_of_a_new_generation_in_a_tlb_that_was_not_emptied_is_caught() {
    for variant in [Variant::Stock, Variant::Skip] {
        let rig = crowd(4, breaking(variant, Some(LinuxRule::FlushAfterRollover)));
        assert!(wrongs(&rig).contains(&ViolationKind::ForeignTranslation), "{:?}", wrongs(&rig));
    }
}

/// CPU 0 runs a space throughout, while others use up the tags; then a second thread of it, on CPU
/// 1, flushes what the first has cached.
#[test]
fn a_tag_that_is_taken_from_a_cpu_that_runs_with_it_is_caught() {
    for (rule, caught) in [(None, false), (Some(LinuxRule::ReserveActive), true)] {
        let machine = Hardware::Broadcast.machine(4, 3);
        let rig = Rig::on(machine, 6, breaking(Variant::Stock, rule));
        rig.thread(0, 0, |rig| {
            rig.touch(0..4);
            rig.until(300);
            rig.touch(0..4);
        });
        for space in 1..6 {
            rig.thread(2, space, |rig| rig.touch(0..4));
        }
        rig.kernel_thread(2, |rig| {
            rig.until(150);
            rig.thread(1, 0, |rig| rig.flush(0, 0..4, Pages));
        });
        rig.run_whatever_happens();
        assert!(rig.sim.counts().rollovers > 0);
        let expected = if caught { &[ViolationKind::FlushedTranslation; 4][..] } else { &[] };
        assert_eq!(wrongs(&rig), expected);
    }
}

/// CPU 0 flushes a page again and again, and is held up by a timer, sometimes in the middle of it;
/// CPU 1 uses the page, and makes way for another space.
fn comings_and_goings(variant: Variant, rule: Option<LinuxRule>) -> Rc<Rig<Arm64>> {
    let rig = Rig::on(Hardware::Broadcast.machine(TAGS, 2), 2, breaking(variant, rule));
    rig.thread(0, 0, |rig| {
        for turn in 0..2000_u64 {
            rig.sim.spend(Time::from_ns(turn * 37 % 1009));
            rig.flush(0, 0..1, Pages);
            rig.sim.yield_now();
        }
    });
    rig.kernel_thread(0, |rig| {
        (0..1500).for_each(|turn| rig.sim.sleep(Time::from_ns(turn * 61 % 1500)));
    });
    for space in [0, 1] {
        rig.thread(1, space, |rig| {
            for _ in 0..2000 {
                rig.touch(0..4);
                rig.sim.yield_now();
            }
        });
    }
    rig.run_whatever_happens();
    rig
}

#[test]
fn who_comes_while_a_flush_is_decided_misses_nothing() {
    for variant in [Variant::Stock, Variant::Skip] {
        let rig = comings_and_goings(variant, None);
        assert_eq!(wrongs(&rig), []);
        let counts = rig.sim.counts();
        // Sometimes alone, and sometimes not.
        let some_locally = counts.broadcasts < 2000 && counts.flushes_ranged > 0;
        assert_eq!(some_locally, variant == Variant::Skip);
        assert!(counts.broadcasts > 0);
    }
}

#[test]
fn each_mark_of_seed_003_is_needed() {
    for rule in [LinuxRule::MarkStale, LinuxRule::FlushIfStale] {
        let rig = comings_and_goings(Variant::Skip, Some(rule));
        assert!(wrongs(&rig).contains(&ViolationKind::FlushedTranslation), "{rule:?}");
        // They are the patch's own.
        assert_eq!(wrongs(&comings_and_goings(Variant::Stock, Some(rule))), [], "{rule:?}");
    }
}

/// CPU 0 flushes what CPU 1 has cached, which is idle, and comes back `comes_ns` after the flush
/// began. CPU 0 takes an interrupt `interrupted_ns` after it began.
fn coming_back(rule: Option<LinuxRule>, interrupted_ns: u64, comes_ns: u64) -> Vec<ViolationKind> {
    const FLUSH_NS: u64 = 20_000;
    let until = |sim: &Sim, ns: u64| {
        let now = sim.now();
        sim.spend(Time::from_ns(ns).saturating_sub(now));
    };
    let machine = Hardware::Broadcast.machine(TAGS, 3);
    let rig = Rig::on(machine, 1, breaking(Variant::Skip, rule));
    rig.thread(1, 0, move |rig| {
        rig.touch(0..4);
        let sleeper = rig.sim.current_thread().unwrap();
        rig.sleepers.borrow_mut().push(sleeper);
        rig.sim.block();
        rig.until(50);
        rig.touch(0..4);
    });
    rig.kernel_thread(2, move |rig| {
        until(&rig.sim, FLUSH_NS + comes_ns - 1000);
        let sleeper = rig.sleepers.borrow_mut().pop().unwrap();
        rig.sim.wake(sleeper);
    });
    rig.kernel_thread(0, move |rig| {
        let now = rig.sim.now();
        rig.sim.sleep(Time::from_ns(FLUSH_NS + interrupted_ns).saturating_sub(now));
    });
    rig.thread(0, 0, move |rig| {
        rig.touch(0..4);
        until(&rig.sim, FLUSH_NS);
        rig.flush(0, 0..4, Pages);
    });
    rig.run_whatever_happens();
    wrongs(&rig)
}

/// Whoever comes between the first look and the mark is seen by the second look.
#[test]
fn the_second_look_of_seed_003_is_needed() {
    let times = (0..40).flat_map(|at| (0..1000).step_by(200).map(move |to| (at, to)));
    let mut caught = 0;
    for (interrupted_ns, comes_ns) in times {
        assert_eq!(coming_back(None, interrupted_ns, comes_ns), []);
        let wrongs = coming_back(Some(LinuxRule::RecheckActive), interrupted_ns, comes_ns);
        caught += usize::from(!wrongs.is_empty());
    }
    assert!(caught > 0);
}

#[test]
fn a_broadcast_that_nobody_waits_for_is_caught() {
    let rig = comings_and_goings(Variant::Stock, Some(LinuxRule::Complete));
    assert!(wrongs(&rig).contains(&ViolationKind::FlushedTranslation));
}
