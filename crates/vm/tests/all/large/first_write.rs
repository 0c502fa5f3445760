//! Large pages that a fault maps at the first write.

use std::sync::Arc;
use std::thread;

use shootdown_vm::{
    Access, AddressSpace, Advice, Backing, BadRange, Cause, File, Frame, Place, Platform as _,
    Sharing,
};

use crate::large::fixture::*;
use crate::platform::*;

/// Creates a fixture in which blocks 0 to 2 are one area that uses large pages.
fn huge<const LOCK: u8>(fixture: Fixture<LOCK>) -> Fixture<LOCK> {
    fixture.map(at(0, 3 * BLOCK));
    fixture.space.use_large_pages(at(0, 3 * BLOCK)).unwrap();
    fixture
}

#[test]
fn first_write_maps_large_page_until_part_is_discarded() {
    let fixture = huge(Fixture::<RELEASED>::new());
    let space = &fixture.space;
    write(space, 1, BLOCK + 7, 5);
    assert!(fixture.is_large(1) && !fixture.is_large(0));
    // All of the block can be written without another fault.
    assert_eq!(touch(space, 1, BLOCK + 500, Access::Write, 6), Ok(6));
    assert_eq!(read(space, 2, BLOCK), 0);
    assert_eq!(fixture.host.take_flushes(), [], "nothing was mapped before");
    space.advise(at(BLOCK, 8), Advice::DontNeed).unwrap();
    let causes: Vec<_> = fixture.host.take_flushes().iter().map(|change| change.cause).collect();
    assert_eq!(causes, [Cause::Split, Cause::Advise]);
    assert!(!fixture.is_large(1));
    assert_eq!((read(space, 2, BLOCK + 7), read(space, 1, BLOCK + 500)), (0, 6));
    // The block has a table: the next write maps a small page.
    write(space, 1, BLOCK + 7, 8);
    assert!(!fixture.is_large(1));
    fixture.host.check_caches();
    fixture.end();
}

#[test]
fn discarded_large_page_is_large_again() {
    let fixture = huge(Fixture::<SHARED>::with_reclaim());
    write(&fixture.space, 1, BLOCK + 7, 5);
    read(&fixture.space, 2, BLOCK + 7);
    fixture.space.advise(block(1), Advice::DontNeed).unwrap();
    assert_eq!(fixture.host.take_flushes().len(), 1);
    assert_eq!(fixture.space.stats().split, 0);
    write(&fixture.space, 2, BLOCK + 8, 6);
    assert!(fixture.is_large(1));
    assert_eq!(read(&fixture.space, 1, BLOCK + 7), 0);
    fixture.host.check_caches();
    fixture.end();
}

/// The child's write copies one page, and not the block.
#[test]
fn fork_splits_page_of_first_write() {
    let fixture = huge(Fixture::<RELEASED>::new());
    write(&fixture.space, 1, BLOCK + 7, 5);
    let child = fixture.space.fork().unwrap();
    write(&child, 2, BLOCK + 7, 6);
    assert_eq!((read(&fixture.space, 1, BLOCK + 7), read(&child, 2, BLOCK + 7)), (5, 6));
    write(&child, 2, 2 * BLOCK, 7);
    assert!(fixture.host.is_large(child.root(), block(2).start), "the child's area is alike");
    fixture.host.check_caches();
    child.exit();
    drop(child);
    fixture.end();
}

#[test]
fn small_pages_are_mapped_where_no_large_one_fits() {
    let fixture = Fixture::<RELEASED>::new();
    let space = &fixture.space;
    // Block 0 is cut, block 1 was read, and block 2 is of a file.
    fixture.map(at(4, 2 * BLOCK - 4));
    let file = Arc::new(File::new(fixture.host.clone()));
    let backing = Backing::File { file, first_page: 0 };
    space.map(Place::Fixed(block(2)), READ_WRITE, Sharing::Private, backing).unwrap();
    space.use_large_pages(at(4, 3 * BLOCK - 4)).unwrap();
    read(space, 1, BLOCK + 3);
    for page in [4, BLOCK, 2 * BLOCK] {
        write(space, 1, page, page);
    }
    assert_eq!([0, 1, 2].map(|block| fixture.is_large(block)), [false; 3]);
    assert_eq!(space.use_large_pages(at(0, 0)), Err(BadRange));
    // Without a large frame, the write still succeeds.
    fixture.map(block(3));
    space.use_large_pages(block(3)).unwrap();
    let host = &fixture.host;
    let others: Vec<_> = (0..8).map_while(|_| host.allocate_large().ok()).collect();
    write(space, 1, 3 * BLOCK, 1);
    assert!(!others.is_empty() && !fixture.is_large(3));
    let frames = others.iter().flat_map(|first| first.0..first.0 + BLOCK);
    frames.for_each(|frame| host.release(Frame(frame)));
    fixture.end();
}

#[test]
fn part_of_area_uses_large_pages() {
    let fixture = Fixture::<RELEASED>::new();
    fixture.map(at(0, 3 * BLOCK));
    fixture.space.use_large_pages(block(1)).unwrap();
    for page in [0, BLOCK, 2 * BLOCK] {
        write(&fixture.space, 1, page, page);
    }
    assert_eq!([0, 1, 2].map(|block| fixture.is_large(block)), [false, true, false]);
    assert_eq!(fixture.space.areas().len(), 3, "areas that differ are not merged");
    fixture.end();
}

/// A first write maps a large page at each interruption point of advice about a part of its block.
#[test]
fn first_write_during_advice_keeps_its_word() {
    for advice in [Advice::DontNeed, Advice::Free, Advice::Cold] {
        let large_after = |point: &u64| {
            let fixture = huge(Fixture::<SHARED>::with_reclaim());
            let other = Arc::clone(&fixture.space);
            // The write is to a page that the advice does not concern.
            fixture.host.interrupt_after(*point, move || write(&other, 1, BLOCK + 300, 5));
            fixture.space.advise(at(BLOCK, 16), advice).unwrap();
            let is_complete = fixture.host.cancel_interruption();
            fixture.host.check_caches();
            let is_large = fixture.is_large(1);
            assert_eq!(read(&fixture.space, 2, BLOCK + 300), if is_complete { 0 } else { 5 });
            fixture.end();
            (!is_complete).then_some(is_large)
        };
        let large: Vec<_> = (0..).map_while(|point| large_after(&point)).collect();
        assert!(large.contains(&true), "{advice:?}: {large:?}");
    }
}

/// Threads write, and discard parts and all of the same blocks. A page holds its own number or
/// zero, whether a small or a large one is mapped.
#[test]
fn threads_find_words_of_same_page_in_large_pages() {
    let host = Host::with_addresses(8 * BLOCK as usize, 3, everything());
    let space: OurSpace<SHARED> = AddressSpace::new(&system(&host)).unwrap();
    map(&space, at(0, 3 * BLOCK), READ_WRITE);
    space.use_large_pages(at(0, 3 * BLOCK)).unwrap();
    thread::scope(|scope| {
        for cpu in 0..3 {
            let space = &space;
            scope.spawn(move || {
                run_on(cpu);
                let mut random = 0x9e37_79b9 * (cpu as u64 + 1);
                let mut below = |limit| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (random >> 33) % limit
                };
                for _ in 0..if cfg!(miri) { 20 } else { 3000 } {
                    let page = below(3) * BLOCK + below(4);
                    match below(12) {
                        0 => space.advise(block(page / BLOCK), Advice::DontNeed).unwrap(),
                        1 => space.advise(at(page, 3), Advice::DontNeed).unwrap(),
                        2 => space.advise(at(page, 3), Advice::Free).unwrap(),
                        3 => space.hint(block(page / BLOCK)).unwrap(),
                        4 => {
                            map(space, block(page / BLOCK), READ_WRITE);
                            space.use_large_pages(block(page / BLOCK)).unwrap();
                        }
                        5..8 => write(space, cpu, page, page + 1),
                        _ => assert!([0, page + 1].contains(&read(space, cpu, page))),
                    }
                }
            });
        }
    });
    host.check_caches();
    space.exit();
    drop(space);
    assert_eq!(host.frames_in_use(), 1);
}
