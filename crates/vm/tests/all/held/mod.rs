//! Page tables that lazy CPUs may still walk are held back, until they cannot, and no longer; few
//! enough; and each is freed once.

mod programs;
mod threads;
mod world;

use std::sync::Arc;

use crate::platform::READ_WRITE;
use crate::platform::lock::before_next_lock;
use shootdown_vm::{Backing, Place, QuarantineStats, Sharing};
use world::{
    LAZY, OurSpace, SPACE_QUARANTINE_MAX, TABLES, World, flush_a_page, page_of, unmap, write,
};

#[test]
fn tables_that_nobody_can_walk_are_freed_at_once() {
    let world = World::new(4);
    world.design.let_go_of_space(LAZY[0]);
    unmap(&world.space, 1..3);
    assert_eq!(world.held_of_space(), 0);
    assert_eq!(world.vm.quarantined_tables(), QuarantineStats::default());
    world.end([&world.space]);
}

#[test]
fn tables_wait_for_a_lazy_cpu_and_are_freed_by_a_later_flush_of_pages() {
    let world = World::new(4);
    unmap(&world.space, 1..3);
    assert_eq!(world.pages_in_use(), 2, "pages do not wait");
    assert_eq!(world.held_of_space(), 2);
    flush_a_page(&world.space, 0);
    assert_eq!(world.held_of_space(), 2, "the CPU has been lazy all the time");
    world.design.go_lazy(LAZY[0], world.space.root());
    assert_eq!(world.held_of_space(), 2, "nobody has looked");
    flush_a_page(&world.space, 0);
    assert_eq!(world.held_of_space(), 0);
    assert_eq!(world.vm.quarantined_tables(), QuarantineStats { now: 0, peak: 2, overflows: 0 });
    assert_eq!(world.design.expels(), 0);
    world.end([&world.space]);
}

#[test]
fn each_lot_waits_for_its_own_flush() {
    let world = World::new(8);
    let root = world.space.root();
    unmap(&world.space, 1..2);
    world.design.go_lazy(LAZY[1], root);
    unmap(&world.space, 3..5);
    assert_eq!(world.held_of_space(), 3);
    // The other one has seen the first flush, and not the second.
    world.design.go_lazy(LAZY[0], root);
    flush_a_page(&world.space, 0);
    assert_eq!(world.held_of_space(), 2);
    world.design.let_go_of_space(LAZY[1]);
    unmap(&world.space, 6..7);
    assert_eq!(world.held_of_space(), 1, "the second lot is free, and the third is held");
    world.end([&world.space]);
}

#[test]
fn what_needs_no_flush_tells_nothing_of_tables() {
    let world = World::new(2);
    world
        .space
        .map(Place::Fixed(page_of(5)), READ_WRITE, Sharing::Private, Backing::Anonymous)
        .unwrap();
    unmap(&world.space, 1..2);
    let avoided = world.space.stats().flushes_avoided;
    unmap(&world.space, 5..6);
    assert_eq!(world.space.stats().flushes_avoided, avoided + 1);
    assert_eq!(world.held_of_space(), 1);
    world.end([&world.space]);
}

#[test]
fn too_many_tables_of_a_space_are_freed_by_telling_lazy_cpus_once() {
    let world = World::new(TABLES);
    unmap(&world.space, 1..1 + SPACE_QUARANTINE_MAX - 2);
    unmap(&world.space, SPACE_QUARANTINE_MAX..SPACE_QUARANTINE_MAX + 2);
    assert_eq!((world.held_of_space(), world.design.expels()), (SPACE_QUARANTINE_MAX, 0));
    unmap(&world.space, SPACE_QUARANTINE_MAX + 2..SPACE_QUARANTINE_MAX + 3);
    assert_eq!((world.held_of_space(), world.design.expels()), (0, 1));
    let rest = SPACE_QUARANTINE_MAX + 10;
    unmap(&world.space, rest..rest + SPACE_QUARANTINE_MAX + 1);
    assert_eq!((world.held_of_space(), world.design.expels()), (0, 2));
    let peak = SPACE_QUARANTINE_MAX + 1;
    assert_eq!(world.vm.quarantined_tables(), QuarantineStats { now: 0, peak, overflows: 2 });
    assert_eq!(world.design.reaps(), 0, "no dead space was to blame");
    world.end([&world.space]);
}

/// As full as it can be, and all of it is cleared by the very flush that brings more.
#[test]
fn what_a_flush_clears_makes_room_for_what_it_frees() {
    let world = World::new(TABLES);
    unmap(&world.space, 1..1 + SPACE_QUARANTINE_MAX);
    world.design.go_lazy(LAZY[0], world.space.root());
    unmap(&world.space, SPACE_QUARANTINE_MAX + 10..SPACE_QUARANTINE_MAX + 12);
    assert_eq!((world.held_of_space(), world.design.expels()), (2, 0));
    let peak = SPACE_QUARANTINE_MAX;
    assert_eq!(world.vm.quarantined_tables(), QuarantineStats { now: 2, peak, overflows: 0 });
    world.end([&world.space]);
}

#[test]
fn a_dead_space_has_no_pages_at_once_and_its_tables_until_its_last_cpu_lets_go() {
    let world = World::new(8);
    world.design.go_lazy(LAZY[1], world.space.root());
    world.speculate();
    unmap(&world.space, 1..3);
    let tables = world.host.tables_in_use() as u64;
    world.space.exit();
    let held = |count| {
        assert_eq!(world.held([]), count);
        assert_eq!(world.pages_in_use(), 0);
    };
    held(tables);
    world.design.let_go_of_space(LAZY[0]);
    world.vm.free_dead_tables();
    held(tables);
    world.design.let_go_of_space(LAZY[1]);
    held(tables);
    world.vm.free_dead_tables();
    held(0);
    assert_eq!(
        world.vm.quarantined_tables(),
        QuarantineStats { now: 0, peak: tables, overflows: 0 }
    );
    assert_eq!(world.host.retired(), 1);
    world.end([]);
}

#[test]
fn an_exit_frees_what_was_in_quarantine_along_with_the_rest() {
    let world = World::new(8);
    unmap(&world.space, 1..3);
    world.design.let_go_of_space(LAZY[0]);
    assert_eq!(world.held_of_space(), 2);
    world.space.exit();
    assert_eq!(world.held([]), 0);
    world.end([]);
}

#[test]
fn an_exit_buries_other_spaces_that_are_dead() {
    let world = World::new(8);
    let other = Arc::new(OurSpace::new(&world.vm).unwrap());
    write(&other, 3);
    world.space.exit();
    world.design.let_go_of_space(LAZY[0]);
    other.exit();
    assert_eq!(world.held([]), 0);
    world.end([]);
}

/// It lets go between being marked and the return of who marked it.
#[test]
fn a_cpu_may_bury_a_space_that_is_still_being_retired() {
    let world = World::new(8);
    let (vm, design) = (world.vm.clone(), world.design.clone());
    world.host.when_waiting(move || {
        design.let_go_of_space(LAZY[0]);
        vm.free_dead_tables();
    });
    world.space.exit();
    assert!(!world.host.hook_is_set());
    assert_eq!(world.held([]), 0);
    assert_eq!(world.vm.quarantined_tables(), QuarantineStats::default());
    world.end([]);
}

/// Whether a coherence says so, or hands the root out.
#[test]
fn what_nobody_held_was_never_held_back() {
    for hands_out_all in [false, true] {
        let world = World::new(8);
        if hands_out_all {
            world.design.hand_out_all();
        }
        unmap(&world.space, 1..3);
        world.design.let_go_of_space(LAZY[0]);
        world.space.exit();
        assert_eq!(
            world.vm.quarantined_tables(),
            QuarantineStats { now: 0, peak: 2, overflows: 0 }
        );
        world.end([]);
    }
}

#[test]
fn too_many_tables_of_dead_spaces_are_freed_by_telling_their_cpus() {
    // Each has its root, one table of each of the two middle levels, and two last ones.
    let world = World::with_quarantined_tables_max(2, 9);
    let others = [0, 1].map(|_| Arc::new(OurSpace::new(&world.vm).unwrap()));
    others.iter().for_each(|space| (0..2).for_each(|table| write(space, table)));
    world.space.exit();
    assert_eq!((world.held(&others), world.design.reaps()), (5, 0));
    assert!(world.vm.has_many_quarantined(), "more than half");
    world.design.go_lazy(LAZY[1], others[0].root());
    others[0].exit();
    assert_eq!((world.held(&others[1..]), world.design.reaps()), (0, 1));
    assert!(!world.vm.has_many_quarantined());
    others[1].exit();
    assert_eq!(world.vm.quarantined_tables(), QuarantineStats { now: 0, peak: 10, overflows: 1 });
    assert_eq!(world.design.reaps(), 1);
    world.end([]);
}

/// Each of them may hold more than that by itself.
#[test]
fn the_tables_of_living_spaces_are_bounded_all_together() {
    let max = 20;
    let world = World::with_quarantined_tables_max(40, max);
    let other = Arc::new(OurSpace::new(&world.vm).unwrap());
    (0..40).for_each(|table| write(&other, table));
    world.design.go_lazy(LAZY[1], other.root());
    let spaces = [&world.space, &other];
    for first in 1..39 {
        unmap(spaces[first as usize % 2], first..first + 1);
        assert!(world.held(spaces) <= max);
    }
    unmap(&other, 1..39);
    assert!(world.held(spaces) <= max);
    assert!(world.overflows() > 0);
    world.end(spaces);
}

/// Before lazy CPUs of spaces that live are interrupted, those of dead ones are.
#[test]
fn dead_spaces_are_told_of_before_living_ones() {
    let world = World::with_quarantined_tables_max(4, 6);
    let other = Arc::new(OurSpace::new(&world.vm).unwrap());
    (0..4).for_each(|table| write(&other, table));
    world.design.go_lazy(LAZY[0], other.root());
    world.speculate();
    world.design.go_lazy(LAZY[1], world.space.root());
    unmap(&other, 1..2);
    world.space.exit();
    assert_eq!((world.overflows(), world.design.reaps()), (1, 1));
    let third = Arc::new(OurSpace::new(&world.vm).unwrap());
    write(&third, 0);
    world.design.go_lazy(LAZY[1], third.root());
    third.exit();
    assert_eq!(world.held([&other]), 5);
    unmap(&other, 2..4);
    assert_eq!((world.held([&other]), world.design.expels()), (3, 0));
    assert_eq!((world.overflows(), world.design.reaps()), (2, 2));
    world.end([&other]);
}

/// Another CPU's flush comes right before the tables are put into quarantine, finds it empty, and
/// must not have later flushes pass it by.
#[test]
fn tables_are_not_forgotten_in_quarantine() {
    let world = World::new(4);
    let space = Arc::clone(&world.space);
    world.host.when_waiting(|| before_next_lock(move || flush_a_page(&space, 3)));
    unmap(&world.space, 1..2);
    assert_eq!(world.held_of_space(), 1);
    world.design.let_go_of_space(LAZY[0]);
    flush_a_page(&world.space, 0);
    assert_eq!(world.held_of_space(), 0);
    world.end([&world.space]);
}
