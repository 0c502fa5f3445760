//! The addresses of mappings that user space does not choose, if threads have regions of their own.

use crate::platform::*;
use shootdown_vm::{AddressSpace, Backing, MapError, PAGE_BYTES, Place, Sharing};

const REGION: u64 = 2 << 20;

struct Fixture(Space<REPLICATED, AT_WAIT>);

impl Fixture {
    /// A space with room for this number of regions.
    fn new(regions: u64) -> Self {
        let host = Host::with_addresses(64, 2, REGION..REGION * (1 + regions));
        Self(AddressSpace::new(&system(&host)).unwrap())
    }

    /// Maps pages in the role of a thread.
    fn map(&self, thread: usize, pages: u64) -> Result<u64, MapError> {
        run_on(thread);
        let place = Place::Anywhere { length: pages * PAGE_BYTES };
        self.0.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous)
    }
}

#[test]
fn threads_map_in_regions_of_their_own() {
    let fixture = Fixture::new(8);
    let first = fixture.map(0, 4).unwrap();
    let other = fixture.map(1, 4).unwrap();
    assert_eq!((first, other), (REGION, 2 * REGION));
    assert_eq!(fixture.map(0, 4), Ok(first + 4 * PAGE_BYTES));
    fixture.0.unmap(first..first + 4 * PAGE_BYTES).unwrap();
    assert_eq!(fixture.map(0, 2), Ok(first), "the lowest gap of the region is used again");
    // The rest of the region is too small.
    assert_eq!(fixture.map(0, 511), Ok(3 * REGION));
    assert_eq!(fixture.map(1, 508), Ok(4 * REGION), "the last page stays free");
    assert_eq!(fixture.map(1, 3), Ok(4 * REGION + 508 * PAGE_BYTES));
    fixture.0.exit();
}

#[test]
fn large_mapping_begins_at_a_multiple_of_its_size() {
    let fixture = Fixture::new(8);
    fixture.map(0, 1).unwrap();
    assert_eq!(fixture.map(0, 600), Ok(2 * REGION));
    assert_eq!(fixture.map(1, 1), Ok(4 * REGION), "not behind the large mapping");
    fixture.0.exit();
}

/// One area would have one lock, which the faults of all threads would take.
#[test]
fn areas_of_two_threads_are_not_merged() {
    for pages in [511, 512, 1023] {
        let fixture = Fixture::new(8);
        (0..2).for_each(|thread| _ = fixture.map(thread, pages).unwrap());
        assert_eq!(fixture.0.areas().len(), 2, "{pages} pages");
        fixture.0.exit();
    }
}

#[test]
fn large_mapping_returns_to_its_place() {
    let fixture = Fixture::new(12);
    let first = fixture.map(0, 600).unwrap();
    let other = fixture.map(1, 600).unwrap();
    assert_eq!((first, other), (REGION, 3 * REGION));
    for start in [first, other] {
        fixture.0.unmap(start..start + 600 * PAGE_BYTES).unwrap();
    }
    // Not the lowest gap, and not where the other thread's was.
    assert_eq!(fixture.map(1, 700), Ok(other));
    assert_eq!(fixture.map(1, 600), Ok(5 * REGION));
    assert_eq!(fixture.map(0, 1023), Ok(first));
    // It is too small for this one.
    fixture.0.unmap(first..first + 1023 * PAGE_BYTES).unwrap();
    assert_eq!(fixture.map(0, 1024), Ok(7 * REGION));
    fixture.0.exit();
}

#[test]
fn full_space_has_no_regions() {
    let fixture = Fixture::new(2);
    fixture.map(0, 1).unwrap();
    fixture.map(1, 1).unwrap();
    // No region is free, so the lowest gap is used.
    assert_eq!(fixture.map(2, 1), Ok(REGION + PAGE_BYTES));
    assert_eq!(fixture.map(2, 1024), Err(MapError::NoRoom));
    fixture.0.exit();
}
