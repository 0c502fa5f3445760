//! Pages that are read first and written next: the predictions, and their cost if no write follows.

use crate::platform::*;
use shootdown_vm::{Access, AddressSpace, Backing, PAGE_BYTES, Place, Protection, Sharing, Stats};

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
fn predicted_writes_need_no_flush() {
    let host = Host::new(128, 1);
    let predicting = space::<KEEPING>(&host);
    for page in 0..51 {
        read(&predicting, page);
        write(&predicting, page);
    }
    // One read in seventeen is not predicted.
    assert_eq!(host.take_flushes().len(), 3);

    let host = Host::new(128, 1);
    let unpredicted = space::<RELEASED>(&host);
    for page in 0..51 {
        read(&unpredicted, page);
        write(&unpredicted, page);
    }
    assert_eq!(host.take_flushes().len(), 51);
}

#[test]
fn wrong_prediction_costs_sixteen_pages() {
    let host = Host::new(128, 1);
    let space = space::<KEEPING>(&host);
    let before = host.frames_in_use();
    read(&space, 0);
    let with_tables = host.frames_in_use();
    assert!(with_tables > before);
    for page in 1..20 {
        read(&space, page);
    }
    // No frames besides the tables of the first read.
    assert_eq!(host.frames_in_use(), with_tables);
    write(&space, 0);
    for page in 20..48 {
        read(&space, page);
    }
    assert_eq!(host.frames_in_use(), with_tables + 1 + 16);
}

#[test]
fn read_only_page_is_not_predicted() {
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

/// One page of each series is written after it was read, and starts the next one. The other
/// predictions are in vain.
#[test]
fn predictions_in_vain_are_bounded() {
    let all = BASE..BASE + (1 << 10) * PAGE_BYTES;
    let host = Host::with_addresses(2048, 1, all.clone());
    let space: Space<KEEPING, AT_WAIT> = AddressSpace::new(&system(&host)).unwrap();
    space.map(Place::Fixed(all), READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
    for page in 0..1 << 10 {
        read(&space, page);
        if space.stats().predicted.is_multiple_of(16) {
            write(&space, page);
        }
    }
    let Stats { predicted, predicted_in_vain, .. } = space.stats();
    // The last page of each of 34 series is written. Another series could cost more than 2 MiB, the
    // bound of the default policy.
    assert_eq!((predicted, predicted_in_vain), (34 * 16, 34 * 15));
}

/// A page that was written by the end of its series was predicted rightly.
#[test]
fn predictions_that_came_true_are_not_in_vain() {
    let all = BASE..BASE + (1 << 10) * PAGE_BYTES;
    let host = Host::with_addresses(1024, 1, all.clone());
    let space: Space<KEEPING, AT_WAIT> = AddressSpace::new(&system(&host)).unwrap();
    space.map(Place::Fixed(all), READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
    for page in 0..900 {
        read(&space, page);
        write(&space, page);
    }
    let Stats { predicted, predicted_in_vain, .. } = space.stats();
    assert_eq!((predicted, predicted_in_vain), (900 - 900 / 17 - 1, 0));
}
