//! Concurrent operations: other CPUs act while an operation waits for its flush.

use std::sync::{Arc, mpsc};
use std::thread;

use parking_lot::Mutex;

use crate::platform::lock::sleeping_locks;
use crate::platform::*;
use shootdown_vm::{
    Access, AddressSpace, Advice, Backing, FaultError, Freed, PAGE_BYTES, Place, Protection,
    Sharing,
};

type OurSpace<const LOCK: u8> = Space<LOCK, AT_WAIT>;
type Released = OurSpace<RELEASED>;

/// Creates a space whose first `count` pages hold their number plus 100, and are cached on CPUs 0
/// and 1.
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

/// Runs `operation`, and runs `meanwhile` when the operation waits for its flush.
fn run_during_flush<const LOCK: u8>(
    space: &Arc<OurSpace<LOCK>>,
    operation: impl FnOnce(&OurSpace<LOCK>),
    concurrent: impl FnOnce(&OurSpace<LOCK>) + Send + 'static,
) {
    let host = space.vm().platform().clone();
    let other = Arc::clone(space);
    host.when_waiting(move || concurrent(&other));
    operation(space);
    assert!(!host.hook_is_set(), "the operation did not wait");
    host.check_caches();
}

fn end<const LOCK: u8>(host: &Host, space: &OurSpace<LOCK>) {
    space.exit();
    assert_eq!(host.frames_in_use(), 1);
}

#[test]
fn unflushed_address_is_not_reused() {
    let host = Host::new(256, 2);
    let space = space_with_pages(&host, PAGES);
    space.unmap(pages(20, 10)).unwrap();
    let other_room = |space: &Released| {
        assert_eq!(read(space, 1, 0), Ok(100), "the CPU was not notified yet");
        assert_eq!(map_anywhere(space, 10), 20);
    };
    run_during_flush(&space, |space| space.unmap(pages(0, 10)).unwrap(), other_room);
    assert_eq!(map_anywhere(&space, 10), 0);
    end(&host, &space);
}

#[test]
fn only_gap_is_flushed_before_reuse() {
    let host = Host::new(256, 2);
    let space = space_with_pages(&host, PAGES);
    let no_other_room = |space: &Released| {
        assert_eq!(map_anywhere(space, 10), 0);
        assert_eq!(read(space, 1, 3), Ok(0));
    };
    run_during_flush(&space, |space| space.unmap(pages(0, 10)).unwrap(), no_other_room);
    end(&host, &space);
}

#[test]
fn fixed_mapping_over_unflushed_range_is_clean() {
    let host = Host::new(256, 2);
    let space = space_with_pages(&host, 10);
    let again = |space: &Released| {
        map_fixed(space, 2, 4);
        assert_eq!(read(space, 1, 3), Ok(0));
        assert_eq!(write(space, 0, 3, 5), Ok(5));
    };
    run_during_flush(&space, |space| space.unmap(pages(0, 10)).unwrap(), again);
    assert_eq!(read(&space, 1, 3), Ok(5));
    end(&host, &space);
}

/// Linux: 60bae7370896.
#[test]
fn concurrent_discard_waits_for_flush() {
    let host = Host::new(256, 2);
    let space = space_with_pages(&host, 10);
    let discard = |space: &Released| space.advise(pages(0, 4), Advice::DontNeed).unwrap();
    run_during_flush(&space, discard, move |space| {
        space.advise(pages(3, 1), Advice::DontNeed).unwrap();
        assert_eq!(read(space, 1, 3), Ok(0));
        assert_eq!(read(space, 1, 2), Ok(102), "the page was not in the requested range");
    });
    assert_eq!(space.stats().flushes_for_races, 1);
    end(&host, &space);
}

/// The change holds the lock of the space; the other calls lock the other area.
#[test]
fn other_area_is_usable_during_protect() {
    let host = Host::new(256, 2);
    let space: Arc<OurSpace<SHARED>> = space_with_pages(&host, 4);
    map_fixed(&space, 20, 4);
    // The first write to an area locks the space.
    assert_eq!(write(&space, 0, 20, 1), Ok(1));
    let protect = |space: &OurSpace<SHARED>| space.protect(pages(0, 4), READ).unwrap();
    run_during_flush(&space, protect, |space| {
        assert_eq!(write(space, 1, 21, 5), Ok(5));
        space.advise(pages(20, 2), Advice::DontNeed).unwrap();
        assert_eq!(read(space, 1, 21), Ok(0));
    });
    end(&host, &space);
}

/// A fault that used the area as it was would make the page writable again.
#[test]
fn fault_waits_for_change_of_its_area() {
    let host = Host::new(256, 3);
    let space: Arc<OurSpace<SHARED>> = space_with_pages(&host, 4);
    let (other, faulting) = (Arc::clone(&space), Arc::new(Mutex::new(None)));
    let started = Arc::clone(&faulting);
    host.when_waiting(move || {
        let (running, runs) = mpsc::channel();
        let fault = thread::spawn(move || {
            running.send(()).unwrap();
            write(&other, 2, 1, 7)
        });
        runs.recv().unwrap();
        *started.lock() = Some(fault);
    });
    space.protect(pages(0, 4), READ).unwrap();
    let fault = faulting.lock().take().expect("the protection is flushed");
    assert_eq!(fault.join().unwrap(), Err(FaultError::NotPermitted));
    assert_eq!(read(&space, 2, 1), Ok(101));
    end(&host, &space);
}

/// Linux: 3ea277194daa.
#[test]
fn protect_during_discard_revokes_permission() {
    let host = Host::new(256, 2);
    let space = space_with_pages(&host, 10);
    let discard = |space: &Released| space.advise(pages(0, 4), Advice::DontNeed).unwrap();
    run_during_flush(&space, discard, |space| {
        space.protect(pages(3, 1), READ).unwrap();
        assert_eq!(write(space, 1, 3, 1), Err(FaultError::NotPermitted));
    });
    end(&host, &space);
}

#[test]
fn concurrent_unmap_revokes_access() {
    let host = Host::new(256, 2);
    let space = space_with_pages(&host, 10);
    run_during_flush(
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
fn flush_elsewhere_causes_no_flush() {
    let host = Host::new(256, 2);
    let space = space_with_pages(&host, 10);
    run_during_flush(
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

/// The entry is read-only already, but a CPU can still write.
#[test]
fn fork_during_protect_is_isolated() {
    let host = Host::new(256, 2);
    let space = space_with_pages(&host, 4);
    run_during_flush(
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

/// The first fork has not flushed its entries yet, and the second fork finds them read-only.
#[test]
fn concurrent_forks_are_isolated() {
    let host = Host::new(256, 2);
    let space = space_with_pages(&host, 4);
    let fork = |space: &Released| {
        let child = space.fork().unwrap();
        assert_eq!(write(space, 1, 2, 7), Ok(7));
        assert_eq!(read(&child, 0, 2), Ok(102));
        child.exit();
    };
    run_during_flush(&space, |space| space.fork().unwrap().exit(), fork);
    end(&host, &space);
}

/// A CPU must not read the old word after another CPU has read the new one.
#[test]
fn copy_is_unwritable_until_original_is_flushed() {
    let host = Host::new(256, 3);
    let space: Arc<Released> = space_with_pages(&host, 1);
    let child = space.fork().unwrap();
    assert_eq!(read(&space, 1, 0), Ok(100));
    run_during_flush(
        &space,
        |space| assert_eq!(write(space, 0, 0, 5), Ok(5)),
        |space| {
            let host = space.vm().platform();
            let root = space.root();
            for _ in 0..3 {
                assert_eq!(host.touch(1, root, BASE, Access::Read, 0), Ok(100));
                assert_eq!(host.touch(2, root, BASE, Access::Write, 6), Err(PageFault));
                assert_eq!(space.fault(BASE, Access::Write), Ok(()));
            }
        },
    );
    assert_eq!(read(&space, 1, 0), Ok(5));
    assert_eq!(read(&child, 2, 0), Ok(100));
    child.exit();
    end(&host, &space);
}

/// The other space ends, and CPU 1 still reads the page.
#[test]
fn page_is_kept_until_its_copy_is_flushed() {
    let host = Host::new(256, 2);
    let space: Arc<Released> = space_with_pages(&host, 1);
    let child = space.fork().unwrap();
    assert_eq!(read(&space, 1, 0), Ok(100));
    run_during_flush(
        &space,
        |space| assert_eq!(write(space, 0, 0, 5), Ok(5)),
        move |space| {
            child.exit();
            let host = space.vm().platform();
            assert_eq!(host.touch(1, space.root(), BASE, Access::Read, 0), Ok(100));
        },
    );
    end(&host, &space);
}

#[test]
fn page_discarded_during_copy_is_freed_once() {
    let host = Host::new(256, 2);
    let space: Arc<Released> = space_with_pages(&host, 1);
    let child = space.fork().unwrap();
    assert_eq!(read(&space, 1, 0), Ok(100));
    run_during_flush(
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

/// The page has one user, and would be made writable without a copy.
#[test]
fn page_discarded_after_claim_for_reuse_is_freed() {
    let host = Host::new(64, 2);
    let space: Arc<Released> = space_with_pages(&host, 1);
    space.fork().unwrap().exit();
    let other = Arc::clone(&space);
    host.after_exchange(move || other.advise(pages(0, 1), Advice::DontNeed).unwrap());
    assert_eq!(write(&space, 0, 0, 5), Ok(5));
    assert_eq!(read(&space, 1, 0), Ok(5));
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
    for point in 0.. {
        let host = Host::new(256, 2);
        let space: Arc<Released> = space_with_pages(&host, 1);
        // This removes the marks; the entry stays writable.
        space.advise(pages(0, 1), Advice::Free).unwrap();
        let root = space.root();
        let other = host.clone();
        host.interrupt_after(point, move || {
            // The write is refused from the point on at which fork has removed the permission.
            let _ = other.touch(1, root, BASE, Access::Write, 5);
        });
        let failed_before = host.failed_exchanges();
        let child = space.fork().unwrap();
        let is_complete = host.cancel_interruption();
        marked += host.failed_exchanges() - failed_before;
        let word = read(&child, 0, 0);
        assert_eq!(host.touch(1, root, BASE, Access::Write, 7), Err(PageFault), "point {point}");
        assert_eq!(read(&child, 0, 0), word);
        host.check_caches();
        child.exit();
        end(&host, &space);
        if is_complete {
            break;
        }
    }
    assert!(marked > 0, "the MMU never marked the entry between fork's load and exchange");
}

/// Number of bytes that a table of level 0 covers.
const TABLE_BYTES: u64 = 2 << 20;

/// Kept tables may be at any address, far from the range that the operation was asked to change.
#[test]
fn kept_tables_are_flushed_despite_race() {
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
    run_during_flush(
        &space,
        |space| space.advise(page, Advice::DontNeed).unwrap(),
        move |space| space.unmap(again).unwrap(),
    );
    assert!(host.take_flushes().iter().any(|change| change.freed == Freed::Tables));
    assert!(host.tables_in_use() < 120, "empty tables are not freed");
    end(&host, &space);
}

/// Neighbours share page tables with the unmapped pages, and their faults continue.
fn neighbours_fault_during_unmap<const LOCK: u8>() {
    let host = Host::new(256, 3);
    let space: Arc<OurSpace<LOCK>> = space_with_pages(&host, 4);
    map_fixed(&space, 4, 8);
    let neighbour = Arc::clone(&space);
    run_during_flush(
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

/// An unmap waits under the lock that the policy names: for reading, for writing, or under none.
fn unmap_waits_under<const LOCK: u8>(locks: (usize, usize)) {
    let host = Host::new(256, 2);
    let space: Arc<OurSpace<LOCK>> = space_with_pages(&host, 4);
    let unmap = |space: &OurSpace<LOCK>| space.unmap(pages(0, 2)).unwrap();
    run_during_flush(&space, unmap, move |_| assert_eq!(sleeping_locks(), locks));
    assert_eq!(sleeping_locks(), (0, 0));
    end(&host, &space);
}

#[test]
fn unmap_waits_under_the_lock_of_its_policy() {
    unmap_waits_under::<EXCLUSIVE>((0, 1));
    unmap_waits_under::<SHARED>((1, 0));
    unmap_waits_under::<RELEASED>((0, 0));
}

/// All other calls hold what they have locked, under every policy but `RELEASED`.
#[test]
fn discard_waits_under_its_lock() {
    let host = Host::new(256, 2);
    let space: Arc<OurSpace<EXCLUSIVE>> = space_with_pages(&host, 4);
    let discard = |space: &OurSpace<_>| space.advise(pages(0, 2), Advice::DontNeed).unwrap();
    run_during_flush(&space, discard, |_| assert_eq!(sleeping_locks(), (1, 0)));
    end(&host, &space);
}

#[test]
fn neighbours_fault_during_unmap_under_shared_lock() {
    neighbours_fault_during_unmap::<SHARED>();
}

#[test]
fn neighbours_fault_during_unmap_without_lock() {
    neighbours_fault_during_unmap::<RELEASED>();
}

#[test]
fn areas_change_during_unmap_without_lock() {
    let host = Host::new(256, 3);
    let space: Arc<Released> = space_with_pages(&host, 4);
    let other = Arc::clone(&space);
    run_during_flush(
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
