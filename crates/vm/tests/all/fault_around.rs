//! Fault-around: the neighbours that a fault maps, and their protection.

use std::sync::Arc;

use crate::platform::*;
use shootdown_vm::{Access, AddressSpace, Backing, File, PAGE_BYTES, Place, Protection, Sharing};

type OurSpace = Space<RELEASED, AT_WAIT>;

/// Creates a file with `resident` pages in memory. Each page holds its number plus 100.
fn file(host: &Host, resident: u64) -> Arc<File<Host>> {
    let file = Arc::new(File::new(host.clone()));
    let space = space_of(host, 0, &file, 0, resident, Sharing::Shared);
    for page in 0..resident {
        access(&space, 0, pages(page, 1).start, Access::Write, page + 100).unwrap();
    }
    space.exit();
    file
}

/// Creates a space with an area of `count` pages of a file, from page 0 of the file on.
fn space_of(
    host: &Host,
    window_bytes: u64,
    file: &Arc<File<Host>>,
    first: u64,
    count: u64,
    sharing: Sharing,
) -> OurSpace {
    let vm = system(host).with_fault_around(window_bytes);
    let space = AddressSpace::new(&vm).unwrap();
    let backing = Backing::File { file: Arc::clone(file), first_page: 0 };
    space.map(Place::Fixed(pages(first, count)), READ_WRITE, sharing, backing).unwrap();
    space
}

/// Returns the pages that the MMU finds, and their protection.
fn present(space: &OurSpace) -> Vec<(u64, Protection)> {
    let one = |page| Some((page, space.translation(pages(page, 1).start)?));
    (0..PAGES).filter_map(one).collect()
}

fn read_only(pages: impl IntoIterator<Item = u64>) -> Vec<(u64, Protection)> {
    pages.into_iter().map(|page| (page, READ)).collect()
}

fn end(host: &Host, space: &OurSpace, file: Arc<File<Host>>) {
    host.check_caches();
    space.exit();
    drop(file);
    assert_eq!(host.frames_in_use(), 2, "only a page of zeros for each system is in use");
}

fn read(space: &OurSpace, page: u64) -> u64 {
    access(space, 1, pages(page, 1).start, Access::Read, 0).unwrap()
}

#[test]
fn pages_after_area_are_not_mapped() {
    let host = Host::new(256, 2);
    let file = file(&host, 8);
    let space = space_of(&host, 8 * PAGE_BYTES, &file, 0, 6, Sharing::Private);
    assert_eq!(read(&space, 1), 101);
    let is_mapped = |page: &u64| host.is_mapped(space.root(), pages(*page, 1).start);
    assert_eq!((0..8).filter(is_mapped).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    end(&host, &space, file);
}

#[test]
fn read_maps_resident_pages_of_window() {
    let host = Host::new(256, 2);
    let file = file(&host, 20);
    // Windows of 8 pages begin at pages 0, 8, 16 and so on.
    let space = space_of(&host, 8 * PAGE_BYTES, &file, 6, 24, Sharing::Private);
    assert_eq!(read(&space, 7), 101);
    assert_eq!(present(&space), read_only(6..8), "the area begins in the middle");
    assert_eq!(read(&space, 12), 106);
    assert_eq!(present(&space), read_only(6..16));
    assert_eq!(read(&space, 24), 118);
    assert_eq!(
        present(&space),
        read_only((6..16).chain(24..26)),
        "the other pages are not in memory"
    );
    assert_eq!(read(&space, 28), 0, "the page was not read in");
    assert_eq!(present(&space), read_only((6..16).chain(24..26).chain([28])));
    assert_eq!(host.take_flushes(), []);
    assert_eq!(
        (6..16).map(|page| read(&space, page)).collect::<Vec<_>>(),
        Vec::from_iter(100..110)
    );
    end(&host, &space, file);
}

#[test]
fn window_ends_with_page_table() {
    let host = Host::new(256, 2);
    let file = file(&host, PAGES);
    let space = space_of(&host, 1 << 40, &file, 0, PAGES, Sharing::Shared);
    read(&space, 3);
    let all = |range: std::ops::Range<u64>| Vec::from_iter(range.map(|page| (page, READ_WRITE)));
    assert_eq!(present(&space), all(0..PAGES / 2));
    read(&space, PAGES - 1);
    assert_eq!(present(&space), all(0..PAGES));
    end(&host, &space, file);
}

#[test]
fn write_or_tiny_window_maps_one_page() {
    let host = Host::new(256, 2);
    let file = file(&host, 20);
    for (window_bytes, how) in [
        (8 * PAGE_BYTES, Access::Write),
        (0, Access::Read),
        (PAGE_BYTES, Access::Read),
        (2 * PAGE_BYTES - 1, Access::Read),
    ] {
        let space = space_of(&host, window_bytes, &file, 0, 20, Sharing::Private);
        access(&space, 0, pages(4, 1).start, how, 7).unwrap();
        assert_eq!(present(&space).len(), 1);
        space.exit();
    }
}

#[test]
fn mapped_neighbours_stay_unchanged() {
    let host = Host::new(256, 2);
    let file = file(&host, 20);
    let space = space_of(&host, 8 * PAGE_BYTES, &file, 0, 20, Sharing::Private);
    access(&space, 0, pages(4, 1).start, Access::Write, 7).unwrap();
    assert_eq!(read(&space, 5), 105);
    assert_eq!((read(&space, 4), read(&space, 6)), (7, 106));
    assert_eq!(present(&space).into_iter().find(|(page, _)| *page == 4), Some((4, READ_WRITE)));
    access(&space, 0, pages(6, 1).start, Access::Write, 8).unwrap();
    assert_eq!(
        (read(&space, 6), host.take_flushes().len()),
        (8, 1),
        "the page was shared with the file"
    );
    end(&host, &space, file);
}

/// `is_mapped` depends on the area, and `translation` on the page-table entry.
#[test]
fn inaccessible_page_has_no_translation() {
    let host = Host::new(64, 2);
    let file = file(&host, 4);
    let space = space_of(&host, 0, &file, 0, 4, Sharing::Shared);
    let [first, outside] = [pages(0, 1).start, pages(4, 1).start];
    assert_eq!((space.is_mapped(first), space.translation(first)), (true, None));
    read(&space, 0);
    assert_eq!(space.translation(first + 5), Some(READ_WRITE));
    space.protect(pages(0, 1), Protection::empty()).unwrap();
    assert_eq!((space.is_mapped(first), space.translation(first)), (true, None));
    assert_eq!((space.is_mapped(outside), space.translation(outside)), (false, None));
    space.exit();
    assert_eq!((space.is_mapped(first), space.translation(first)), (false, None));
}
