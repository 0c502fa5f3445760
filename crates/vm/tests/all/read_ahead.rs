//! Read-ahead: the pages that a fault reads in, and their reclaim.

use std::sync::Arc;

use crate::platform::*;
use shootdown_vm::{Access, AddressSpace, Backing, File, FileId, Place, Sharing, Stats};

type OurSpace = Space<BATCHING, AT_WAIT>;

/// Maps `count` pages of a stored file, from page `first` of the file on.
fn space_of(host: &Host, file: &Arc<File<Host>>, window: u64, first: u64, count: u64) -> OurSpace {
    let vm = system(host).with_reclaim().with_read_ahead(window).with_fault_around(4 << 12);
    let space = AddressSpace::new(&vm).unwrap();
    let backing = Backing::File { file: Arc::clone(file), first_page: first };
    space.map(Place::Fixed(pages(0, count)), READ_WRITE, Sharing::Shared, backing).unwrap();
    space
}

fn stored(host: &Host) -> Arc<File<Host>> {
    Arc::new(File::stored(host.clone(), FileId(7)))
}

fn read(space: &OurSpace, page: u64) {
    access(space, 1, pages(page, 1).start, Access::Read, 0).unwrap();
}

fn reclaim(space: &OurSpace) -> usize {
    (0..NODES).map(|node| space.vm().reclaim(node, 1000).freed).sum()
}

#[test]
fn fault_reads_window_within_area() {
    let host = Host::new(256, 2);
    // The area maps pages 6 to 29 of the file. Windows begin at pages 0, 8, 16 and 24.
    for (page, resident) in [(0, 2), (1, 2), (2, 8), (9, 8), (19, 6), (23, 6)] {
        for (window, resident) in [(8, resident), (15, resident), (1, 1), (0, 1)] {
            let file = stored(&host);
            let space = space_of(&host, &file, window, 6, 24);
            read(&space, page);
            assert_eq!(file.resident_pages(), resident, "page {page} of a window of {window}");
            space.exit();
        }
    }
}

#[test]
fn unstored_file_is_not_read_ahead() {
    let host = Host::new(256, 2);
    let file = Arc::new(File::new(host.clone()));
    let space = space_of(&host, &file, 16, 0, 32);
    read(&space, 5);
    assert_eq!(file.resident_pages(), 1);
    space.exit();
}

#[test]
fn page_read_ahead_is_not_read_again() {
    let host = Host::new(256, 2);
    let file = stored(&host);
    let space = space_of(&host, &file, 16, 0, 32);
    read(&space, 5);
    let mapped = |page| space.translation(pages(page, 1).start).is_some();
    assert_eq!((0..32).filter(|&page| mapped(page)).collect::<Vec<_>>(), [4, 5, 6, 7]);
    read(&space, 14);
    assert_eq!((file.resident_pages(), mapped(12), mapped(16)), (16, true, false));
    let Stats { read_ahead, mapped_around, .. } = space.stats();
    assert_eq!((read_ahead, mapped_around), (15, 6));
    space.exit();
}

#[test]
fn unmapped_read_ahead_pages_are_reclaimed() {
    let host = Host::new(256, 2);
    let file = stored(&host);
    let space = space_of(&host, &file, 16, 0, 32);
    let in_use = host.frames_in_use();
    access(&space, 0, pages(20, 1).start, Access::Write, 9).unwrap();
    read(&space, 20);
    assert_eq!(file.resident_pages(), 16);
    assert_eq!((reclaim(&space), file.resident_pages()), (16, 0));
    // The rest are page tables.
    assert!(host.frames_in_use() <= in_use + 3);
    assert_eq!(
        access(&space, 1, pages(20, 1).start, Access::Read, 0),
        Ok(9),
        "the page was written out"
    );
    let vm = space.vm().clone();
    space.exit();
    drop(space);
    vm.close(file);
    assert_eq!(host.frames_in_use(), 1, "only the page of zeros is in use");
}

#[test]
fn read_ahead_without_memory_reads_own_page() {
    // The page of zeros, the tables, and room for five pages.
    let host = Host::new(10, 2);
    let file = stored(&host);
    let space = space_of(&host, &file, 16, 0, 32);
    for page in 0..32 {
        read(&space, page);
        assert!(file.resident_pages() <= 6);
    }
    space.exit();
}
