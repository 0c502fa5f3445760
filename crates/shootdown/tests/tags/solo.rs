//! What seed 003 asks for: a flush of a space that runs on one CPU tells nobody, whoever ran it
//! before.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use shootdown::{Extent, ExtentSet, Reach, Tagging};

use crate::hardware::{Moment, Size, System};
use crate::page;

const SIZES: [Size; 4] = [
    Size { broadcast: Some(Reach::Everyone), ..Size::SMALL },
    Size { broadcast: Some(Reach::Targets), ..Size::SMALL },
    Size { tagging: Tagging::Renamed, broadcast: None, ..Size::SMALL },
    Size { tagging: Tagging::PerCpu, broadcast: None, ..Size::SMALL },
];

type Goes = fn(&System<2>, u32);

const AWAY: [Goes; 4] = [
    |system, cpu| system.pin(cpu).enter_lazy(),
    |system, cpu| system.pin(cpu).leave_space(),
    |system, cpu| system.switch(cpu, 1),
    |system, cpu| {
        system.pin(cpu).offline();
        system.pin(cpu).online();
    },
];

#[test]
fn with_one_active_cpu_nobody_is_told() {
    for size in SIZES {
        for goes in AWAY {
            let system = System::<2>::new(size);
            for cpu in 0..4 {
                system.switch(cpu, 0);
                system.touch(cpu);
            }
            (1..4).for_each(|cpu| goes(&system, cpu));
            (0..100).for_each(|_| system.flush(0, 0, page()));
            let stats = system.total_stats();
            assert_eq!((stats.broadcasts_sent, stats.interrupts_sent), (0, 0));
            assert_eq!(stats.flushes_local, 100);
        }
    }
}

/// Threads move, one at a time.
#[test]
fn wherever_the_one_active_cpu_is_nobody_is_told() {
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

/// However much it has missed. It then has nothing more to make up for.
#[test]
fn who_comes_back_drops_what_is_stale_exactly_once() {
    for size in SIZES {
        for goes in &AWAY[..3] {
            let system = System::<2>::new(size);
            (0..2).for_each(|cpu| {
                system.switch(cpu, 0);
                system.touch(cpu);
            });
            goes(&system, 1);
            (0..100).for_each(|_| system.flush(0, 0, page()));
            let drops = || {
                let stats = system.stats(1);
                // Where tags are counted up, a space that takes the next one drops its old one's.
                let renamed = if size.tagging == Tagging::Renamed { stats.tags_taken } else { 0 };
                stats.flushes_full + stats.flushes_ranged + renamed
            };
            let before = drops();
            system.switch(1, 0);
            system.touch(1);
            assert_eq!(drops() - before, 1, "{:?}", size.tagging);
            for _ in 0..3 {
                goes(&system, 1);
                system.switch(1, 0);
                system.touch(1);
            }
            let to_others = if size.tagging == Tagging::Renamed { 0 } else { drops() - before - 1 };
            assert_eq!(to_others, 0, "{:?}", size.tagging);
        }
    }
}

/// Whoever was told by a broadcast, or would have been, has nothing to make up for either.
#[test]
fn who_was_away_while_everyone_was_told_keeps_its_tag() {
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

/// One flush that nobody was told of leaves a gap. The 64th after it is a broadcast of everything.
#[test]
fn a_gap_is_mended_before_long() {
    for (more, expected) in [(40, false), (63, false), (64, true), (80, true)] {
        let system = System::<2>::new(Size::SMALL);
        (0..3).for_each(|cpu| system.switch(cpu, 0));
        system.switch(1, 1);
        system.switch(2, 1);
        system.flush(0, 0, page());
        system.switch(1, 0);
        (0..more).for_each(|_| system.flush(0, 0, page()));
        let before = system.stats(2).flushes_full;
        system.switch(2, 0);
        let is_clean = system.stats(2).flushes_full == before;
        assert_eq!(is_clean, expected, "it missed the first, and {more} more");
        system.touch(1);
    }
}

/// Between a flush and its broadcast comes another one, which covers it, too.
#[test]
fn who_is_overtaken_leaves_no_gap() {
    let system = Arc::new(System::<2>::new(Size::SMALL));
    (0..3).for_each(|cpu| system.switch(cpu, 0));
    system.pin(2).leave_space();
    let overtaker = Arc::clone(&system);
    system.before_next(Moment::Choice, move || overtaker.flush(1, 0, Extent::whole()));
    system.flush(0, 0, page());
    assert_eq!(system.total_stats().broadcasts_sent, 2);
    let before = system.stats(2).flushes_full;
    system.switch(2, 0);
    system.touch(2);
    assert_eq!(system.stats(2).flushes_full, before);
}

/// Tables are held back for a CPU that is lazy; then everyone is told to drop the tag, and that is
/// not yet done when a third flush looks what can be freed.
#[test]
fn tables_are_not_cleared_by_what_is_not_complete() {
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
    type Tells<'e> = fn(&'e System<2>) -> shootdown::Pending<'e, crate::hardware::Hardware<2>>;
    let tells: [Tells<'_>; 2] = [
        |system| system.pin(0).flush(&system.spaces[0], Extent::whole()),
        |system| system.pin(0).flush_walkers(&system.spaces[0]),
    ];
    for tell in tells {
        system.switch(1, 0);
        let mut telling = tell(&system);
        let mut pending = system.pin(3).flush_gathered(space, &pages);
        let horizon = pending.horizon();
        pending.wait();
        if horizon.cleared() >= deferred.flush() {
            system.free_tables(0);
        }
        system.speculate(2);
        assert_eq!(system.machine().freed_table_walks.load(Relaxed), 0);
        system.pin(0);
        telling.wait();
    }
}
