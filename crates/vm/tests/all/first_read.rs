//! Pages that are read first and written next: what is learned from the first, and what it costs if
//! no write comes.

use crate::platform::*;
use shootdown_vm::{Access, AddressSpace, Backing, Place, Protection, Sharing};

fn space<const LOCK: u8>(host: &Host) -> Space<LOCK, AT_WAIT> {
    let space: Space<LOCK, AT_WAIT> = AddressSpace::new(&system(host)).unwrap();
    let place = Place::Fixed(pages(0, 64));
    space.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
    space
}

fn read<const LOCK: u8>(space: &Space<LOCK, AT_WAIT>, page: u64) {
    assert_eq!(access(space, 0, pages(page, 1).start, Access::Read, 0), Ok(0));
}

fn write<const LOCK: u8>(space: &Space<LOCK, AT_WAIT>, page: u64) {
    assert_eq!(access(space, 0, pages(page, 1).start, Access::Write, page), Ok(page));
}

#[test]
fn after_one_write_to_a_page_that_was_read_most_others_need_no_flush() {
    let host = Host::new(128, 1);
    let learning = space::<KEEPING>(&host);
    for page in 0..51 {
        read(&learning, page);
        write(&learning, page);
    }
    // One in seventeen asks again.
    assert_eq!(host.take_flushes().len(), 3);

    let host = Host::new(128, 1);
    let as_ever = space::<RELEASED>(&host);
    for page in 0..51 {
        read(&as_ever, page);
        write(&as_ever, page);
    }
    assert_eq!(host.take_flushes().len(), 51);
}

#[test]
fn who_only_reads_gets_no_pages_and_a_wrong_guess_costs_sixteen() {
    let host = Host::new(128, 1);
    let space = space::<KEEPING>(&host);
    let before = host.frames_in_use();
    read(&space, 0);
    let with_tables = host.frames_in_use();
    assert!(with_tables > before);
    for page in 1..20 {
        read(&space, page);
    }
    // None but the tables of the first.
    assert_eq!(host.frames_in_use(), with_tables);
    write(&space, 0);
    for page in 20..48 {
        read(&space, page);
    }
    assert_eq!(host.frames_in_use(), with_tables + 1 + 16);
}

#[test]
fn what_may_not_be_written_is_not_expected_to_be() {
    let host = Host::new(128, 1);
    let space = space::<KEEPING>(&host);
    read(&space, 0);
    write(&space, 0);
    space.protect(pages(1, 8), Protection::READ).unwrap();
    let before = host.frames_in_use();
    for page in 1..9 {
        read(&space, page);
    }
    assert_eq!(host.frames_in_use(), before);
}
