//! Fork and exit request the records of pages ahead: for a line of eight entries and the next one.

use std::ops::Range;

use crate::platform::RecordUse::{Count, Request};
use crate::platform::*;
use shootdown_vm::{Access, AddressSpace, Backing, PAGE_BYTES, Place, Sharing};

/// Maps pages, and writes those that are not in `unwritten`. Returns the runs of uses of records in
/// a fork, which are the same when the copy exits.
fn uses<const LOCK: u8>(mapped: Range<u64>, unwritten: &[u64]) -> Vec<(RecordUse, usize)> {
    let first = pages(0, 1).start;
    let end = first + mapped.end * PAGE_BYTES;
    let host = Host::with_addresses(128, 1, first..end);
    let space: Space<LOCK, AT_WAIT> = AddressSpace::new(&system(&host)).unwrap();
    let place = Place::Fixed(pages(mapped.start, mapped.end - mapped.start));
    space.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
    for page in mapped.filter(|page| !unwritten.contains(page)) {
        access(&space, 0, pages(page, 1).start, Access::Write, page).unwrap();
    }
    host.take_records();
    let child = space.fork().unwrap();
    let of_fork = host.take_records();
    child.exit();
    assert_eq!(host.take_records(), of_fork, "in the same order");
    space.exit();
    let pages_of =
        |wanted| of_fork.iter().filter(move |(kind, _)| *kind == wanted).map(|&(_, page)| page);
    if pages_of(Request).next().is_some() {
        assert!(pages_of(Request).eq(pages_of(Count)), "each page is requested once, and counted");
    }
    let runs = of_fork.chunk_by(|one, next| one.0 == next.0);
    runs.map(|run| (run[0].0, run.len())).collect()
}

/// A table ends with page 47.
fn uses_ahead(mapped: Range<u64>, unwritten: &[u64]) -> Vec<(RecordUse, usize)> {
    uses::<IN_PLACE>(mapped, unwritten)
}

#[test]
fn records_are_requested_two_lines_ahead() {
    let all = [(Request, 16), (Count, 8), (Request, 8), (Count, 16)];
    assert_eq!(uses_ahead(0..24, &[]), all);
    assert_eq!(uses_ahead(0..17, &[]), [(Request, 16), (Count, 8), (Request, 1), (Count, 9)]);
    assert_eq!(uses_ahead(7..9, &[]), [(Request, 2), (Count, 2)]);
}

#[test]
fn requests_begin_anew_in_the_next_table() {
    let all = [(Request, 12), (Count, 12), (Request, 12), (Count, 12)];
    assert_eq!(uses_ahead(36..60, &[]), all);
}

#[test]
fn pages_without_entries_are_not_requested() {
    let all = [(Request, 13), (Count, 6), (Request, 7), (Count, 14)];
    assert_eq!(uses_ahead(0..24, &[1, 7, 8, 23]), all);
}

#[test]
fn page_of_zeros_is_not_requested() {
    let host = Host::new(64, 1);
    let space: Space<IN_PLACE, AT_WAIT> = AddressSpace::new(&system(&host)).unwrap();
    let place = Place::Fixed(pages(0, 2));
    space.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
    access(&space, 0, pages(0, 1).start, Access::Read, 0).unwrap();
    host.take_records();
    space.fork().unwrap().exit();
    assert_eq!(host.take_records(), []);
    space.exit();
}

#[test]
fn linux_requests_no_records() {
    assert_eq!(uses::<SHARED>(0..24, &[]), [(Count, 24)]);
}
