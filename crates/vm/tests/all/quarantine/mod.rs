//! The quarantine: page tables that lazy CPUs may still walk are kept until they cannot be walked,
//! and no longer. Their number is bounded, and each is freed once.

mod fixture;
mod programs;
mod threads;

use std::sync::Arc;

use crate::platform::READ_WRITE;
use crate::platform::lock::before_next_lock;
use fixture::{
    Fixture, LAZY, OurSpace, SPACE_QUARANTINE_MAX, TABLES, flush_a_page, page_of, unmap, write,
};
use shootdown_vm::{Backing, Place, QuarantineStats, Sharing};

#[test]
fn unwalkable_tables_are_freed_immediately() {
    let fixture = Fixture::new(4);
    fixture.design.leave_space(LAZY[0]);
    unmap(&fixture.space, 1..3);
    assert_eq!(fixture.quarantined_of_space(), 0);
    assert_eq!(fixture.vm.quarantined_tables(), QuarantineStats::default());
    fixture.end([&fixture.space]);
}

#[test]
fn later_flush_frees_tables_of_lazy_cpu() {
    let fixture = Fixture::new(4);
    unmap(&fixture.space, 1..3);
    assert_eq!(fixture.pages_in_use(), 2, "pages are freed immediately");
    assert_eq!(fixture.quarantined_of_space(), 2);
    flush_a_page(&fixture.space, 0);
    assert_eq!(fixture.quarantined_of_space(), 2, "the CPU is still lazy");
    fixture.design.go_lazy(LAZY[0], fixture.space.root());
    assert_eq!(fixture.quarantined_of_space(), 2, "no flush has examined the quarantine");
    flush_a_page(&fixture.space, 0);
    assert_eq!(fixture.quarantined_of_space(), 0);
    assert_eq!(fixture.vm.quarantined_tables(), QuarantineStats { now: 0, peak: 2, overflows: 0 });
    assert_eq!(fixture.design.walker_flushes(), 0);
    fixture.end([&fixture.space]);
}

#[test]
fn each_table_waits_for_its_own_flush() {
    let fixture = Fixture::new(8);
    let root = fixture.space.root();
    unmap(&fixture.space, 1..2);
    fixture.design.go_lazy(LAZY[1], root);
    unmap(&fixture.space, 3..5);
    assert_eq!(fixture.quarantined_of_space(), 3);
    // CPU 1 has seen the first flush, and not the second.
    fixture.design.go_lazy(LAZY[0], root);
    flush_a_page(&fixture.space, 0);
    assert_eq!(fixture.quarantined_of_space(), 2);
    fixture.design.leave_space(LAZY[1]);
    unmap(&fixture.space, 6..7);
    assert_eq!(
        fixture.quarantined_of_space(),
        1,
        "the second table is free, the third is quarantined"
    );
    fixture.end([&fixture.space]);
}

#[test]
fn operation_without_flush_frees_no_quarantined_table() {
    let fixture = Fixture::new(2);
    fixture
        .space
        .map(Place::Fixed(page_of(5)), READ_WRITE, Sharing::Private, Backing::Anonymous)
        .unwrap();
    unmap(&fixture.space, 1..2);
    let avoided = fixture.space.stats().flushes_avoided;
    unmap(&fixture.space, 5..6);
    assert_eq!(fixture.space.stats().flushes_avoided, avoided + 1);
    assert_eq!(fixture.quarantined_of_space(), 1);
    fixture.end([&fixture.space]);
}

#[test]
fn full_space_quarantine_interrupts_lazy_cpus_once() {
    let fixture = Fixture::new(TABLES);
    unmap(&fixture.space, 1..1 + SPACE_QUARANTINE_MAX - 2);
    unmap(&fixture.space, SPACE_QUARANTINE_MAX..SPACE_QUARANTINE_MAX + 2);
    assert_eq!(
        (fixture.quarantined_of_space(), fixture.design.walker_flushes()),
        (SPACE_QUARANTINE_MAX, 0)
    );
    unmap(&fixture.space, SPACE_QUARANTINE_MAX + 2..SPACE_QUARANTINE_MAX + 3);
    assert_eq!((fixture.quarantined_of_space(), fixture.design.walker_flushes()), (0, 1));
    let rest = SPACE_QUARANTINE_MAX + 10;
    unmap(&fixture.space, rest..rest + SPACE_QUARANTINE_MAX + 1);
    assert_eq!((fixture.quarantined_of_space(), fixture.design.walker_flushes()), (0, 2));
    let peak = SPACE_QUARANTINE_MAX + 1;
    assert_eq!(fixture.vm.quarantined_tables(), QuarantineStats { now: 0, peak, overflows: 2 });
    assert_eq!(fixture.design.reaps(), 0, "there was no dead space");
    fixture.end([&fixture.space]);
}

/// The quarantine is full, and the flush that brings more tables also clears all of them.
#[test]
fn cleared_tables_make_room_in_quarantine() {
    let fixture = Fixture::new(TABLES);
    unmap(&fixture.space, 1..1 + SPACE_QUARANTINE_MAX);
    fixture.design.go_lazy(LAZY[0], fixture.space.root());
    unmap(&fixture.space, SPACE_QUARANTINE_MAX + 10..SPACE_QUARANTINE_MAX + 12);
    assert_eq!((fixture.quarantined_of_space(), fixture.design.walker_flushes()), (2, 0));
    let peak = SPACE_QUARANTINE_MAX;
    assert_eq!(fixture.vm.quarantined_tables(), QuarantineStats { now: 2, peak, overflows: 0 });
    fixture.end([&fixture.space]);
}

#[test]
fn dead_space_keeps_tables_until_last_cpu_leaves() {
    let fixture = Fixture::new(8);
    fixture.design.go_lazy(LAZY[1], fixture.space.root());
    fixture.speculate();
    unmap(&fixture.space, 1..3);
    let tables = fixture.host.tables_in_use() as u64;
    fixture.space.exit();
    let quarantined = |count| {
        assert_eq!(fixture.quarantined([]), count);
        assert_eq!(fixture.pages_in_use(), 0);
    };
    quarantined(tables);
    fixture.design.leave_space(LAZY[0]);
    fixture.vm.free_dead_tables();
    quarantined(tables);
    fixture.design.leave_space(LAZY[1]);
    quarantined(tables);
    fixture.vm.free_dead_tables();
    quarantined(0);
    assert_eq!(
        fixture.vm.quarantined_tables(),
        QuarantineStats { now: 0, peak: tables, overflows: 0 }
    );
    assert_eq!(fixture.host.retired(), 1);
    fixture.end([]);
}

#[test]
fn exit_frees_quarantined_tables() {
    let fixture = Fixture::new(8);
    unmap(&fixture.space, 1..3);
    fixture.design.leave_space(LAZY[0]);
    assert_eq!(fixture.quarantined_of_space(), 2);
    fixture.space.exit();
    assert_eq!(fixture.quarantined([]), 0);
    fixture.end([]);
}

#[test]
fn exit_frees_other_dead_spaces() {
    let fixture = Fixture::new(8);
    let other = Arc::new(OurSpace::new(&fixture.vm).unwrap());
    write(&other, 3);
    fixture.space.exit();
    fixture.design.leave_space(LAZY[0]);
    other.exit();
    assert_eq!(fixture.quarantined([]), 0);
    fixture.end([]);
}

/// A CPU leaves the space after `retire` has marked it and before `retire` returns.
#[test]
fn space_can_be_freed_during_retire() {
    let fixture = Fixture::new(8);
    let (vm, design) = (fixture.vm.clone(), fixture.design.clone());
    fixture.host.when_waiting(move || {
        design.leave_space(LAZY[0]);
        vm.free_dead_tables();
    });
    fixture.space.exit();
    assert!(!fixture.host.hook_is_set());
    assert_eq!(fixture.quarantined([]), 0);
    assert_eq!(fixture.vm.quarantined_tables(), QuarantineStats::default());
    fixture.end([]);
}

/// The coherence may report such a space as free, or return its root from `take_dead`.
#[test]
fn unloaded_space_is_never_counted_as_quarantined() {
    for never_free in [false, true] {
        let fixture = Fixture::new(8);
        if never_free {
            fixture.design.never_return_free();
        }
        unmap(&fixture.space, 1..3);
        fixture.design.leave_space(LAZY[0]);
        fixture.space.exit();
        assert_eq!(
            fixture.vm.quarantined_tables(),
            QuarantineStats { now: 0, peak: 2, overflows: 0 }
        );
        fixture.end([]);
    }
}

#[test]
fn full_quarantine_reaps_dead_spaces() {
    // Each space has its root, one table at each of the two middle levels, and two tables of level
    // 0.
    let fixture = Fixture::with_quarantined_tables_max(2, 9);
    let others = [0, 1].map(|_| Arc::new(OurSpace::new(&fixture.vm).unwrap()));
    others.iter().for_each(|space| (0..2).for_each(|table| write(space, table)));
    fixture.space.exit();
    assert_eq!((fixture.quarantined(&others), fixture.design.reaps()), (5, 0));
    assert!(fixture.vm.has_many_quarantined(), "more than half of the limit is in use");
    fixture.design.go_lazy(LAZY[1], others[0].root());
    others[0].exit();
    assert_eq!((fixture.quarantined(&others[1..]), fixture.design.reaps()), (0, 1));
    assert!(!fixture.vm.has_many_quarantined());
    others[1].exit();
    assert_eq!(fixture.vm.quarantined_tables(), QuarantineStats { now: 0, peak: 10, overflows: 1 });
    assert_eq!(fixture.design.reaps(), 1);
    fixture.end([]);
}

/// Each space alone may have more quarantined tables than the common limit.
#[test]
fn quarantine_bound_covers_all_live_spaces() {
    let max = 20;
    let fixture = Fixture::with_quarantined_tables_max(40, max);
    let other = Arc::new(OurSpace::new(&fixture.vm).unwrap());
    (0..40).for_each(|table| write(&other, table));
    fixture.design.go_lazy(LAZY[1], other.root());
    let spaces = [&fixture.space, &other];
    for first in 1..39 {
        unmap(spaces[first as usize % 2], first..first + 1);
        assert!(fixture.quarantined(spaces) <= max);
    }
    unmap(&other, 1..39);
    assert!(fixture.quarantined(spaces) <= max);
    assert!(fixture.overflows() > 0);
    fixture.end(spaces);
}

/// Lazy CPUs of dead spaces are interrupted before those of live spaces.
#[test]
fn dead_spaces_are_reaped_before_live_walkers() {
    let fixture = Fixture::with_quarantined_tables_max(4, 6);
    let other = Arc::new(OurSpace::new(&fixture.vm).unwrap());
    (0..4).for_each(|table| write(&other, table));
    fixture.design.go_lazy(LAZY[0], other.root());
    fixture.speculate();
    fixture.design.go_lazy(LAZY[1], fixture.space.root());
    unmap(&other, 1..2);
    fixture.space.exit();
    assert_eq!((fixture.overflows(), fixture.design.reaps()), (1, 1));
    let third = Arc::new(OurSpace::new(&fixture.vm).unwrap());
    write(&third, 0);
    fixture.design.go_lazy(LAZY[1], third.root());
    third.exit();
    assert_eq!(fixture.quarantined([&other]), 5);
    unmap(&other, 2..4);
    assert_eq!((fixture.quarantined([&other]), fixture.design.walker_flushes()), (3, 0));
    assert_eq!((fixture.overflows(), fixture.design.reaps()), (2, 2));
    fixture.end([&other]);
}

/// Another CPU's flush comes right before the tables are added to the quarantine, and finds it
/// empty. Later flushes must examine the quarantine nevertheless.
#[test]
fn concurrent_flush_does_not_lose_quarantined_tables() {
    let fixture = Fixture::new(4);
    let space = Arc::clone(&fixture.space);
    fixture.host.when_waiting(|| before_next_lock(move || flush_a_page(&space, 3)));
    unmap(&fixture.space, 1..2);
    assert_eq!(fixture.quarantined_of_space(), 1);
    fixture.design.leave_space(LAZY[0]);
    flush_a_page(&fixture.space, 0);
    assert_eq!(fixture.quarantined_of_space(), 0);
    fixture.end([&fixture.space]);
}
