//! Operations that meet in the middle: what others do while one waits for its flush.

use std::sync::Arc;
use std::thread;

use crate::platform::*;
use shootdown_vm::{
    Access, AddressSpace, Advice, Backing, FaultError, Freed, PAGE_BYTES, Place, Protection,
    Sharing,
};

type OurSpace<const LOCK: u8> = Space<LOCK, AT_WAIT>;
type Released = OurSpace<RELEASED>;

/// A space whose first `count` pages hold their number plus 100, and are cached on CPUs 0 and 1.
fn space_with_pages<const LOCK: u8>(host: &Host, count: u64) -> Arc<OurSpace<LOCK>> {
    let space = AddressSpace::new(&system(host)).unwrap();
    map_fixed(&space, 0, count);
    for page in 0..count {
        assert_eq!(write(&space, 0, page, page + 100), Ok(page + 100));
        assert_eq!(write(&space, 1, page, page + 100), Ok(page + 100));
    }
    Arc::new(space)
}

fn map_fixed<const LOCK: u8>(space: &OurSpace<LOCK>, first: u64, count: u64) {
    let place = Place::Fixed(pages(first, count));
    space.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
}

fn map_anywhere<const LOCK: u8>(space: &OurSpace<LOCK>, count: u64) -> u64 {
    let place = Place::Anywhere { length: count * PAGE_BYTES };
    let start = space.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
    (start - BASE) / PAGE_BYTES
}

fn read<const LOCK: u8>(space: &OurSpace<LOCK>, cpu: usize, page: u64) -> Result<u64, FaultError> {
    access(space, cpu, pages(page, 1).start, Access::Read, 0)
}

fn write<const LOCK: u8>(
    space: &OurSpace<LOCK>,
    cpu: usize,
    page: u64,
    value: u64,
) -> Result<u64, FaultError> {
    access(space, cpu, pages(page, 1).start, Access::Write, value)
}

/// Runs `operation`, and `meanwhile` when it waits for its flush.
fn meet<const LOCK: u8>(
    space: &Arc<OurSpace<LOCK>>,
    operation: impl FnOnce(&OurSpace<LOCK>),
    meanwhile: impl FnOnce(&OurSpace<LOCK>) + Send + 'static,
) {
    let host = space.vm().platform().clone();
    let other = Arc::clone(space);
    host.when_waiting(move || meanwhile(&other));
    operation(space);
    assert!(!host.hook_is_set(), "it did not wait");
    host.check_caches();
}

fn end<const LOCK: u8>(host: &Host, space: &OurSpace<LOCK>) {
    space.exit();
    assert_eq!(host.frames_in_use(), 1);
}

#[test]
fn what_is_unmapped_is_not_mapped_again_before_it_is_flushed() {
    let host = Host::new(256, 2);
    let space = space_with_pages(&host, PAGES);
    space.unmap(pages(20, 10)).unwrap();
    let other_room = |space: &Released| {
        assert_eq!(read(space, 1, 0), Ok(100), "not yet told");
        assert_eq!(map_anywhere(space, 10), 20);
    };
    meet(&space, |space| space.unmap(pages(0, 10)).unwrap(), other_room);
    assert_eq!(map_anywhere(&space, 10), 0);
    end(&host, &space);
}

#[test]
fn room_that_is_not_yet_flushed_is_flushed_if_there_is_no_other() {
    let host = Host::new(256, 2);
    let space = space_with_pages(&host, PAGES);
    let no_other_room = |space: &Released| {
        assert_eq!(map_anywhere(space, 10), 0);
        assert_eq!(read(space, 1, 3), Ok(0));
    };
    meet(&space, |space| space.unmap(pages(0, 10)).unwrap(), no_other_room);
    end(&host, &space);
}

#[test]
fn a_fixed_mapping_over_what_is_not_yet_flushed_is_new_to_all() {
    let host = Host::new(256, 2);
    let space = space_with_pages(&host, 10);
    let again = |space: &Released| {
        map_fixed(space, 2, 4);
        assert_eq!(read(space, 1, 3), Ok(0));
        assert_eq!(write(space, 0, 3, 5), Ok(5));
    };
    meet(&space, |space| space.unmap(pages(0, 10)).unwrap(), again);
    assert_eq!(read(&space, 1, 3), Ok(5));
    end(&host, &space);
}

/// Linux: 60bae7370896.
#[test]
fn discarding_what_another_discards_waits_for_the_flush_too() {
    let host = Host::new(256, 2);
    let space = space_with_pages(&host, 10);
    let discard = |space: &Released| space.advise(pages(0, 4), Advice::DontNeed).unwrap();
    meet(&space, discard, move |space| {
        space.advise(pages(3, 1), Advice::DontNeed).unwrap();
        assert_eq!(read(space, 1, 3), Ok(0));
        assert_eq!(read(space, 1, 2), Ok(102), "nobody asked for this one to be gone");
    });
    assert_eq!(space.stats().flushes_for_races, 1);
    end(&host, &space);
}

/// Linux: 3ea277194daa.
#[test]
fn protecting_what_another_discards_takes_the_permission_away() {
    let host = Host::new(256, 2);
    let space = space_with_pages(&host, 10);
    let discard = |space: &Released| space.advise(pages(0, 4), Advice::DontNeed).unwrap();
    meet(&space, discard, |space| {
        space.protect(pages(3, 1), READ).unwrap();
        assert_eq!(write(space, 1, 3, 1), Err(FaultError::NotPermitted));
    });
    end(&host, &space);
}

#[test]
fn unmapping_what_another_unmaps_leaves_nobody_with_access() {
    let host = Host::new(256, 2);
    let space = space_with_pages(&host, 10);
    meet(
        &space,
        |space: &Released| space.unmap(pages(0, 10)).unwrap(),
        |space| {
            space.unmap(pages(3, 1)).unwrap();
            assert_eq!(read(space, 1, 3), Err(FaultError::NoArea));
        },
    );
    end(&host, &space);
}

#[test]
fn a_flush_elsewhere_is_nobodys_business() {
    let host = Host::new(256, 2);
    let space = space_with_pages(&host, 10);
    meet(
        &space,
        |space: &Released| space.unmap(pages(0, 5)).unwrap(),
        |space| {
            map_fixed(space, 20, 5);
            space.unmap(pages(20, 5)).unwrap();
            space.unmap(pages(30, 5)).unwrap();
        },
    );
    assert_eq!(host.take_flushes().len(), 1);
    end(&host, &space);
}

/// The entry is read-only already, and a CPU can still write.
#[test]
fn a_fork_of_what_another_protects_is_isolated() {
    let host = Host::new(256, 2);
    let space = space_with_pages(&host, 4);
    meet(
        &space,
        |space: &Released| space.protect(pages(0, 4), READ).unwrap(),
        |space| {
            let child = space.fork().unwrap();
            assert_eq!(write(space, 1, 2, 1), Err(FaultError::NotPermitted));
            assert_eq!(read(&child, 0, 2), Ok(102));
            child.exit();
        },
    );
    end(&host, &space);
}

/// Permissions that were never flushed: the next fork finds nothing to take away.
#[test]
fn forks_side_by_side_are_both_isolated() {
    let host = Host::new(256, 2);
    let space = space_with_pages(&host, 4);
    let fork = |space: &Released| {
        let child = space.fork().unwrap();
        assert_eq!(write(space, 1, 2, 7), Ok(7));
        assert_eq!(read(&child, 0, 2), Ok(102));
        child.exit();
    };
    meet(&space, |space| space.fork().unwrap().exit(), fork);
    end(&host, &space);
}

/// One CPU must not see the new word and another, afterwards, the old one.
#[test]
fn nobody_writes_to_a_copy_before_all_have_forgotten_the_original() {
    let host = Host::new(256, 3);
    let space: Arc<Released> = space_with_pages(&host, 1);
    let child = space.fork().unwrap();
    assert_eq!(read(&space, 1, 0), Ok(100));
    meet(
        &space,
        |space| assert_eq!(write(space, 0, 0, 5), Ok(5)),
        |space| {
            let host = space.vm().platform();
            let root = space.root();
            for _ in 0..3 {
                assert_eq!(host.touch(1, root, BASE, Access::Read, 0), Ok(100));
                assert_eq!(host.touch(2, root, BASE, Access::Write, 6), Err(Refused));
                assert_eq!(space.fault(BASE, Access::Write), Ok(()));
            }
        },
    );
    assert_eq!(read(&space, 1, 0), Ok(5));
    assert_eq!(read(&child, 2, 0), Ok(100));
    child.exit();
    end(&host, &space);
}

#[test]
fn a_page_that_is_discarded_while_it_is_copied_is_gone_once() {
    let host = Host::new(256, 2);
    let space: Arc<Released> = space_with_pages(&host, 1);
    let child = space.fork().unwrap();
    assert_eq!(read(&space, 1, 0), Ok(100));
    meet(
        &space,
        |space| assert_eq!(space.fault(BASE, Access::Write), Ok(())),
        |space| {
            space.advise(pages(0, 1), Advice::DontNeed).unwrap();
            assert_eq!(read(space, 1, 0), Ok(0));
        },
    );
    assert_eq!(read(&space, 0, 0), Ok(0));
    assert_eq!(write(&space, 0, 0, 3), Ok(3));
    assert_eq!(read(&child, 0, 0), Ok(100));
    child.exit();
    end(&host, &space);
}

/// The claim of a copy-on-write hides the page from a discard, which therefore flushes nothing of
/// its own. It must find the copy-on-write in flight from the claim on.
#[test]
fn discard_right_after_claim_is_flushed() {
    let host = Host::new(256, 2);
    let space: Arc<Released> = space_with_pages(&host, 1);
    let child = space.fork().unwrap();
    assert_eq!(read(&space, 1, 0), Ok(100));
    let other = Arc::clone(&space);
    host.after_exchange(move || {
        other.advise(pages(0, 1), Advice::DontNeed).unwrap();
        assert_eq!(read(&other, 1, 0), Ok(0), "the discarded page is still cached");
    });
    assert_eq!(space.fault(BASE, Access::Write), Ok(()));
    assert!(!host.exchange_hook_is_set(), "no entry was claimed");
    host.check_caches();
    assert_eq!(read(&child, 0, 0), Ok(100));
    child.exit();
    end(&host, &space);
}

/// The MMU marks the entry after fork has loaded it, so fork's exchange fails and is repeated.
#[test]
fn entry_marked_during_fork_is_flushed() {
    let mut marked = 0;
    for moment in 0.. {
        let host = Host::new(256, 2);
        let space: Arc<Released> = space_with_pages(&host, 1);
        // It removes the marks; the entry stays writable.
        space.advise(pages(0, 1), Advice::Free).unwrap();
        let root = space.root();
        let other = host.clone();
        host.interrupt_after(moment, move || {
            // Refused from the moment on in which fork has taken the permission.
            let _ = other.touch(1, root, BASE, Access::Write, 5);
        });
        let failed_before = host.failed_exchanges();
        let child = space.fork().unwrap();
        let is_over = host.cancel_interruption();
        marked += host.failed_exchanges() - failed_before;
        let word = read(&child, 0, 0);
        assert_eq!(host.touch(1, root, BASE, Access::Write, 7), Err(Refused), "moment {moment}");
        assert_eq!(read(&child, 0, 0), word);
        host.check_caches();
        child.exit();
        end(&host, &space);
        if is_over {
            break;
        }
    }
    assert!(marked > 0, "the MMU never marked the entry between fork's load and exchange");
}

/// What one table of the last level covers.
const TABLE_BYTES: u64 = 2 << 20;

/// Tables that were kept lie anywhere, far from what the operation was asked for.
#[test]
fn kept_tables_are_flushed_where_they_are_even_if_another_flush_is_under_way() {
    let start = 1 << 30;
    let host = Host::with_addresses(4096, 2, start..start + 1024 * TABLE_BYTES);
    let space: Arc<OurSpace<KEEPING>> = Arc::new(AddressSpace::new(&system(&host)).unwrap());
    let page_of = |n: u64| start + n * TABLE_BYTES..start + n * TABLE_BYTES + PAGE_BYTES;
    let map_and_touch = |n| {
        let place = Place::Fixed(page_of(n));
        space.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
        access(&*space, 1, page_of(n).start, Access::Write, n).unwrap();
    };
    for n in 0..500 {
        map_and_touch(n);
        space.unmap(page_of(n)).unwrap();
    }
    assert!(host.take_flushes().iter().all(|change| change.freed == Freed::Pages));
    (500..600).for_each(map_and_touch);
    let page = page_of(550);
    let again = page.clone();
    meet(
        &space,
        |space| space.advise(page, Advice::DontNeed).unwrap(),
        move |space| space.unmap(again).unwrap(),
    );
    assert!(host.take_flushes().iter().any(|change| change.freed == Freed::Tables));
    assert!(host.tables_in_use() < 120, "those that are empty are free");
    end(&host, &space);
}

/// Faults of neighbours share its page tables with what is unmapped, and go on.
fn neighbours_fault_while_unmap_waits<const LOCK: u8>() {
    let host = Host::new(256, 3);
    let space: Arc<OurSpace<LOCK>> = space_with_pages(&host, 4);
    map_fixed(&space, 4, 8);
    let neighbour = Arc::clone(&space);
    meet(
        &space,
        |space| space.unmap(pages(0, 4)).unwrap(),
        move |_| {
            let thread = thread::spawn(move || write(&neighbour, 2, 5, 9));
            assert_eq!(thread.join().unwrap(), Ok(9));
        },
    );
    assert_eq!(read(&space, 0, 5), Ok(9));
    end(&host, &space);
}

#[test]
fn neighbours_fault_while_unmap_waits_under_the_shared_lock() {
    neighbours_fault_while_unmap_waits::<SHARED>();
}

#[test]
fn neighbours_fault_while_unmap_waits_without_a_lock() {
    neighbours_fault_while_unmap_waits::<RELEASED>();
}

#[test]
fn areas_change_while_unmap_waits_without_a_lock() {
    let host = Host::new(256, 3);
    let space: Arc<Released> = space_with_pages(&host, 4);
    let other = Arc::clone(&space);
    meet(
        &space,
        |space| space.unmap(pages(0, 2)).unwrap(),
        move |_| {
            let thread = thread::spawn(move || {
                map_fixed(&other, 50, 4);
                other.protect(pages(2, 2), Protection::empty()).unwrap();
                read(&other, 2, 51)
            });
            assert_eq!(thread.join().unwrap(), Ok(0));
        },
    );
    end(&host, &space);
}
