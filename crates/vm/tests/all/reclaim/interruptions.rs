//! Two operations, the second at every interruption point of the first: between any two of its
//! platform calls.

use std::cell::Cell;
use std::sync::Arc;

use shootdown_vm::{Advice, Backing, Place, Sharing};

use crate::platform::*;
use crate::reclaim::fixture::*;

/// Runs each operation with reclaim at every interruption point. No page is released twice or lost,
/// and reads return the written values.
fn reclaim_at_any_point_is_safe<const LOCK: u8>() {
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
        let interrupts_at = |point: &u64| {
            let fixture = Fixture::<LOCK>::new();
            fixture.map_file(0, 4, Sharing::Shared);
            (0..4).for_each(|page| assert!(write(&fixture.space, 1, page, page + 1).is_ok()));
            fixture.map_file(4, 4, Sharing::Private);
            cache(&fixture.space, 2, 4..8);
            let other = Arc::clone(&fixture.space);
            fixture.host.interrupt_after(*point, move || {
                (0..NODES).for_each(|node| assert!(other.vm().reclaim(node, 9).freed < 9));
            });
            operation(&fixture.space);
            let is_complete = fixture.host.cancel_interruption();
            fixture.host.check_caches();
            fixture.end();
            !is_complete
        };
        assert!((0..).take_while(interrupts_at).count() > 10);
    }
}

/// Ends areas and their file at every interruption point of reclaim.
fn close_during_reclaim_is_safe<const LOCK: u8>() {
    let interrupts_at = |point: &u64| {
        let Fixture { host, file, space } = Fixture::<LOCK>::new();
        for first in [0, 4] {
            let backing = Backing::File { file: Arc::clone(&file), first_page: 0 };
            let place = Place::Fixed(pages(first, 4));
            space.map(place, READ_WRITE, Sharing::Shared, backing).unwrap();
            cache(&space, 2, first..first + 4);
        }
        write(&space, 1, 1, 1).unwrap();
        let other = Arc::clone(&space);
        let file = Cell::new(Some(file));
        host.interrupt_after(*point, move || {
            other.unmap(pages(0, 4)).unwrap();
            other.advise(pages(4, 4), Advice::DontNeed).unwrap();
            file.take().into_iter().for_each(|file| other.vm().close(file));
            other.unmap(pages(4, 4)).unwrap();
        });
        (0..NODES).for_each(|node| assert!(space.vm().reclaim(node, 9).freed < 9));
        let is_complete = host.cancel_interruption();
        host.check_caches();
        space.exit();
        space.vm().reclaim(0, 9);
        drop(space);
        assert!(is_complete || host.frames_in_use() == 1, "point {point}");
        !is_complete
    };
    assert!((0..).take_while(interrupts_at).count() > 10);
}

/// While one CPU reads a page in, another CPU also reads it in, writes to it, and has it reclaimed.
/// The data of the first read is then outdated.
#[test]
fn page_written_out_during_read_is_kept() {
    let interrupts_at = |point: &u64| {
        let fixture = Fixture::<BATCHING>::new();
        fixture.map_file(0, 1, Sharing::Shared);
        let other = Arc::clone(&fixture.space);
        fixture.host.interrupt_after(*point, move || {
            assert_eq!(write(&other, 1, 0, 9), Ok(9));
            for node in 0..NODES {
                other.vm().reclaim(node, 9);
            }
        });
        let found = read(&fixture.space, 0, 0);
        let is_complete = fixture.host.cancel_interruption();
        if !is_complete {
            assert!(found == Ok(0) || found == Ok(9));
            assert_eq!(read(&fixture.space, 2, 0), Ok(9), "point {point}");
        }
        fixture.host.check_caches();
        fixture.end();
        !is_complete
    };
    assert!((0..).take_while(interrupts_at).count() > 10);
}

/// Reclaim examines a page that was freed by advice while another CPU writes to it, and may find
/// its entry claimed. After another advice the page can still be reclaimed.
#[test]
fn busy_page_is_reclaimed_later() {
    let interrupts_at = |point: &u64| {
        let fixture = Fixture::<BATCHING>::new();
        fixture.map_anonymous(0, 1);
        write(&fixture.space, 0, 0, 7).unwrap();
        // After the child's exit the page is not shared, and not writable.
        fixture.space.fork().unwrap().exit();
        fixture.space.advise(pages(0, 1), Advice::Free).unwrap();
        let other = Arc::clone(&fixture.space);
        fixture.host.interrupt_after(*point, move || {
            for node in 0..NODES {
                other.vm().reclaim(node, 9);
            }
        });
        assert_eq!(write(&fixture.space, 0, 0, 8), Ok(8));
        let is_complete = fixture.host.cancel_interruption();
        assert_eq!(read(&fixture.space, 1, 0), Ok(8));
        fixture.space.advise(pages(0, 1), Advice::Free).unwrap();
        assert_eq!(fixture.reclaim(), 1, "point {point}");
        fixture.host.check_caches();
        fixture.end();
        !is_complete
    };
    assert!((0..).take_while(interrupts_at).count() > 5);
}

#[test]
fn close_during_reclaim_is_safe_page_by_page() {
    close_during_reclaim_is_safe::<RELEASED>();
}

#[test]
fn close_during_reclaim_is_safe_in_batches() {
    close_during_reclaim_is_safe::<BATCHING>();
}

#[test]
fn reclaim_at_any_point_is_safe_page_by_page() {
    reclaim_at_any_point_is_safe::<RELEASED>();
}

#[test]
fn reclaim_at_any_point_is_safe_in_batches() {
    reclaim_at_any_point_is_safe::<BATCHING>();
}

#[test]
fn close_during_reclaim_is_safe_at_reuse() {
    close_during_reclaim_is_safe::<REUSING>();
}

#[test]
fn reclaim_at_any_point_is_safe_at_reuse() {
    reclaim_at_any_point_is_safe::<REUSING>();
}
