//! Linux on arm64, with and without skipped broadcasts: the CPUs that a flush reaches, with counts
//! calculated by hand; tags that run out; and broken rules, which the oracle must detect.

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

/// Flushes pages on CPU 0 that two CPUs have touched. CPU 1 then executes `other`, and touches the
/// pages again. Returns the counts of the flush on CPU 0, and those of CPU 1.
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
    let result = Rc::clone(&flushed);
    rig.thread(0, 0, move |rig| {
        rig.until(30);
        let before = rig.sim.counts_of(0);
        rig.flush(0, pages.clone(), freed);
        result.set(Some(rig.sim.counts_of(0).since(&before)));
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
fn stock_always_broadcasts() {
    for other in [idles, computes] {
        let (flush, _) = flush_with(Arm64::stock, other, 3..6, Pages);
        assert_eq!((flush.broadcasts, flush.pages_invalidated), (3, 0));
        // More than 511 pages are flushed by the tag.
        let (flush, _) = flush_with(Arm64::stock, other, 0..511, Pages);
        assert_eq!(flush.broadcasts, 511);
        let (flush, _) = flush_with(Arm64::stock, other, 0..512, Pages);
        assert_eq!(flush.broadcasts, 1);
    }
}

/// CPUs 1 and up run the space and leave it, or not; then CPU 0 flushes. Returns the number of its
/// operations.
fn operations_with_domains(
    others: usize,
    pages: core::ops::Range<u64>,
    broken: Option<LinuxRule>,
) -> (u64, u64) {
    let machine = Hardware::Domains.machine(TAGS, 1 + others);
    let rig = Rig::on(machine, 2, breaking(Variant::InDomains, broken));
    for cpu in 1..=others {
        rig.thread(cpu, 0, move |rig| {
            rig.touch(0..8);
            rig.until(100);
            rig.touch(0..8);
        });
    }
    let flushed = Rc::new(std::cell::Cell::new(0));
    let result = Rc::clone(&flushed);
    rig.thread(0, 0, move |rig| {
        rig.until(30);
        let before = rig.sim.counts_of(0).broadcasts;
        rig.flush(0, pages.clone(), Pages);
        result.set(rig.sim.counts_of(0).broadcasts - before);
    });
    rig.run_unchecked();
    (flushed.get(), rig.sim.violations())
}

#[test]
fn flush_of_whole_space_names_domains_of_its_cpus() {
    assert_eq!(operations_with_domains(1, 0..512, None), (2, 0), "two domains");
    assert_eq!(operations_with_domains(2, 0..512, None), (1, 0), "three are too many");
    assert_eq!(operations_with_domains(1, 3..6, None), (3, 0), "pages are in no domain");
    let (_, violations) = operations_with_domains(1, 0..512, Some(LinuxRule::MarkRan));
    assert!(violations > 0, "CPU 1 is in no domain of the flush");
}

#[test]
fn sole_active_cpu_flushes_locally_and_marks_others() {
    for freed in [Pages, Tables] {
        let (flush, other) = flush_with(Arm64::skip, idles, 3..6, freed);
        assert_eq!((flush.broadcasts, flush.flushes_ranged, flush.pages_invalidated), (0, 1, 3));
        assert_eq!((other.flushes_full, other.walks), (1, 16));
    }
}

#[test]
fn other_active_cpu_requires_broadcast() {
    let (flush, other) = flush_with(Arm64::skip, computes, 3..6, Pages);
    assert_eq!((flush.broadcasts, flush.pages_invalidated), (3, 0));
    assert_eq!((other.flushes_full, other.walks), (0, 8 + 3));
}

#[test]
fn stale_mark_causes_one_flush() {
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
        // The first flush sets the marks.
        (0..3).for_each(|_| rig.flush(0, 0..1, Pages));
    });
    rig.run();
    assert_eq!(rig.sim.counts_of(1).flushes_full, 1);
    assert_eq!(rig.sim.counts().broadcasts, 0);
}

#[test]
fn exit_of_inactive_space_broadcasts_nothing() {
    for (design, broadcasts) in [(Arm64::stock as fn(_) -> _, 1), (Arm64::skip, 0)] {
        let rig = rig(3, design);
        rig.thread(1, 0, |rig| rig.touch(0..8));
        rig.thread(0, 0, |rig| {
            rig.touch(0..8);
            rig.until(50);
            rig.exit(0);
        });
        // A lazy CPU keeps the root until it runs another space.
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

/// Twelve spaces take turns on three CPUs, with two threads each and `tags` tags, and flush their
/// pages in turn.
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
    rig.run_unchecked();
    rig
}

fn violations(rig: &Rig<Arm64>) -> Vec<ViolationKind> {
    rig.sim.first_violations().iter().map(|violation| violation.kind).collect()
}

#[test]
fn rollover_flushes_each_cpu_at_most_once() {
    for tags in [4, 7, 15] {
        let rig = crowd(tags, Arm64::stock);
        assert_eq!(violations(&rig), [], "{tags} tags");
        let counts = rig.sim.counts();
        let has_room = tags > 12;
        assert_eq!(counts.rollovers == 0, has_room, "{tags} tags, {} rollovers", counts.rollovers);
        assert!(counts.flushes_full <= 3 * counts.rollovers, "{tags} tags");
        assert_eq!(has_room, counts.tags_taken == 12);
        let skip = crowd(tags, Arm64::skip);
        assert_eq!(violations(&skip), [], "{tags} tags");
        assert!(skip.sim.counts().broadcasts < counts.broadcasts);
    }
}

#[test]
fn without_broadcast_switches_flush_and_flushes_interrupt() {
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
fn oracle_detects_missing_flush_after_rollover() {
    for variant in [Variant::Stock, Variant::Skip] {
        let rig = crowd(4, breaking(variant, Some(LinuxRule::FlushAfterRollover)));
        let violations = violations(&rig);
        assert!(violations.contains(&ViolationKind::ForeignTranslation), "{violations:?}");
    }
}

/// CPU 0 runs a space all the time, while other spaces use up the tags. Then a second thread of the
/// space, on CPU 1, flushes pages that CPU 0 has cached.
#[test]
fn oracle_detects_reassigned_active_tag() {
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
        rig.run_unchecked();
        assert!(rig.sim.counts().rollovers > 0);
        let expected = if caught { &[ViolationKind::FlushedTranslation; 4][..] } else { &[] };
        assert_eq!(violations(&rig), expected);
    }
}

/// CPU 0 flushes a page repeatedly, and timer interrupts delay it, sometimes in the middle of a
/// flush. CPU 1 uses the page, and switches to another space.
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
    rig.run_unchecked();
    rig
}

#[test]
fn cpu_that_switches_during_flush_misses_nothing() {
    for variant in [Variant::Stock, Variant::Skip] {
        let rig = comings_and_goings(variant, None);
        assert_eq!(violations(&rig), []);
        let counts = rig.sim.counts();
        // Some flushes are local, and some are broadcast.
        let some_locally = counts.broadcasts < 2000 && counts.flushes_ranged > 0;
        assert_eq!(some_locally, variant == Variant::Skip);
        assert!(counts.broadcasts > 0);
    }
}

#[test]
fn oracle_detects_missing_stale_marks() {
    for rule in [LinuxRule::MarkStale, LinuxRule::FlushIfStale] {
        let rig = comings_and_goings(Variant::Skip, Some(rule));
        assert!(violations(&rig).contains(&ViolationKind::FlushedTranslation), "{rule:?}");
        // Only the variant that skips broadcasts has these rules.
        assert_eq!(violations(&comings_and_goings(Variant::Stock, Some(rule))), [], "{rule:?}");
    }
}

/// CPU 0 flushes pages that CPU 1 has cached. CPU 1 is idle, and wakes `comes_ns` after the flush
/// began. An interrupt delays CPU 0 `interrupted_ns` after the flush began. Returns the violations.
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
    rig.run_unchecked();
    violations(&rig)
}

/// A CPU that becomes active between the first check and the mark is detected by the second check.
#[test]
fn oracle_detects_missing_second_check() {
    let times = (0..40).flat_map(|at| (0..1000).step_by(200).map(move |to| (at, to)));
    let mut caught = 0;
    for (interrupted_ns, comes_ns) in times {
        assert_eq!(coming_back(None, interrupted_ns, comes_ns), []);
        let violations = coming_back(Some(LinuxRule::RecheckActive), interrupted_ns, comes_ns);
        caught += usize::from(!violations.is_empty());
    }
    assert!(caught > 0);
}

#[test]
fn oracle_detects_incomplete_broadcast() {
    let rig = comings_and_goings(Variant::Stock, Some(LinuxRule::Complete));
    assert!(violations(&rig).contains(&ViolationKind::FlushedTranslation));
}
