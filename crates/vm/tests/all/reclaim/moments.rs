//! Two operations, of which the second comes at every moment of the first: between any two of its
//! calls of the platform.

use std::cell::Cell;
use std::sync::Arc;

use shootdown_vm::{Advice, Backing, Place, Sharing};

use crate::platform::*;
use crate::reclaim::world::*;

/// Each of these, with reclaim at every moment of it: no page is released twice or lost, and what
/// is read is what was written.
fn reclaim_comes_at_every_moment<const LOCK: u8>() {
    type Operation<const LOCK: u8> = fn(&OurSpace<LOCK>);
    let operations: [Operation<LOCK>; 5] = [
        |space| space.exit(),
        |space| {
            let child = space.fork().unwrap();
            (0..8).for_each(|page| assert_eq!(read(&child, 0, page), Ok(page % 4 + 1)));
            child.exit();
        },
        |space| space.unmap(pages(2, 4)).unwrap(),
        |space| space.protect(pages(0, 8), READ).unwrap(),
        |space| {
            space.remap(pages(0, 4), pages(20, 4)).unwrap();
            (0..4).for_each(|page| assert_eq!(read(space, 0, page + 20), Ok(page + 1)));
        },
    ];
    for operation in operations {
        let comes_at = |moment: &u64| {
            let world = World::<LOCK>::new();
            world.map_file(0, 4, Sharing::Shared);
            (0..4).for_each(|page| assert!(write(&world.space, 1, page, page + 1).is_ok()));
            world.map_file(4, 4, Sharing::Private);
            cache(&world.space, 2, 4..8);
            let other = Arc::clone(&world.space);
            world.host.interrupt_after(*moment, move || {
                (0..NODES).for_each(|node| assert!(other.vm().reclaim(node, 9).freed < 9));
            });
            operation(&world.space);
            let is_over = world.host.cancel_interruption();
            world.host.check_caches();
            world.end();
            !is_over
        };
        assert!((0..).take_while(comes_at).count() > 10);
    }
}

/// The other way round: the end of areas and of their file comes at every moment of reclaim.
fn the_end_comes_at_every_moment<const LOCK: u8>() {
    let comes_at = |moment: &u64| {
        let World { host, file, space } = World::<LOCK>::new();
        for first in [0, 4] {
            let backing = Backing::File { file: Arc::clone(&file), first_page: 0 };
            let place = Place::Fixed(pages(first, 4));
            space.map(place, READ_WRITE, Sharing::Shared, backing).unwrap();
            cache(&space, 2, first..first + 4);
        }
        write(&space, 1, 1, 1).unwrap();
        let other = Arc::clone(&space);
        let file = Cell::new(Some(file));
        host.interrupt_after(*moment, move || {
            other.unmap(pages(0, 4)).unwrap();
            other.advise(pages(4, 4), Advice::DontNeed).unwrap();
            file.take().into_iter().for_each(|file| other.vm().close(file));
            other.unmap(pages(4, 4)).unwrap();
        });
        (0..NODES).for_each(|node| assert!(space.vm().reclaim(node, 9).freed < 9));
        let is_over = host.cancel_interruption();
        host.check_caches();
        space.exit();
        drop(space);
        assert!(is_over || host.frames_in_use() == 1, "moment {moment}");
        !is_over
    };
    assert!((0..).take_while(comes_at).count() > 10);
}

/// While one CPU reads a page in, another does, too, writes to it, and has it reclaimed: what the
/// first has read is outdated.
#[test]
fn what_is_written_out_while_it_is_read_in_is_not_lost() {
    let comes_at = |moment: &u64| {
        let world = World::<BATCHING>::new();
        world.map_file(0, 1, Sharing::Shared);
        let other = Arc::clone(&world.space);
        world.host.interrupt_after(*moment, move || {
            assert_eq!(write(&other, 1, 0, 9), Ok(9));
            for node in 0..NODES {
                other.vm().reclaim(node, 9);
            }
        });
        let found = read(&world.space, 0, 0);
        let is_over = world.host.cancel_interruption();
        if !is_over {
            assert!(found == Ok(0) || found == Ok(9));
            assert_eq!(read(&world.space, 2, 0), Ok(9), "moment {moment}");
        }
        world.host.check_caches();
        world.end();
        !is_over
    };
    assert!((0..).take_while(comes_at).count() > 10);
}

/// Reclaim comes to a page that was given up while somebody writes to it, and may find its entry
/// claimed: given up again, it can still be taken.
#[test]
fn what_was_busy_is_come_to_again() {
    let comes_at = |moment: &u64| {
        let world = World::<BATCHING>::new();
        world.map_anonymous(0, 1);
        write(&world.space, 0, 0, 7).unwrap();
        // What is left when the child is gone is ours alone, and not writable.
        world.space.fork().unwrap().exit();
        world.space.advise(pages(0, 1), Advice::Free).unwrap();
        let other = Arc::clone(&world.space);
        world.host.interrupt_after(*moment, move || {
            for node in 0..NODES {
                other.vm().reclaim(node, 9);
            }
        });
        assert_eq!(write(&world.space, 0, 0, 8), Ok(8));
        let is_over = world.host.cancel_interruption();
        assert_eq!(read(&world.space, 1, 0), Ok(8));
        world.space.advise(pages(0, 1), Advice::Free).unwrap();
        assert_eq!(world.reclaim(), 1, "moment {moment}");
        world.host.check_caches();
        world.end();
        !is_over
    };
    assert!((0..).take_while(comes_at).count() > 5);
}

#[test]
fn the_end_comes_at_every_moment_page_by_page() {
    the_end_comes_at_every_moment::<RELEASED>();
}

#[test]
fn the_end_comes_at_every_moment_in_batches() {
    the_end_comes_at_every_moment::<BATCHING>();
}

#[test]
fn reclaim_comes_at_every_moment_page_by_page() {
    reclaim_comes_at_every_moment::<RELEASED>();
}

#[test]
fn reclaim_comes_at_every_moment_in_batches() {
    reclaim_comes_at_every_moment::<BATCHING>();
}
