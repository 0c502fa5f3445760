//! Translations that no CPU has used are not flushed. The MMU marks an entry when it caches it.

use std::sync::Arc;

use crate::platform::*;
use shootdown_vm::{Access, AddressSpace, Backing, File, FileId, PAGE_BYTES, Place, Sharing};

type OurSpace = Space<IN_PLACE, AT_WAIT>;

/// Maps 16 pages of a stored file. The first read maps eight of them.
fn space(host: &Host) -> OurSpace {
    let window = 8 * PAGE_BYTES;
    let vm = system(host).with_reclaim().with_read_ahead(16).with_fault_around(window);
    let space = AddressSpace::new(&vm).unwrap();
    let file = Arc::new(File::stored(host.clone(), FileId(7)));
    let backing = Backing::File { file, first_page: 0 };
    space.map(Place::Fixed(pages(0, 16)), READ_WRITE, Sharing::Shared, backing).unwrap();
    space
}

fn read(space: &OurSpace, page: u64) {
    access(space, 1, pages(page, 1).start, Access::Read, 0).unwrap();
}

/// The pages that were flushed since the last call, as far as they are among the first 16.
fn flushed(host: &Host) -> Vec<u64> {
    let flushes = host.take_flushes();
    let extents = flushes.iter().flat_map(|change| change.extents.as_slice());
    let is_flushed =
        |page: &u64| extents.clone().any(|extent| extent.covers(pages(*page, 1).start));
    (0..16).filter(is_flushed).collect()
}

#[test]
fn neighbours_that_no_cpu_used_are_not_flushed() {
    let host = Host::new(256, 2);
    let space = space(&host);
    read(&space, 0);
    read(&space, 3);
    assert_eq!(space.stats().mapped_around, 7);
    space.unmap(pages(4, 4)).unwrap();
    assert_eq!((flushed(&host), space.stats().never_accessed), (vec![], 4));
    host.check_caches();
    space.protect(pages(1, 3), READ).unwrap();
    assert_eq!((flushed(&host), space.stats().never_accessed), (vec![3], 6));
    host.check_caches();
    space.unmap(pages(0, 4)).unwrap();
    assert_eq!((flushed(&host), space.stats().never_accessed), (vec![0, 3], 8));
    host.check_caches();
    space.exit();
}

/// The mark is cleared while a CPU has the translation cached.
#[test]
fn page_used_before_its_mark_was_cleared_is_flushed() {
    let host = Host::new(256, 2);
    let space = space(&host);
    (0..4).for_each(|page| read(&space, page));
    // Reclaim examines all pages: it takes those that were not used, and clears the others' marks.
    for node in 0..NODES {
        assert!(space.vm().reclaim(node, 1).freed > 0);
    }
    let is_mapped = |page: &u64| space.translation(pages(*page, 1).start).is_some();
    assert_eq!((0..16).filter(is_mapped).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(flushed(&host), [], "no CPU has used the pages that were taken");
    space.unmap(pages(0, 4)).unwrap();
    assert_eq!((flushed(&host), space.stats().never_accessed), (vec![0, 1, 2, 3], 0));
    host.check_caches();
    space.exit();
}
