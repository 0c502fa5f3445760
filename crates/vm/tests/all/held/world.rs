//! One system with a space and a CPU that is lazy on it, and what is held back there.

use std::ops::Range;
use std::sync::Arc;

use shootdown_vm::{Access, AddressSpace, Advice, Backing, PAGE_BYTES, Place, Sharing, Vm};

use crate::platform::lagging::Lagging;
use crate::platform::{Host, On, READ_WRITE, access};

pub(crate) type OurVm = Vm<On<Lagging>>;
pub(crate) type OurSpace = AddressSpace<On<Lagging>>;

/// How much a last table maps.
pub(crate) const TABLE_BYTES: u64 = 2 << 20;
/// How many last tables there can be.
pub(crate) const TABLES: u64 = 1100;
/// As many are held back of one space.
pub(crate) const SPACE_QUARANTINE_MAX: u64 = 512;
/// The CPUs that go lazy. CPU 0 does not.
pub(crate) const LAZY: [usize; 2] = [1, 2];

/// The first page of the last table of this number. The first half of them is below 4 GiB, so
/// that there are two tables above them.
pub(crate) fn page_of(table: u64) -> Range<u64> {
    let start = (4 << 30) + table * TABLE_BYTES - TABLES / 2 * TABLE_BYTES;
    start..start + PAGE_BYTES
}

/// All pages from that of one table to that of another, both included.
pub(crate) fn from_to(first: u64, last: u64) -> Range<u64> {
    page_of(first).start..page_of(last).end
}

pub(crate) fn machine() -> (Host, Lagging) {
    let host = Host::with_addresses(4096, 1 + LAZY.len(), from_to(0, TABLES - 1));
    (host.clone(), Lagging::new(&host))
}

pub(crate) fn write(space: &OurSpace, table: u64) {
    let page = page_of(table);
    space
        .map(Place::Fixed(page.clone()), READ_WRITE, Sharing::Private, Backing::Anonymous)
        .unwrap();
    access(space, 0, page.start, Access::Write, table).unwrap();
}

pub(crate) fn unmap(space: &OurSpace, tables: Range<u64>) {
    space.unmap(from_to(tables.start, tables.end - 1)).unwrap();
}

/// A flush of one page, which frees no table.
pub(crate) fn flush_a_page(space: &OurSpace, table: u64) {
    let flushes = space.stats().flushes;
    space.advise(page_of(table), Advice::DontNeed).unwrap();
    assert_eq!(space.stats().flushes, flushes + 1);
    access(space, 0, page_of(table).start, Access::Write, table).unwrap();
}

/// One system with one space, on which a CPU has gone lazy. It has a page in each of the first
/// `used` tables.
pub(crate) struct World {
    pub(crate) host: Host,
    pub(crate) design: Lagging,
    pub(crate) vm: OurVm,
    pub(crate) space: Arc<OurSpace>,
}

impl World {
    pub(crate) fn new(used: u64) -> Self {
        Self::with_quarantined_tables_max(used, u64::MAX)
    }

    pub(crate) fn with_quarantined_tables_max(used: u64, quarantined_tables_max: u64) -> Self {
        let (host, design) = machine();
        let vm = Vm::new(host.clone(), design.clone()).unwrap();
        let vm = vm.with_quarantined_tables_max(quarantined_tables_max);
        let space = Arc::new(AddressSpace::new(&vm).unwrap());
        (0..used).for_each(|table| write(&space, table));
        design.go_lazy(LAZY[0], space.root());
        let world = Self { host, design, vm, space };
        world.speculate();
        world
    }

    pub(crate) fn speculate(&self) {
        for cpu in LAZY {
            self.design.speculate(cpu, (0..TABLES).map(|table| page_of(table).start));
        }
    }

    /// How many tables are out of use and held back: by the system's own count, which the machine
    /// confirms. What is walked by then has not been freed.
    pub(crate) fn held<'s>(&self, living: impl IntoIterator<Item = &'s Arc<OurSpace>>) -> u64 {
        let in_use = living.into_iter().map(|space| 1 + self.host.tables_of(space.root()).len());
        let held = self.host.tables_in_use() - in_use.sum::<usize>();
        assert_eq!(self.vm.quarantined_tables().now, held as u64);
        self.speculate();
        held as u64
    }

    pub(crate) fn held_of_space(&self) -> u64 {
        self.held([&self.space])
    }

    pub(crate) fn pages_in_use(&self) -> usize {
        self.host.frames_in_use() - self.host.tables_in_use() - 1
    }

    pub(crate) fn overflows(&self) -> u64 {
        self.vm.quarantined_tables().overflows
    }

    /// Everything ends, and everything is free.
    pub(crate) fn end<'s>(&self, living: impl IntoIterator<Item = &'s Arc<OurSpace>>) {
        living.into_iter().for_each(|space| space.exit());
        LAZY.iter().for_each(|&cpu| self.design.let_go_of_space(cpu));
        self.vm.free_dead_tables();
        assert_eq!(self.vm.quarantined_tables().now, 0);
        assert_eq!(self.host.frames_in_use(), 1, "but for the page of zeros, all is free again");
    }
}
