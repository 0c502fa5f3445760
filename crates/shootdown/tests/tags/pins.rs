//! ASIDs that are pinned for devices.

use shootdown::{Batch, ExtentSet, Machine as _, Reach, StaleWrites, Tag, Tagging};

use crate::hardware::{Size, System};
use crate::page;

const SIZE: Size = Size { spaces: 1000, tags: 15, ..Size::SMALL };

fn roll_over_five_times<const WORDS: usize>(system: &System<WORDS>) {
    let before = system.total_stats().rollovers;
    for space in (100..1000).cycle() {
        if system.total_stats().rollovers >= before + 5 {
            return;
        }
        for cpu in 0..4 {
            system.switch(cpu, space + cpu as usize - 90);
        }
    }
}

/// Pins leave one ASID for each CPU, and one more.
#[test]
fn pinned_asids_survive_rollovers() {
    let system = System::<2>::new(SIZE);
    let pin = |space: usize| system.pin(0).pin_tag(&system.spaces[space]);
    let pinned: Vec<_> = (0..10).map(|space| pin(space).unwrap()).collect();
    assert_eq!(pin(10), None);
    // A space that is pinned already needs no other ASID.
    assert_eq!(pin(3), Some(pinned[3]));
    roll_over_five_times(&system);
    for (space, &tag) in pinned.iter().enumerate() {
        for cpu in 0..4 {
            system.switch(cpu, space);
            assert_eq!(Tag(system.tag(cpu)), tag);
        }
        assert_eq!(pin(space), Some(tag));
    }
    // SAFETY: there is no device.
    let unpin = |space: usize| unsafe { system.pin(0).unpin_tag(&system.spaces[space]) };
    (0..10).for_each(unpin);
    assert_eq!(pin(10), None, "each space was pinned at least twice");
    unpin(3);
    assert_eq!(pin(10), None, "space 3 was pinned three times");
    unpin(3);
    assert!(pin(10).is_some());
    assert_eq!(pin(11), None);
}

/// An unpinned ASID is given to another space after the next rollover, not earlier.
#[test]
fn unpinned_asids_are_allocated_again() {
    let system = System::<2>::new(SIZE);
    for _ in 0..20 {
        for space in 0..10 {
            system.pin(1).pin_tag(&system.spaces[space]).expect("no space is pinned");
        }
        roll_over_five_times(&system);
        for space in 0..10 {
            // SAFETY: there is no device.
            unsafe { system.pin(2).unpin_tag(&system.spaces[space]) };
        }
        let before = system.total_stats();
        roll_over_five_times(&system);
        let after = system.total_stats();
        let each = (after.tags_taken - before.tags_taken) / (after.rollovers - before.rollovers);
        assert!(each >= 8, "4 of 15 ASIDs are loaded, but each epoch allocates only {each}");
    }
}

/// Unpinning one space leaves the others pinned.
#[test]
fn pinned_asid_is_never_reallocated() {
    let system = System::<2>::new(SIZE);
    let pinned: Vec<_> =
        (0..10).map(|space| system.pin(0).pin_tag(&system.spaces[space]).unwrap()).collect();
    // SAFETY: there is no device.
    unsafe { system.pin(0).unpin_tag(&system.spaces[4]) };
    let (mut got_unpinned, before) = (false, system.total_stats().rollovers);
    for space in (100..1000).cycle() {
        if system.total_stats().rollovers >= before + 3 {
            break;
        }
        system.switch(1, space);
        let tag = Tag(system.tag(1));
        got_unpinned |= tag == pinned[4];
        assert!(tag == pinned[4] || !pinned.contains(&tag), "{tag:?} is pinned");
    }
    assert!(got_unpinned);
}

#[test]
fn space_is_pinned_up_to_255_times() {
    let system = System::<2>::new(SIZE);
    let tags: Vec<_> = (0..256).map(|_| system.pin(0).pin_tag(&system.spaces[0])).collect();
    assert!(tags[0].is_some() && tags[..255].iter().all(|&tag| tag == tags[0]));
    assert_eq!(tags[255], None);
}

#[test]
fn machine_without_full_broadcasts_pins_nothing() {
    for (tagging, broadcast, tags) in [
        (Tagging::Global, None, 15),
        (Tagging::Global, Some(Reach::Targets), 15),
        (Tagging::Global, Some(Reach::Everyone), 4),
        (Tagging::Renamed, Some(Reach::Everyone), 15),
        (Tagging::PerCpu, Some(Reach::Everyone), 15),
    ] {
        let system = System::<2>::new(Size { tagging, broadcast, tags, ..SIZE });
        assert_eq!(system.pin(0).pin_tag(&system.spaces[0]), None);
    }
}

/// Gathered flushes and batches of a pinned space are broadcast.
#[test]
fn gathers_and_batches_reach_devices() {
    let system = System::<2>::new(SIZE);
    let space = &system.spaces[0];
    system.pin(0).pin_tag(space).unwrap();
    let broadcasts = |is_gathered| {
        let before = system.total_stats().broadcasts_sent;
        let pin = system.pin(0);
        if is_gathered {
            let mut extents = ExtentSet::new();
            extents.add(page());
            pin.flush_gathered(space, &extents).wait();
        } else {
            let mut batch: Batch<_, Vec<u64>> = Batch::new();
            let entry = batch.space(system.machine(), &space).unwrap();
            entry.unmapped(&pin, page(), StaleWrites::Impossible).wait();
            batch.send(&pin).wait();
        }
        assert_eq!(system.total_stats().interrupts_sent, 0);
        system.total_stats().broadcasts_sent - before
    };
    assert_eq!((broadcasts(true), broadcasts(false)), (1, 1), "no CPU uses the space");
    system.switch(0, 0);
    system.switch(1, 0);
    system.pin(1).enter_lazy();
    assert_eq!((broadcasts(true), broadcasts(false)), (1, 1));
    // SAFETY: there is no device.
    unsafe { system.pin(0).unpin_tag(space) };
    assert_eq!((broadcasts(true), broadcasts(false)), (0, 0));
}

/// CPU 3 acts as the device: it loads the space's root without the engine.
#[test]
fn every_flush_reaches_devices() {
    let system = System::<2>::new(SIZE);
    let tag = system.pin(0).pin_tag(&system.spaces[0]).unwrap();
    system.pin(3);
    // SAFETY: the space and its page tables live as long as the machine.
    unsafe { system.machine().load(system.spaces[0].root(), tag, shootdown::Entries::Keep) };
    // No CPU uses the space, or only the flushing CPU, or others that are present, lazy, or away.
    let flush = |cpu| {
        let before = system.total_stats();
        system.touch(3);
        system.flush(cpu, 0, page().freeing_tables());
        system.touch(3);
        assert_eq!(system.total_stats().broadcasts_sent - before.broadcasts_sent, 1);
        assert_eq!(system.total_stats().interrupts_sent, 0);
    };
    flush(1);
    system.switch(0, 0);
    flush(0);
    flush(1);
    system.switch(2, 0);
    flush(0);
    system.pin(2).enter_lazy();
    flush(0);
    system.pin(2).leave_space();
    flush(0);
    // SAFETY: there is no device.
    unsafe { system.pin(0).unpin_tag(&system.spaces[0]) };
    let before = system.total_stats().broadcasts_sent;
    system.flush(0, 0, page());
    assert_eq!(system.total_stats().broadcasts_sent, before);
}

/// CPU 0 ends space 0, and is on space 1. Tags do not run out.
fn space_0_ends(before_it_ends: fn(&System<2>)) -> (System<2>, Tag) {
    let system = System::<2>::new(SIZE);
    system.switch(0, 0);
    system.touch(0);
    let tag = Tag(system.tag(0));
    before_it_ends(&system);
    system.switch(0, 1);
    system.retire(0, 0);
    (system, tag)
}

/// A device may hold translations under the ASID.
#[test]
fn asid_of_pinned_dead_space_is_not_recycled() {
    let (system, tag) = space_0_ends(|system| {
        system.pin(0).pin_tag(&system.spaces[0]).unwrap();
    });
    for space in 2..10 {
        system.switch(0, space);
        assert_ne!(Tag(system.tag(0)), tag);
    }
    assert_eq!(system.total_stats().rollovers, 0);
}

#[test]
fn pinned_space_with_recycled_asid_is_clean() {
    let (system, tag) = space_0_ends(|_| ());
    assert_eq!(system.pin(0).pin_tag(&system.spaces[2]), Some(tag), "the ASID is recycled");
    system.switch(0, 2);
    system.touch(0);
}
