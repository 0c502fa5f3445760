//! Flushes of a space that runs on one CPU notify no other CPU, whichever CPUs ran it before (study
//! `arm64-skip-broadcast`).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use shootdown::{Extent, ExtentSet, Reach, SpaceStats, Tagging};

use crate::hardware::{HookPoint, Size, System};
use crate::page;

const SIZES: [Size; 4] = [
    Size { broadcast: Some(Reach::Everyone), ..Size::SMALL },
    Size { broadcast: Some(Reach::Targets), ..Size::SMALL },
    Size { tagging: Tagging::Renamed, broadcast: None, ..Size::SMALL },
    Size { tagging: Tagging::PerCpu, broadcast: None, ..Size::SMALL },
];

type StopUsing = fn(&System<2>, u32);

const WAYS: [StopUsing; 4] = [
    |system, cpu| system.pin(cpu).enter_lazy(),
    |system, cpu| system.pin(cpu).leave_space(),
    |system, cpu| system.switch(cpu, 1),
    |system, cpu| {
        system.pin(cpu).offline();
        system.pin(cpu).online();
    },
];

#[test]
fn flush_with_one_active_cpu_is_local() {
    for size in SIZES {
        for stop_using in WAYS {
            let system = System::<2>::new(size);
            for cpu in 0..4 {
                system.switch(cpu, 0);
                system.touch(cpu);
            }
            (1..4).for_each(|cpu| stop_using(&system, cpu));
            (0..100).for_each(|_| system.flush(0, 0, page()));
            let stats = system.total_stats();
            assert_eq!((stats.broadcasts_sent, stats.interrupts_sent), (0, 0));
            assert_eq!(stats.flushes_local, 100);
        }
    }
}

/// One thread migrates among the CPUs.
#[test]
fn flush_stays_local_when_its_cpu_changes() {
    for size in SIZES {
        let system = System::<2>::new(size);
        for cpu in (0..4).cycle().take(40) {
            system.switch(cpu, 0);
            (0..5).for_each(|_| system.flush(cpu, 0, page()));
            system.touch(cpu);
            system.pin(cpu).enter_lazy();
        }
        let stats = system.total_stats();
        assert_eq!((stats.broadcasts_sent, stats.interrupts_sent), (0, 0));
    }
}

/// A returning CPU drops stale translations once, however many flushes it has missed.
#[test]
fn returning_cpu_drops_stale_translations_once() {
    for size in SIZES {
        for stop_using in &WAYS[..3] {
            let system = System::<2>::new(size);
            (0..2).for_each(|cpu| {
                system.switch(cpu, 0);
                system.touch(cpu);
            });
            stop_using(&system, 1);
            (0..100).for_each(|_| system.flush(0, 0, page()));
            let drops = || {
                let stats = system.stats(1);
                // With renamed tags, a space drops its translations by taking the next tag.
                let renamed = if size.tagging == Tagging::Renamed { stats.tags_taken } else { 0 };
                stats.flushes_full + stats.flushes_ranged + renamed
            };
            let before = drops();
            system.switch(1, 0);
            system.touch(1);
            assert_eq!(drops() - before, 1, "{:?}", size.tagging);
            for _ in 0..3 {
                stop_using(&system, 1);
                system.switch(1, 0);
                system.touch(1);
            }
            let to_others = if size.tagging == Tagging::Renamed { 0 } else { drops() - before - 1 };
            assert_eq!(to_others, 0, "{:?}", size.tagging);
        }
    }
}

/// The number of flushes that were counted, and of those that were broadcast.
fn counted_and_broadcast(system: &System<2>, flush: impl FnOnce()) -> (u64, u64) {
    let counts = || {
        let SpaceStats { flushes_full, flushes_ranged, .. } = system.space_stats(0);
        (flushes_full + flushes_ranged, system.total_stats().broadcasts_sent)
    };
    let before = counts();
    flush();
    let after = counts();
    (after.0 - before.0, after.1 - before.1)
}

/// CPU 1 uses the space, so flushes of pages are broadcast. Those that reach every CPU are not
/// counted. Without CPU 1, the first flush finds that out, and it and the next one are counted.
#[test]
fn pages_broadcast_to_every_cpu_are_not_counted() {
    let everyone = Size { broadcast: Some(Reach::Everyone), ..Size::SMALL };
    for reach in [Reach::Everyone, Reach::Targets, Reach::Domains] {
        let system = System::<2>::new(Size { broadcast: Some(reach), ..everyone });
        (0..2).for_each(|cpu| system.switch(cpu, 0));
        let two = |extent| {
            counted_and_broadcast(&system, || (0..2).for_each(|_| system.flush(0, 0, extent)))
        };
        let counted = if reach == Reach::Everyone { 0 } else { 2 };
        assert_eq!(two(page()), (counted, 2), "{reach:?}");
        assert_eq!(two(page().freeing_tables()), (2, 2), "{reach:?}");
        assert_eq!(two(Extent::whole()), (2, 2), "{reach:?}");
        assert_eq!(two(page()), (counted, 2), "{reach:?}");
        system.pin(1).enter_lazy();
        assert_eq!(two(page()), (2, 0), "{reach:?}");
        system.switch(1, 0);
        assert_eq!(two(page()), (counted.max(1), 2), "{reach:?}");
        system.touch(1);
    }
}

/// CPU 2 comes back under the ASID that it had, after a flush that was not counted, and under
/// another one.
#[test]
fn cpu_away_during_uncounted_flush_is_clean() {
    for rollovers in [false, true] {
        let system = System::<2>::new(Size::SMALL);
        for cpu in 0..3 {
            system.switch(cpu, 0);
            system.touch(cpu);
        }
        system.switch(2, 1);
        assert_eq!(counted_and_broadcast(&system, || system.flush(0, 0, page())), (0, 1));
        if rollovers {
            (1..8).for_each(|space| system.switch(3, space));
        }
        system.switch(2, 0);
        system.touch(2);
    }
}

/// A CPU that broadcasts have reached does not catch up with them when it comes back.
#[test]
fn cpu_away_during_broadcasts_keeps_its_tag() {
    let system = System::<2>::new(Size::SMALL);
    (0..3).for_each(|cpu| system.switch(cpu, 0));
    system.pin(2).leave_space();
    (0..100).for_each(|_| system.flush(0, 0, page()));
    assert_eq!(system.stats(0).broadcasts_sent, 100);
    let before = system.stats(2);
    system.switch(2, 0);
    system.touch(2);
    let after = system.stats(2);
    assert_eq!(after.flushes_full, before.flushes_full);
    assert_eq!(after.flushes_ranged, before.flushes_ranged);
}

/// A flush that is not broadcast leaves a gap. The 64th flush after it broadcasts the whole space,
/// which closes the gap.
#[test]
fn gap_is_closed_after_64_flushes() {
    for (more, expected) in [(40, false), (63, false), (64, true), (80, true)] {
        let system = System::<2>::new(Size::SMALL);
        (0..3).for_each(|cpu| system.switch(cpu, 0));
        system.switch(1, 1);
        system.switch(2, 1);
        system.flush(0, 0, page());
        system.switch(1, 0);
        // Flushes of pages would not be counted.
        (0..more).for_each(|_| system.flush(0, 0, page().freeing_tables()));
        let before = system.stats(2).flushes_full;
        system.switch(2, 0);
        let is_clean = system.stats(2).flushes_full == before;
        assert_eq!(is_clean, expected, "CPU 2 missed the first flush, and {more} more");
        system.touch(1);
    }
}

/// Between a flush and its broadcast, another flush broadcasts the whole space, which covers both.
#[test]
fn overtaken_flush_leaves_no_gap() {
    let system = Arc::new(System::<2>::new(Size::SMALL));
    (0..3).for_each(|cpu| system.switch(cpu, 0));
    system.pin(2).leave_space();
    let overtaker = Arc::clone(&system);
    system.before_next(HookPoint::Choice, move || overtaker.flush(1, 0, Extent::whole()));
    system.flush(0, 0, page());
    assert_eq!(system.total_stats().broadcasts_sent, 2);
    let before = system.stats(2).flushes_full;
    system.switch(2, 0);
    system.touch(2);
    assert_eq!(system.stats(2).flushes_full, before);
}

/// Tables are deferred because a CPU is lazy. Then a flush broadcasts to drop the tag, and is not
/// yet complete when a third flush finds out which tables can be freed.
#[test]
fn incomplete_broadcast_does_not_clear_tables() {
    let system = System::<2>::new(Size::SMALL);
    let space = &system.spaces[0];
    system.switch(2, 0);
    system.pin(2).enter_lazy();
    let mut tables = ExtentSet::new();
    tables.add(page().freeing_tables());
    let mut pages = ExtentSet::new();
    pages.add(page());

    system.unhook_tables(0);
    let mut pending = system.pin(0).flush_gathered(space, &tables);
    let deferred = pending.horizon();
    pending.wait();
    assert!(!deferred.is_clear());
    type Flush<'e> = fn(&'e System<2>) -> shootdown::Pending<'e, crate::hardware::Hardware<2>>;
    let flushes: [Flush<'_>; 2] = [
        |system| system.pin(0).flush(&system.spaces[0], Extent::whole()),
        |system| system.pin(0).flush_walkers(&system.spaces[0]),
    ];
    for flush in flushes {
        system.switch(1, 0);
        let mut incomplete = flush(&system);
        let mut pending = system.pin(3).flush_gathered(space, &pages);
        let horizon = pending.horizon();
        pending.wait();
        if horizon.cleared() >= deferred.flush() {
            system.free_tables(0);
        }
        system.speculate(2);
        assert_eq!(system.machine().freed_table_walks.load(Relaxed), 0);
        system.pin(0);
        incomplete.wait();
    }
}
