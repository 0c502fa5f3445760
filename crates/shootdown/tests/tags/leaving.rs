//! A CPU on its way out of a space, in whose middle tags run out: it has taken the next space's
//! number, and still walks the tables of the last one under a number that may be anybody's.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use shootdown::{ExtentSet, Reach};

use crate::hardware::{Moment, Size, System};
use crate::page;

/// What is done to tables that CPU 1 is about to leave, and can still walk.
type Ends = fn(&System<2>);

fn flushed(system: &System<2>) {
    let space = &system.spaces[0];
    let mut pending = system.pin(0).flush(space, page().freeing_tables());
    if pending.poll() {
        system.free_tables(0);
    }
    // CPU 1 answers when it has switched.
    std::mem::forget(pending);
}

fn tables() -> ExtentSet {
    let mut extents = ExtentSet::new();
    extents.add(page().freeing_tables());
    extents
}

fn gathered(system: &System<2>) {
    let mut pending = system.pin(0).flush_gathered(&system.spaces[0], &tables());
    let horizon = pending.horizon();
    if pending.poll() && horizon.is_clear() {
        system.free_tables(0);
    }
    std::mem::forget(pending);
}

/// CPU 2 uses the space, so that it is broadcast.
fn gathered_and_sent(system: &System<2>) {
    system.switch(2, 0);
    gathered(system);
}

/// What the first flush did not clear, the second one does not take to be so: whoever is lazy then.
fn gathered_before(system: &System<2>) {
    gathered_before_it(system, || system.pin(2).enter_lazy());
}

/// Nor if nobody but CPU 1 can walk them.
fn gathered_before_others_left(system: &System<2>) {
    gathered_before_it(system, || system.pin(2).leave_space());
}

fn gathered_before_it(system: &System<2>, goes: impl FnOnce()) {
    system.switch(2, 0);
    let mut pending = system.pin(0).flush_gathered(&system.spaces[0], &tables());
    let deferred = pending.horizon();
    pending.wait();
    goes();
    let mut pages = ExtentSet::new();
    pages.add(page());
    let mut pending = system.pin(0).flush_gathered(&system.spaces[0], &pages);
    let horizon = pending.horizon();
    pending.wait();
    if horizon.cleared() >= deferred.flush() {
        system.free_tables(0);
    }
}

fn walkers_flushed(system: &System<2>) {
    let mut pending = system.pin(0).flush_gathered(&system.spaces[0], &tables());
    pending.join(system.pin(0).flush_walkers(&system.spaces[0]));
    if pending.poll() {
        system.free_tables(0);
    }
    std::mem::forget(pending);
}

#[test]
fn who_is_leaving_under_a_number_that_is_gone_is_told_all_the_same() {
    for reach in [Reach::Everyone, Reach::Targets] {
        let all = [flushed as Ends, gathered, walkers_flushed];
        let sent = [gathered_and_sent as Ends, gathered_before, gathered_before_others_left];
        for ends in all.into_iter().chain(sent) {
            let size = Size { spaces: 100, broadcast: Some(reach), ..Size::SMALL };
            let system = Arc::new(System::<2>::new(size));
            system.switch(2, 1);
            system.switch(1, 0);
            let old = system.tag(1);
            system.switch(1, 1);
            system.switch(1, 0);
            system.touch(1);
            let meanwhile = Arc::clone(&system);
            system.before_next(Moment::Load, move || {
                // Somebody else gets the number, and the space another one.
                let takes_it = (10..100).any(|space| {
                    meanwhile.switch(3, space);
                    meanwhile.tag(3) == old
                });
                assert!(takes_it);
                meanwhile.switch(0, 0);
                assert_ne!(meanwhile.tag(0), old);
                meanwhile.unhook_tables(0);
                ends(&meanwhile);
            });
            system.switch(1, 1);
            system.answer_all();
            let walks = system.machine().freed_table_walks.load(Relaxed);
            assert_eq!(walks, 0, "{reach:?}");
        }
    }
}

/// A CPU that found no number for a space caches its tables under the kernel's; when it has gone on
/// to another space and lets go of that, too, nothing of the first may be left there.
#[test]
fn what_was_cached_without_a_tag_is_gone_with_the_space() {
    let system = System::<2>::new(Size { tags: 2, broadcast: None, ..Size::SMALL });
    system.switch(1, 1);
    system.switch(2, 2);
    // None is left.
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
