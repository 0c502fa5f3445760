//! A CPU that is leaving a space when tags run out. It has chosen the next space's ASID, and still
//! walks the tables of the last space under an ASID that may now belong to any space.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use shootdown::{ExtentSet, Reach};

use crate::hardware::{HookPoint, Size, System};
use crate::page;

/// Flushes unhooked tables that CPU 1 is leaving and can still walk, and frees them if allowed.
type FlushTables = fn(&System<2>);

fn flush(system: &System<2>) {
    let space = &system.spaces[0];
    let mut pending = system.pin(0).flush(space, page().freeing_tables());
    if pending.poll() {
        system.free_tables(0);
    }
    // CPU 1 answers after it has switched.
    std::mem::forget(pending);
}

fn tables() -> ExtentSet {
    let mut extents = ExtentSet::new();
    extents.add(page().freeing_tables());
    extents
}

fn flush_gathered(system: &System<2>) {
    let mut pending = system.pin(0).flush_gathered(&system.spaces[0], &tables());
    let horizon = pending.horizon();
    if pending.poll() && horizon.is_clear() {
        system.free_tables(0);
    }
    std::mem::forget(pending);
}

/// CPU 2 uses the space, so that the flush is broadcast.
fn flush_gathered_by_broadcast(system: &System<2>) {
    system.switch(2, 0);
    flush_gathered(system);
}

/// The first flush defers the tables. The second flush must not clear them, while CPU 2 is lazy.
fn flush_twice_with_lazy_cpu(system: &System<2>) {
    flush_twice(system, || system.pin(2).enter_lazy());
}

/// The first flush defers the tables. The second flush must not clear them, even if only CPU 1 can
/// walk them.
fn flush_twice_after_others_left(system: &System<2>) {
    flush_twice(system, || system.pin(2).leave_space());
}

fn flush_twice(system: &System<2>, between: impl FnOnce()) {
    system.switch(2, 0);
    let mut pending = system.pin(0).flush_gathered(&system.spaces[0], &tables());
    let deferred = pending.horizon();
    pending.wait();
    between();
    let mut pages = ExtentSet::new();
    pages.add(page());
    let mut pending = system.pin(0).flush_gathered(&system.spaces[0], &pages);
    let horizon = pending.horizon();
    pending.wait();
    if horizon.cleared() >= deferred.flush() {
        system.free_tables(0);
    }
}

fn flush_walkers(system: &System<2>) {
    let mut pending = system.pin(0).flush_gathered(&system.spaces[0], &tables());
    pending.join(system.pin(0).flush_walkers(&system.spaces[0]));
    if pending.poll() {
        system.free_tables(0);
    }
    std::mem::forget(pending);
}

#[test]
fn cpu_leaving_under_reallocated_asid_is_interrupted() {
    for reach in [Reach::Everyone, Reach::Targets] {
        let flushes: [FlushTables; 6] = [
            flush,
            flush_gathered,
            flush_walkers,
            flush_gathered_by_broadcast,
            flush_twice_with_lazy_cpu,
            flush_twice_after_others_left,
        ];
        for flush in flushes {
            let size = Size { spaces: 100, broadcast: Some(reach), ..Size::SMALL };
            let system = Arc::new(System::<2>::new(size));
            system.switch(2, 1);
            system.switch(1, 0);
            let old = system.tag(1);
            system.switch(1, 1);
            system.switch(1, 0);
            system.touch(1);
            let other = Arc::clone(&system);
            system.before_next(HookPoint::Load, move || {
                // Another space gets the ASID, and this space gets another one.
                let is_reallocated = (10..100).any(|space| {
                    other.switch(3, space);
                    other.tag(3) == old
                });
                assert!(is_reallocated);
                other.switch(0, 0);
                assert_ne!(other.tag(0), old);
                other.unhook_tables(0);
                flush(&other);
            });
            system.switch(1, 1);
            system.handle_all_ipis();
            let walks = system.machine().freed_table_walks.load(Relaxed);
            assert_eq!(walks, 0, "{reach:?}");
        }
    }
}

/// A CPU that finds no free ASID for a space caches the space's tables under the kernel's tag.
/// After it has switched to another space and left that one, nothing of the first space may be
/// cached there.
#[test]
fn tables_cached_without_asid_are_dropped() {
    let system = System::<2>::new(Size { tags: 2, broadcast: None, ..Size::SMALL });
    system.switch(1, 1);
    system.switch(2, 2);
    // No ASID is free.
    system.switch(3, 3);
    assert_eq!(system.tag(3), 0);
    system.switch(3, 1);
    assert_ne!(system.tag(3), 0);
    system.unhook_tables(3);
    system.flush(0, 3, page().freeing_tables());
    system.free_tables(3);
    system.pin(3).leave_space();
    system.speculate(3);
    assert_eq!(system.machine().freed_table_walks.load(Relaxed), 0);
}
