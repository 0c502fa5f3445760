//! A space of four blocks that can be large pages, in two tables of level 1.

use std::ops::Range;
use std::sync::Arc;

use shootdown_vm::{
    Access, AddressSpace, Backing, FaultError, LARGE_PAGE_BYTES, PAGE_BYTES, Place, Protection,
    Sharing, Vm,
};

use crate::platform::*;

pub(crate) type OurSpace<const LOCK: u8> = Space<LOCK, AT_WAIT>;

/// Number of pages in a block.
pub(crate) const BLOCK: u64 = LARGE_PAGE_BYTES / PAGE_BYTES;
const BLOCKS: u64 = 4;
pub(crate) const START: u64 = (1 << 30) - BLOCKS / 2 * LARGE_PAGE_BYTES;

/// Returns the addresses of `count` pages from page `first` on.
pub(crate) fn at(first: u64, count: u64) -> Range<u64> {
    START + first * PAGE_BYTES..START + (first + count) * PAGE_BYTES
}

/// Returns the addresses of a block.
pub(crate) fn block(number: u64) -> Range<u64> {
    at(number * BLOCK, BLOCK)
}

/// Returns all user addresses.
pub(crate) fn everything() -> Range<u64> {
    at(0, BLOCKS * BLOCK)
}

pub(crate) struct Fixture<const LOCK: u8> {
    pub(crate) host: Host,
    pub(crate) space: Arc<OurSpace<LOCK>>,
}

impl<const LOCK: u8> Fixture<LOCK> {
    pub(crate) fn new() -> Self {
        Self::with(|vm| vm)
    }

    /// Creates a fixture in which memory is reclaimed. Frames are on two nodes.
    pub(crate) fn with_reclaim() -> Self {
        Self::with(Vm::with_reclaim)
    }

    fn with(system_of: impl FnOnce(OurVm<LOCK, AT_WAIT>) -> OurVm<LOCK, AT_WAIT>) -> Self {
        let host = Host::with_addresses(8 * BLOCK as usize, 3, everything());
        let space = AddressSpace::new(&system_of(system(&host))).unwrap();
        Self { host, space: Arc::new(space) }
    }

    /// Writes its number to each page of block 1, and makes CPUs 1 and 2 cache it. Blocks 0 to 2
    /// are one area.
    pub(crate) fn with_small_pages(self) -> Self {
        self.map(at(0, 3 * BLOCK));
        for page in BLOCK..2 * BLOCK {
            write(&self.space, 1, page, page);
            assert_eq!(read(&self.space, 2, page), page);
        }
        self.host.take_flushes();
        self
    }

    /// Does the same, and collapses the pages into a large page, which the CPUs cache.
    pub(crate) fn with_large_page(self) -> Self {
        let fixture = self.with_small_pages();
        assert_eq!(fixture.space.collapse(block(1)), Ok(1));
        write(&fixture.space, 1, BLOCK, BLOCK);
        assert_eq!(read(&fixture.space, 2, BLOCK), BLOCK);
        fixture.host.take_flushes();
        assert!(fixture.is_large(1));
        fixture
    }

    pub(crate) fn map(&self, range: Range<u64>) {
        map(&self.space, range, READ_WRITE);
    }

    pub(crate) fn is_large(&self, number: u64) -> bool {
        self.host.is_large(self.space.root(), block(number).start)
    }

    /// Checks that each of these pages holds its number, on every CPU.
    pub(crate) fn check(&self, pages: Range<u64>) {
        self.host.check_caches();
        for page in pages {
            for cpu in 0..3 {
                assert_eq!(read(&self.space, cpu, page), page, "page {page} on CPU {cpu}");
            }
        }
    }

    pub(crate) fn end(self) {
        self.space.exit();
        drop(self.space);
        assert_eq!(self.host.frames_in_use(), 1, "only the page of zeros is in use");
    }
}

pub(crate) fn map<const LOCK: u8>(
    space: &OurSpace<LOCK>,
    range: Range<u64>,
    protection: Protection,
) {
    space.map(Place::Fixed(range), protection, Sharing::Private, Backing::Anonymous).unwrap();
}

pub(crate) fn try_access<const LOCK: u8>(
    space: &OurSpace<LOCK>,
    cpu: usize,
    page: u64,
    how: Access,
    value: u64,
) -> Result<u64, FaultError> {
    access(space, cpu, at(page, 1).start, how, value)
}

pub(crate) fn read<const LOCK: u8>(space: &OurSpace<LOCK>, cpu: usize, page: u64) -> u64 {
    try_access(space, cpu, page, Access::Read, 0).unwrap()
}

pub(crate) fn write<const LOCK: u8>(space: &OurSpace<LOCK>, cpu: usize, page: u64, value: u64) {
    assert_eq!(try_access(space, cpu, page, Access::Write, value), Ok(value));
}

/// Makes one access, with a cached translation or after a walk, and without a fault handler.
pub(crate) fn touch<const LOCK: u8>(
    space: &OurSpace<LOCK>,
    cpu: usize,
    page: u64,
    how: Access,
    value: u64,
) -> Result<u64, PageFault> {
    space.vm().platform().touch(cpu, space.root(), at(page, 1).start, how, value)
}
