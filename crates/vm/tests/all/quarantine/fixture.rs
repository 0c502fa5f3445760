//! A system with one space, a CPU that is lazy on it, and its quarantined tables.

use std::ops::Range;
use std::sync::Arc;

use shootdown_vm::{Access, AddressSpace, Advice, Backing, PAGE_BYTES, Place, Sharing, Vm};

use crate::platform::lagging::Lagging;
use crate::platform::{Host, READ_WRITE, TestSystem, access};

pub(crate) type OurVm = Vm<TestSystem<Lagging>>;
pub(crate) type OurSpace = AddressSpace<TestSystem<Lagging>>;

/// Number of bytes that a table of level 0 maps.
pub(crate) const TABLE_BYTES: u64 = 2 << 20;
/// Maximum number of tables of level 0.
pub(crate) const TABLES: u64 = 1100;
/// Maximum number of quarantined tables of one space.
pub(crate) const SPACE_QUARANTINE_MAX: u64 = 512;
/// The CPUs that become lazy. CPU 0 does not.
pub(crate) const LAZY: [usize; 2] = [1, 2];

/// Returns the first page of the table of level 0 with this number. The first half of the tables is
/// below 4 GiB, so that there are two tables above them.
pub(crate) fn page_of(table: u64) -> Range<u64> {
    let start = (4 << 30) + table * TABLE_BYTES - TABLES / 2 * TABLE_BYTES;
    start..start + PAGE_BYTES
}

/// Returns all addresses from the page of one table to that of another, including both.
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

/// Flushes one page, without freeing a table.
pub(crate) fn flush_a_page(space: &OurSpace, table: u64) {
    let flushes = space.stats().flushes;
    space.advise(page_of(table), Advice::DontNeed).unwrap();
    assert_eq!(space.stats().flushes, flushes + 1);
    access(space, 0, page_of(table).start, Access::Write, table).unwrap();
}

/// A system with one space, on which a CPU has become lazy. The space has a page in each of the
/// first `used` tables.
pub(crate) struct Fixture {
    pub(crate) host: Host,
    pub(crate) design: Lagging,
    pub(crate) vm: OurVm,
    pub(crate) space: Arc<OurSpace>,
}

impl Fixture {
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
        let fixture = Self { host, design, vm, space };
        fixture.speculate();
        fixture
    }

    pub(crate) fn speculate(&self) {
        for cpu in LAZY {
            self.design.speculate(cpu, (0..TABLES).map(|table| page_of(table).start));
        }
    }

    /// Returns the number of quarantined tables by the system's own count, and checks it against
    /// the machine. Lazy CPUs then walk all tables, and must not find a freed one.
    pub(crate) fn quarantined<'s>(
        &self,
        living: impl IntoIterator<Item = &'s Arc<OurSpace>>,
    ) -> u64 {
        let in_use = living.into_iter().map(|space| 1 + self.host.tables_of(space.root()).len());
        let quarantined = self.host.tables_in_use() - in_use.sum::<usize>();
        assert_eq!(self.vm.quarantined_tables().now, quarantined as u64);
        self.speculate();
        quarantined as u64
    }

    pub(crate) fn quarantined_of_space(&self) -> u64 {
        self.quarantined([&self.space])
    }

    pub(crate) fn pages_in_use(&self) -> usize {
        self.host.frames_in_use() - self.host.tables_in_use() - 1
    }

    pub(crate) fn overflows(&self) -> u64 {
        self.vm.quarantined_tables().overflows
    }

    /// Ends all spaces, and checks that all frames are free.
    pub(crate) fn end<'s>(&self, living: impl IntoIterator<Item = &'s Arc<OurSpace>>) {
        living.into_iter().for_each(|space| space.exit());
        LAZY.iter().for_each(|&cpu| self.design.leave_space(cpu));
        self.vm.free_dead_tables();
        assert_eq!(self.vm.quarantined_tables().now, 0);
        assert_eq!(self.host.frames_in_use(), 1, "only the page of zeros is in use");
    }
}
