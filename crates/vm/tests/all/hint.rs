//! Hinting faults: the flush of a scan, and the permissions that the next accesses get.

use std::sync::Arc;

use crate::platform::*;
use shootdown_vm::{Access, AddressSpace, Backing, BadRange, File, Place, Protection, Sharing};

type OurSpace = Space<RELEASED, AT_WAIT>;

fn new_space(host: &Host) -> OurSpace {
    AddressSpace::new(&system(host)).unwrap()
}

fn map(space: &OurSpace, first: u64, count: u64, protection: Protection) {
    let place = Place::Fixed(pages(first, count));
    space.map(place, protection, Sharing::Private, Backing::Anonymous).unwrap();
}

fn use_page(space: &OurSpace, cpu: usize, page: u64, how: Access, value: u64) -> u64 {
    access(space, cpu, pages(page, 1).start, how, value).unwrap()
}

/// Makes one access, without a fault handler.
fn touch(space: &OurSpace, cpu: usize, page: u64, how: Access) -> Result<u64, PageFault> {
    space.vm().platform().touch(cpu, space.root(), pages(page, 1).start, how, 9)
}

#[test]
fn hint_makes_next_access_fault_with_one_flush() {
    let host = Host::new(64, 2);
    let space = new_space(&host);
    map(&space, 0, 8, READ_WRITE);
    for page in 1..5 {
        use_page(&space, 1, page, Access::Write, page);
    }
    use_page(&space, 1, 6, Access::Read, 0);
    host.take_flushes();
    space.hint(pages(0, 8)).unwrap();
    let flushes = host.take_flushes();
    assert_eq!(flushes.len(), 1);
    assert_eq!(flushes[0].range, Some(pages(1, 4)), "the page of zeros is left out");
    host.check_caches();
    assert!(touch(&space, 1, 3, Access::Read).is_err());
    assert_eq!(touch(&space, 1, 6, Access::Read), Ok(0));
    // One fault gives all permissions back, without a flush.
    assert_eq!(use_page(&space, 1, 3, Access::Read, 0), 3);
    assert_eq!(touch(&space, 1, 3, Access::Write), Ok(9));
    assert_eq!(use_page(&space, 1, 4, Access::Write, 7), 7);
    assert_eq!(host.take_flushes(), []);
    // A second scan finds the pages that were used since the first.
    space.hint(pages(0, 8)).unwrap();
    assert_eq!(host.take_flushes()[0].range, Some(pages(3, 2)));
    host.check_caches();
    assert_eq!(space.hint(pages(0, 0)), Err(BadRange));
    space.exit();
}

#[test]
fn hint_leaves_out_what_linux_does() {
    let host = Host::new(64, 2);
    let space = new_space(&host);
    map(&space, 0, 1, READ_WRITE);
    map(&space, 2, 1, READ_WRITE);
    let backing = Backing::File { file: Arc::new(File::new(host.clone())), first_page: 0 };
    space.map(Place::Fixed(pages(4, 1)), READ, Sharing::Shared, backing).unwrap();
    for page in [0, 2] {
        use_page(&space, 0, page, Access::Write, 1);
    }
    use_page(&space, 0, 4, Access::Read, 0);
    space.protect(pages(2, 1), Protection::empty()).unwrap();
    let child = space.fork().unwrap();
    host.take_flushes();
    space.hint(pages(0, 5)).unwrap();
    assert_eq!(host.take_flushes(), [], "shared, without access, and a read-only file");
    // The page of an area without access stays without access.
    assert!(access(&space, 0, pages(2, 1).start, Access::Read, 0).is_err());
    child.exit();
    space.exit();
}

/// A page that a fork shares between the scan and the fault may not be written without a copy.
#[test]
fn hinted_page_is_copied_after_fork() {
    let host = Host::new(64, 2);
    let space = new_space(&host);
    map(&space, 0, 2, READ_WRITE);
    for page in 0..2 {
        use_page(&space, 0, page, Access::Write, 5);
    }
    space.hint(pages(0, 2)).unwrap();
    let child = space.fork().unwrap();
    use_page(&space, 0, 0, Access::Write, 6);
    use_page(&space, 0, 1, Access::Read, 0);
    use_page(&space, 0, 1, Access::Write, 7);
    assert_eq!([0, 1].map(|page| use_page(&child, 1, page, Access::Read, 0)), [5, 5]);
    use_page(&child, 1, 0, Access::Write, 8);
    assert_eq!([0, 1].map(|page| use_page(&space, 1, page, Access::Read, 0)), [6, 7]);
    host.check_caches();
    child.exit();
    space.exit();
    assert_eq!(host.frames_in_use(), 1);
}

/// A write through the old translation, while the flush is in flight, is not lost.
#[test]
fn fork_during_hint_flushes_the_permission() {
    let host = Host::new(64, 2);
    let space = Arc::new(new_space(&host));
    map(&space, 0, 1, READ_WRITE);
    use_page(&space, 1, 0, Access::Write, 5);
    let other = Arc::clone(&space);
    host.when_waiting(move || {
        let child = other.fork().unwrap();
        // Before the fork returns, no CPU may keep the permission to write.
        assert!(touch(&other, 1, 0, Access::Write).is_err());
        assert_eq!(access(&child, 0, pages(0, 1).start, Access::Read, 0), Ok(5));
        child.exit();
    });
    space.hint(pages(0, 1)).unwrap();
    assert!(!host.hook_is_set(), "the scan did not wait");
    host.check_caches();
    space.exit();
}
