//! What becomes a large page, and what does not.

use std::sync::Arc;

use shootdown::{Extent, PageSize};
use shootdown_vm::{
    Access, AddressSpace, Advice, Backing, BadRange, Cause, File, Freed, PAGE_BYTES, Place,
    Protection, Sharing, Vm,
};

use crate::large::world::*;
use crate::platform::lagging::Lagging;
use crate::platform::*;

#[test]
fn a_block_becomes_one_page_with_what_was_in_it() {
    let world = World::<RELEASED>::new().with_small_pages();
    let (frames, tables) = (world.host.frames_in_use(), world.host.tables_in_use());
    assert_eq!(world.space.collapse(everything()), Ok(1));
    let flushes = world.host.take_flushes();
    assert_eq!(flushes.len(), 1);
    let flush = &flushes[0];
    assert_eq!((flush.range.clone(), flush.freed), (Some(block(1)), Freed::Tables));
    assert_eq!((flush.page_size, flush.cause), (PageSize::SIZE_4K, Cause::Collapse));
    let small = Extent::pages(block(1).start, 512, PageSize::SIZE_4K);
    assert_eq!(flush.extents.as_slice(), [small.freeing_tables()]);
    assert!(world.is_large(1));
    let now = (world.host.frames_in_use(), world.host.tables_in_use());
    assert_eq!(now, (frames - 1, tables - 1), "as many pages, and a table less");
    world.check(BLOCK..2 * BLOCK);
    // One translation for all of it: what is written in it needs no fault any more.
    write(&world.space, 1, BLOCK, BLOCK);
    for page in BLOCK..2 * BLOCK {
        assert_eq!(touch(&world.space, 1, page, Access::Write, page), Ok(page));
    }
    assert_eq!(world.space.translation(block(1).end - 1), Some(READ_WRITE));
    assert_eq!(world.space.collapse(everything()), Ok(0), "it is one already");
    assert_eq!(world.space.stats().collapsed, 1);
    assert_eq!(world.host.take_flushes(), []);
    world.end();
}

#[test]
fn what_was_not_written_is_zeros() {
    let world = World::<RELEASED>::new();
    world.map(block(2));
    assert_eq!(world.space.collapse(block(2)), Ok(0), "there is no table");
    assert_eq!(read(&world.space, 1, 2 * BLOCK + 3), 0);
    assert_eq!(world.space.collapse(block(2)), Ok(0), "there is nothing in it");
    write(&world.space, 1, 2 * BLOCK + 7, 7);
    world.host.take_flushes();
    assert_eq!(world.space.collapse(block(2)), Ok(1));
    let flush = &world.host.take_flushes()[0];
    // The page of zeros is taken away, too; and something must name the table.
    assert_eq!(flush.range, Some(at(2 * BLOCK, 8)));
    for page in 2 * BLOCK..3 * BLOCK {
        assert_eq!(read(&world.space, 1, page), if page == 2 * BLOCK + 7 { 7 } else { 0 });
    }
    world.end();
}

#[test]
fn only_whole_blocks_of_one_area_are_taken() {
    let world = World::<RELEASED>::new().with_small_pages();
    for range in [at(BLOCK, BLOCK - 1), at(BLOCK + 1, 2 * BLOCK - 1), at(1, 2 * BLOCK - 2)] {
        assert_eq!(world.space.collapse(range), Ok(0));
    }
    world.space.protect(at(2 * BLOCK - 1, 1), READ).unwrap();
    assert_eq!(world.space.collapse(everything()), Ok(0), "two areas");
    world.space.protect(at(2 * BLOCK - 1, 1), READ_WRITE).unwrap();
    world.space.unmap(at(BLOCK, 1)).unwrap();
    assert_eq!(world.space.collapse(everything()), Ok(0), "a hole");
    assert_eq!(world.space.collapse(START..START + 1), Err(BadRange));
    world.check(BLOCK + 1..2 * BLOCK);
    world.end();
}

#[test]
fn every_block_is_taken_and_takes_the_protection_of_its_area() {
    let world = World::<RELEASED>::new().with_small_pages();
    write(&world.space, 0, 0, 0);
    write(&world.space, 0, 3 * BLOCK - 1, 3 * BLOCK - 1);
    let code = Protection::READ | Protection::EXECUTE;
    world.space.protect(block(1), code).unwrap();
    world.space.protect(block(2), Protection::empty()).unwrap();
    assert_eq!(world.space.collapse(everything()), Ok(3));
    let allowed = |number| world.space.translation(block(number).start);
    assert_eq!([0, 1, 2].map(allowed), [Some(READ_WRITE), Some(code), None]);
    world.check(BLOCK..2 * BLOCK);
    world.space.protect(block(2), READ).unwrap();
    world.check(3 * BLOCK - 1..3 * BLOCK);
    world.end();
}

#[test]
fn pages_that_others_have_too_stay_small_until_they_do_not() {
    let world = World::<RELEASED>::new().with_small_pages();
    let child = world.space.fork().unwrap();
    // All are the space's own again, but one.
    for page in BLOCK..2 * BLOCK - 1 {
        write(&world.space, 1, page, page);
    }
    world.host.take_flushes();
    assert_eq!(world.space.collapse(everything()), Ok(0));
    assert_eq!(world.host.take_flushes(), []);
    world.check(BLOCK..2 * BLOCK);
    child.exit();
    assert_eq!(world.space.collapse(everything()), Ok(1));
    // The last one was not writable, for it was shared.
    assert_eq!(world.space.translation(at(2 * BLOCK - 1, 1).start), Some(READ_WRITE));
    world.check(BLOCK..2 * BLOCK);
    world.end();
}

#[test]
fn files_and_what_is_shared_stay_small() {
    let world = World::<RELEASED>::new();
    let file = Arc::new(File::new(world.host.clone()));
    let backing = Backing::File { file: Arc::clone(&file), first_page: 0 };
    let place = Place::Fixed(block(0));
    world.space.map(place, READ_WRITE, Sharing::Private, backing).unwrap();
    let place = Place::Fixed(block(1));
    world.space.map(place, READ_WRITE, Sharing::Shared, Backing::Anonymous).unwrap();
    write(&world.space, 0, 5, 5);
    write(&world.space, 0, BLOCK + 5, 5);
    assert_eq!(world.space.collapse(everything()), Ok(0));
    drop(file);
    world.end();
}

/// Discards pages of a block, which waits, and others still know them when the block becomes one.
#[test]
fn what_is_being_discarded_is_zeros_for_all() {
    let world = World::<RELEASED>::new().with_small_pages();
    let other = Arc::clone(&world.space);
    world.host.when_waiting(move || {
        assert_eq!(touch(&other, 2, BLOCK + 3, Access::Read, 0), Ok(BLOCK + 3), "not yet told");
        assert_eq!(other.collapse(everything()), Ok(1));
        for cpu in 0..3 {
            assert_eq!(read(&other, cpu, BLOCK + 3), 0);
        }
    });
    world.space.advise(at(BLOCK + 3, 2), Advice::DontNeed).unwrap();
    world.check(BLOCK..BLOCK + 3);
    world.check(BLOCK + 5..2 * BLOCK);
    world.end();
}

/// A lazy CPU may come by the table until it is told, or comes back.
#[test]
fn the_table_stays_while_a_lazy_cpu_can_walk_it() {
    let host = Host::with_addresses(8 * BLOCK as usize, 2, everything());
    let coherence = Lagging::<RELEASED>::new(&host);
    let vm: Vm<On<Lagging>> = Vm::new(host.clone(), coherence.clone()).unwrap();
    let space = AddressSpace::new(&vm).unwrap();
    let place = Place::Fixed(block(1));
    space.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
    let pages = || block(1).step_by(PAGE_BYTES as usize);
    for address in pages() {
        access(&space, 0, address, Access::Write, address).unwrap();
    }
    coherence.go_lazy(1, space.root());
    coherence.speculate(1, [block(1).start]);
    let tables = host.tables_in_use();
    assert_eq!(space.collapse(block(1)), Ok(1));
    assert_eq!((vm.quarantined_tables().now, host.tables_in_use()), (1, tables));
    coherence.speculate(1, pages());
    coherence.let_go_of_space(1);
    space.unmap(at(BLOCK, 1)).unwrap();
    assert_eq!((vm.quarantined_tables().now, host.tables_in_use()), (0, tables));
    space.exit();
    assert_eq!(host.frames_in_use(), 1);
}
