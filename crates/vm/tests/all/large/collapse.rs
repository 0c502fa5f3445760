//! Pages that collapse, and pages that do not.

use std::sync::Arc;

use shootdown::{Extent, PageSize};
use shootdown_vm::{
    Access, AddressSpace, Advice, Backing, BadRange, Cause, File, Freed, PAGE_BYTES, Place,
    Protection, Sharing, Vm,
};

use crate::large::fixture::*;
use crate::platform::lagging::Lagging;
use crate::platform::*;

#[test]
fn collapse_keeps_contents() {
    let fixture = Fixture::<RELEASED>::new().with_small_pages();
    let (frames, tables) = (fixture.host.frames_in_use(), fixture.host.tables_in_use());
    assert_eq!(fixture.space.collapse(everything()), Ok(1));
    let flushes = fixture.host.take_flushes();
    assert_eq!(flushes.len(), 1);
    let flush = &flushes[0];
    assert_eq!((flush.range.clone(), flush.freed), (Some(block(1)), Freed::Tables));
    assert_eq!((flush.page_size, flush.cause), (PageSize::SIZE_4K, Cause::Collapse));
    let small = Extent::pages(block(1).start, 512, PageSize::SIZE_4K);
    assert_eq!(flush.extents.as_slice(), [small.freeing_tables()]);
    assert!(fixture.is_large(1));
    assert!(fixture.host.is_dirty(fixture.space.root(), block(1).start));
    let now = (fixture.host.frames_in_use(), fixture.host.tables_in_use());
    assert_eq!(now, (frames - 1, tables - 1), "one table less, the same number of pages");
    fixture.check(BLOCK..2 * BLOCK);
    // One translation covers all of the page, so writes need no further fault.
    write(&fixture.space, 1, BLOCK, BLOCK);
    for page in BLOCK..2 * BLOCK {
        assert_eq!(touch(&fixture.space, 1, page, Access::Write, page), Ok(page));
    }
    assert_eq!(fixture.space.translation(block(1).end - 1), Some(READ_WRITE));
    assert_eq!(fixture.space.collapse(everything()), Ok(0), "the block is large already");
    assert_eq!(fixture.space.stats().collapsed, 1);
    assert_eq!(fixture.host.take_flushes(), []);
    fixture.end();
}

#[test]
fn collapse_fills_unwritten_pages_with_zeros() {
    let fixture = Fixture::<RELEASED>::new();
    fixture.map(block(2));
    assert_eq!(fixture.space.collapse(block(2)), Ok(0), "the block has no table");
    assert_eq!(read(&fixture.space, 1, 2 * BLOCK + 3), 0);
    assert_eq!(fixture.space.collapse(block(2)), Ok(0), "the block has no written page");
    write(&fixture.space, 1, 2 * BLOCK + 7, 7);
    fixture.host.take_flushes();
    assert_eq!(fixture.space.collapse(block(2)), Ok(1));
    let flush = &fixture.host.take_flushes()[0];
    // The page of zeros is removed also, and the flush must cover an address of the table.
    assert_eq!(flush.range, Some(at(2 * BLOCK, 8)));
    for page in 2 * BLOCK..3 * BLOCK {
        assert_eq!(read(&fixture.space, 1, page), if page == 2 * BLOCK + 7 { 7 } else { 0 });
    }
    fixture.end();
}

#[test]
fn only_whole_blocks_of_one_area_collapse() {
    let fixture = Fixture::<RELEASED>::new().with_small_pages();
    for range in [at(BLOCK, BLOCK - 1), at(BLOCK + 1, 2 * BLOCK - 1), at(1, 2 * BLOCK - 2)] {
        assert_eq!(fixture.space.collapse(range), Ok(0));
    }
    fixture.space.protect(at(2 * BLOCK - 1, 1), READ).unwrap();
    assert_eq!(fixture.space.collapse(everything()), Ok(0), "the block has two areas");
    fixture.space.protect(at(2 * BLOCK - 1, 1), READ_WRITE).unwrap();
    fixture.space.unmap(at(BLOCK, 1)).unwrap();
    assert_eq!(fixture.space.collapse(everything()), Ok(0), "the block has a hole");
    assert_eq!(fixture.space.collapse(START..START + 1), Err(BadRange));
    fixture.check(BLOCK + 1..2 * BLOCK);
    fixture.end();
}

#[test]
fn each_block_gets_protection_of_its_area() {
    let fixture = Fixture::<RELEASED>::new().with_small_pages();
    write(&fixture.space, 0, 0, 0);
    write(&fixture.space, 0, 3 * BLOCK - 1, 3 * BLOCK - 1);
    let code = Protection::READ | Protection::EXECUTE;
    fixture.space.protect(block(1), code).unwrap();
    fixture.space.protect(block(2), Protection::empty()).unwrap();
    assert_eq!(fixture.space.collapse(everything()), Ok(3));
    let allowed = |number| fixture.space.translation(block(number).start);
    assert_eq!([0, 1, 2].map(allowed), [Some(READ_WRITE), Some(code), None]);
    fixture.check(BLOCK..2 * BLOCK);
    fixture.space.protect(block(2), READ).unwrap();
    fixture.check(3 * BLOCK - 1..3 * BLOCK);
    fixture.end();
}

#[test]
fn shared_anonymous_pages_do_not_collapse() {
    let fixture = Fixture::<RELEASED>::new().with_small_pages();
    let child = fixture.space.fork().unwrap();
    // The space gets its own copy of all pages except one.
    for page in BLOCK..2 * BLOCK - 1 {
        write(&fixture.space, 1, page, page);
    }
    fixture.host.take_flushes();
    assert_eq!(fixture.space.collapse(everything()), Ok(0));
    assert_eq!(fixture.host.take_flushes(), []);
    fixture.check(BLOCK..2 * BLOCK);
    child.exit();
    assert_eq!(fixture.space.collapse(everything()), Ok(1));
    // The last page was shared, and therefore not writable.
    assert_eq!(fixture.space.translation(at(2 * BLOCK - 1, 1).start), Some(READ_WRITE));
    fixture.check(BLOCK..2 * BLOCK);
    fixture.end();
}

#[test]
fn file_pages_do_not_collapse() {
    let fixture = Fixture::<RELEASED>::new();
    let file = Arc::new(File::new(fixture.host.clone()));
    let backing = Backing::File { file: Arc::clone(&file), first_page: 0 };
    let place = Place::Fixed(block(0));
    fixture.space.map(place, READ_WRITE, Sharing::Private, backing).unwrap();
    let place = Place::Fixed(block(1));
    fixture.space.map(place, READ_WRITE, Sharing::Shared, Backing::Anonymous).unwrap();
    write(&fixture.space, 0, 5, 5);
    write(&fixture.space, 0, BLOCK + 5, 5);
    assert_eq!(fixture.space.collapse(everything()), Ok(0));
    drop(file);
    fixture.end();
}

/// Some pages of a block are discarded. While this waits for its flush, and other CPUs still cache
/// the pages, the block collapses.
#[test]
fn page_discarded_during_collapse_is_zeros() {
    let fixture = Fixture::<RELEASED>::new().with_small_pages();
    let other = Arc::clone(&fixture.space);
    fixture.host.when_waiting(move || {
        assert_eq!(
            touch(&other, 2, BLOCK + 3, Access::Read, 0),
            Ok(BLOCK + 3),
            "the CPU was not notified yet"
        );
        assert_eq!(other.collapse(everything()), Ok(1));
        for cpu in 0..3 {
            assert_eq!(read(&other, cpu, BLOCK + 3), 0);
        }
    });
    fixture.space.advise(at(BLOCK + 3, 2), Advice::DontNeed).unwrap();
    fixture.check(BLOCK..BLOCK + 3);
    fixture.check(BLOCK + 5..2 * BLOCK);
    fixture.end();
}

/// A lazy CPU may walk the table until it is notified, or becomes active again.
#[test]
fn collapsed_table_stays_while_lazy_cpu_can_walk() {
    let host = Host::with_addresses(8 * BLOCK as usize, 2, everything());
    let coherence = Lagging::<RELEASED>::new(&host);
    let vm: Vm<TestSystem<Lagging>> = Vm::new(host.clone(), coherence.clone()).unwrap();
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
    coherence.leave_space(1);
    space.unmap(at(BLOCK, 1)).unwrap();
    assert_eq!((vm.quarantined_tables().now, host.tables_in_use()), (0, tables));
    space.exit();
    assert_eq!(host.frames_in_use(), 1);
}
