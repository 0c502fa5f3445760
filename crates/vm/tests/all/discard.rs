//! Pages that are discarded in place: zeroed where they are, and freed later with one flush.

use std::ops::Range;
use std::sync::Arc;

use crate::platform::*;
use shootdown_vm::{
    Access, AddressSpace, Advice, Backing, Discards, PAGE_BYTES, Place, Protection, Sharing,
};

type OurSpace = Space<IN_PLACE, AT_WAIT>;

const CPUS: usize = 3;
/// The age at which pages are freed.
const AGE_NS: u64 = 20_000_000;
/// Number of pages that are zeroed in one call at most, with three CPUs.
const ZEROED_MAX: u64 = 6;

struct Fixture {
    host: Host,
    space: Arc<OurSpace>,
}

impl Fixture {
    fn new() -> Self {
        Self::on(Host::new(256, CPUS))
    }

    fn on(host: Host) -> Self {
        let space = AddressSpace::new(&system(&host).with_reclaim()).unwrap();
        let fixture = Self { host, space: Arc::new(space) };
        fixture.map(0, 32, Sharing::Private);
        fixture
    }

    fn map(&self, first: u64, count: u64, sharing: Sharing) {
        let place = Place::Fixed(pages(first, count));
        self.space.map(place, READ_WRITE, sharing, Backing::Anonymous).unwrap();
    }

    /// Writes to pages on two CPUs, which then cache them as dirty.
    fn write(&self, range: Range<u64>, word: u64) {
        for address in range.step_by(PAGE_BYTES as usize) {
            for cpu in [1, 0] {
                access(&self.space, cpu, address, Access::Write, word).unwrap();
            }
        }
    }

    fn discard(&self, range: Range<u64>) {
        self.space.advise(range, Advice::DontNeed).unwrap();
    }

    fn write_and_discard(&self, range: Range<u64>) {
        self.write(range.clone(), 7);
        self.host.take_flushes();
        self.discard(range);
    }

    fn read(&self, cpu: usize, page: u64) -> u64 {
        access(&self.space, cpu, pages(page, 1).start, Access::Read, 0).unwrap()
    }

    /// Accesses a page by the translation that the CPU caches.
    fn store(&self, cpu: usize, page: u64, word: u64) -> Result<u64, PageFault> {
        let address = pages(page, 1).start;
        self.host.touch(cpu, self.space.root(), address, Access::Write, word)
    }

    fn free_old(&self) -> usize {
        free_old_discarded(self.space.vm())
    }

    fn end(self) {
        self.host.check_caches();
        self.space.exit();
        assert_eq!(self.space.vm().discard_stats().now, 0);
        drop(self.space);
        assert_eq!(self.host.frames_in_use(), 1, "only the page of zeros is in use");
    }
}

#[test]
fn discard_in_place_needs_no_flush_and_no_fault() {
    let fixture = Fixture::new();
    fixture.write_and_discard(pages(0, ZEROED_MAX));
    assert_eq!(fixture.host.take_flushes(), []);
    for page in 0..ZEROED_MAX {
        let address = pages(page, 1).start;
        let root = fixture.space.root();
        assert_eq!(fixture.host.touch(1, root, address, Access::Read, 0), Ok(0));
        assert_eq!(fixture.store(0, page, 3), Ok(3));
    }
    let stats = fixture.space.vm().discard_stats();
    assert_eq!((stats.now, stats.peak, stats.in_place), (6, 6, 6));
    fixture.end();
}

#[test]
fn old_pages_are_freed_with_one_flush() {
    let fixture = Fixture::new();
    fixture.write_and_discard(pages(0, 4));
    fixture.host.advance_ns(AGE_NS / 2);
    fixture.write_and_discard(pages(20, 4));
    assert_eq!(fixture.space.vm().free_discarded(), 0, "no page is old");
    let before = fixture.host.frames_in_use();
    assert_eq!(fixture.free_old(), 8);
    assert_eq!(before - fixture.host.frames_in_use(), 8);
    assert_eq!(fixture.host.take_flushes().len(), 1);
    assert_eq!((fixture.read(0, 2), fixture.read(1, 21)), (0, 0));
    let stats = fixture.space.vm().discard_stats();
    assert_eq!((stats.now, stats.freed, stats.flushes), (0, 8, 1));
    assert_eq!(stats.late_page_ns, 4 * (AGE_NS / 2 + AGE_NS) + 4 * AGE_NS);
    fixture.end();
}

#[test]
fn younger_pages_are_freed_when_they_are_old() {
    let fixture = Fixture::new();
    for first in [0, 20] {
        fixture.write_and_discard(pages(first, 2));
        fixture.host.advance_ns(AGE_NS / 2);
    }
    let free = || fixture.space.vm().free_discarded();
    assert_eq!((free(), free()), (2, 0));
    fixture.host.advance_ns(AGE_NS / 2);
    assert_eq!(free(), 2);
    fixture.end();
}

#[test]
fn page_in_use_again_is_kept_without_flush() {
    let fixture = Fixture::new();
    fixture.write_and_discard(pages(0, 2));
    assert_eq!((fixture.store(1, 0, 8), fixture.store(1, 1, 9)), (Ok(8), Ok(9)));
    assert_eq!(fixture.free_old(), 0);
    assert_eq!(fixture.host.take_flushes(), []);
    assert_eq!((fixture.read(0, 0), fixture.read(2, 1)), (8, 9));
    assert_eq!(fixture.space.vm().discard_stats().used_again, 2);
    fixture.end();
}

/// Frees a page while another CPU writes to it by its old translation, during the flush. Returns
/// the word that the page then holds.
fn write_during_flush(prepare: impl FnOnce(&Host)) -> u64 {
    let fixture = Fixture::new();
    fixture.write_and_discard(pages(0, 1));
    let (host, root) = (fixture.host.clone(), fixture.space.root());
    prepare(&host);
    fixture.host.when_waiting(move || {
        assert_eq!(host.touch(1, root, pages(0, 1).start, Access::Write, 5), Ok(5));
    });
    fixture.free_old();
    assert!(!fixture.host.hook_is_set(), "no flush was waited for");
    // A CPU that still has the translation would write to a frame that is free.
    let _ = fixture.store(1, 1, 6);
    let word = fixture.read(1, 0);
    fixture.end();
    word
}

#[test]
fn write_before_the_flush_is_not_lost() {
    assert_eq!(write_during_flush(|_| {}), 5);
}

/// The test above fails if the page is freed without the test for zeros after the flush.
#[test]
fn write_is_lost_without_the_test_for_zeros() {
    assert_eq!(write_during_flush(Host::take_pages_for_zero), 0);
}

/// Because of earlier advice, reclaim discards the page if it is not marked as dirty.
#[test]
fn page_written_before_the_flush_is_dirty() {
    let fixture = Fixture::new();
    fixture.write(pages(0, 1), 7);
    fixture.space.advise(pages(0, 1), Advice::Free).unwrap();
    fixture.write_and_discard(pages(0, 1));
    let (host, root) = (fixture.host.clone(), fixture.space.root());
    fixture.host.when_waiting(move || {
        assert_eq!(host.touch(1, root, pages(0, 1).start, Access::Write, 5), Ok(5));
    });
    assert_eq!(fixture.free_old(), 0);
    (0..NODES).for_each(|node| assert_eq!(fixture.space.vm().reclaim(node, 9).freed, 0));
    assert_eq!(fixture.read(1, 0), 5);
    fixture.end();
}

/// The same write, after the test for zeros: the flush must have come before.
#[test]
#[should_panic(expected = "is used as another kind")]
fn write_hits_a_free_page_without_the_flush() {
    let fixture = Fixture::new();
    fixture.write_and_discard(pages(0, 1));
    fixture.host.drop_flushes();
    assert_eq!(fixture.free_old(), 1);
    let _ = fixture.store(1, 0, 5);
}

/// Moves a page to another node between two steps of its discard.
fn migrate_during_discard(prepare: impl FnOnce(&Host)) {
    let fixture = Fixture::new();
    fixture.write(pages(0, 1), 7);
    prepare(&fixture.host);
    let space = Arc::clone(&fixture.space);
    fixture.host.after_exchange(move || {
        for node in 0..NODES {
            let _ = space.migrate(pages(0, 1), node);
        }
    });
    fixture.discard(pages(0, 1));
    assert_eq!((fixture.read(0, 0), fixture.read(1, 0)), (0, 0));
    fixture.end();
}

#[test]
fn claim_keeps_migration_away() {
    migrate_during_discard(|_| {});
}

#[test]
#[should_panic(expected = "is used as another kind")]
fn migration_takes_the_page_without_the_claim() {
    migrate_during_discard(Host::skip_next_claim);
}

/// A second discard clears the claim of the first one, which must then flush and free the page.
#[test]
fn discard_during_a_discard_frees_the_page() {
    let fixture = Fixture::new();
    fixture.write(pages(0, 1), 7);
    fixture.host.take_flushes();
    let space = Arc::clone(&fixture.space);
    fixture.host.after_exchange(move || {
        space.set_discards(Discards::Immediate);
        space.advise(pages(0, 1), Advice::DontNeed).unwrap();
    });
    fixture.discard(pages(0, 1));
    assert_eq!(fixture.host.take_flushes().len(), 2, "each call flushes");
    assert_eq!(fixture.read(1, 0), 0);
    fixture.end();
}

/// The late release has claimed the page, and waits for its flush. Another discard of the page
/// clears the claim, and returns before that flush is complete.
#[test]
fn discard_that_clears_a_claim_flushes_the_page() {
    let fixture = Fixture::new();
    fixture.write_and_discard(pages(0, 1));
    let (host, other) = (fixture.host.clone(), Arc::clone(&fixture.space));
    fixture.host.when_waiting(move || {
        other.advise(pages(0, 1), Advice::DontNeed).unwrap();
        let access = host.touch(1, other.root(), pages(0, 1).start, Access::Write, 9);
        assert_eq!(access, Err(PageFault), "a CPU can use the page that was discarded");
    });
    fixture.free_old();
    assert!(!fixture.host.hook_is_set(), "the late release did not wait");
    assert_eq!(fixture.read(1, 0), 0);
    fixture.end();
}

/// The entry allows no access any more, and CPUs may have the page cached until that is flushed.
#[test]
fn page_is_kept_until_lost_permission_is_flushed() {
    let check = |prepare: &dyn Fn(&Fixture), run: fn(&OurSpace)| {
        let fixture = Fixture::new();
        fixture.write(pages(0, 1), 7);
        prepare(&fixture);
        let (host, other) = (fixture.host.clone(), Arc::clone(&fixture.space));
        fixture.host.when_waiting(move || {
            run(&other);
            let access = host.touch(1, other.root(), pages(0, 1).start, Access::Write, 9);
            assert_eq!(access, Err(PageFault), "a CPU can use the page that has gone");
        });
        fixture.space.protect(pages(0, 1), Protection::empty()).unwrap();
        assert!(!fixture.host.hook_is_set(), "the permission was not flushed");
        fixture.end();
    };
    let discard = |fixture: &Fixture| fixture.discard(pages(0, 1));
    check(&discard, |space| assert_eq!(free_old_discarded(space.vm()), 1));
    check(&|_| {}, |space| {
        let moved = (0..NODES).map(|node| space.migrate(pages(0, 1), node).unwrap());
        assert_eq!(moved.sum::<usize>(), 1);
    });
    let free = |fixture: &Fixture| {
        fixture.space.advise(pages(0, 1), Advice::Free).unwrap();
        fixture.read(1, 0);
    };
    check(&free, |space| space.advise(pages(0, 1), Advice::PageOut).unwrap());
}

#[test]
fn other_pages_are_discarded_immediately() {
    let check = |name: &str, prepare: &dyn Fn(&Fixture), range: Range<u64>| {
        let fixture = Fixture::new();
        fixture.write(range.clone(), 7);
        prepare(&fixture);
        fixture.host.take_flushes();
        fixture.discard(range);
        assert_eq!(fixture.space.vm().discard_stats().in_place, 0, "{name}");
        assert_ne!(fixture.host.take_flushes(), [], "{name}");
        fixture.end();
    };
    check("too many pages", &|_| {}, pages(0, ZEROED_MAX + 1));
    let opt_out = |fixture: &Fixture| fixture.space.set_discards(Discards::Immediate);
    check("a space that has opted out", &opt_out, pages(0, 1));
    let share = |fixture: &Fixture| {
        let child = fixture.space.fork().unwrap();
        fixture.read(0, 0);
        fixture.host.when_waiting(move || child.exit());
    };
    check("a page of two spaces", &share, pages(0, 1));
}

#[test]
fn shared_page_keeps_its_contents() {
    let fixture = Fixture::new();
    fixture.map(40, 1, Sharing::Shared);
    fixture.write_and_discard(pages(40, 1));
    assert_eq!(fixture.host.take_flushes().len(), 1);
    assert_eq!(fixture.read(1, 40), 7);
    fixture.end();
}

#[test]
fn page_of_zeros_stays_mapped() {
    let fixture = Fixture::new();
    assert_eq!(fixture.read(1, 0), 0);
    fixture.discard(pages(0, 1));
    assert_eq!(fixture.host.take_flushes(), []);
    assert!(fixture.space.translation(pages(0, 1).start).is_some());
    fixture.end();
}

/// Another call discards more pages than are zeroed, and a read maps the page of zeros, at each
/// point of a discard.
#[test]
fn page_of_zeros_is_neither_zeroed_nor_freed() {
    for point in 0.. {
        let fixture = Fixture::new();
        fixture.write(pages(0, ZEROED_MAX + 1), 7);
        let other = Arc::clone(&fixture.space);
        fixture.host.interrupt_after(point, move || {
            other.advise(pages(0, ZEROED_MAX + 1), Advice::DontNeed).unwrap();
            assert_eq!(access(&other, 1, pages(0, 1).start, Access::Read, 0), Ok(0));
        });
        run_on(0);
        fixture.discard(pages(0, 1));
        let is_complete = fixture.host.cancel_interruption();
        fixture.free_old();
        assert_eq!(fixture.read(1, 0), 0);
        fixture.end();
        if is_complete {
            break;
        }
    }
}

/// Otherwise the next page in the frame would seem to be mapped twice, and stay for ever.
#[test]
fn frame_of_a_freed_page_has_no_old_record() {
    let fixture = Fixture::new();
    fixture.write_and_discard(pages(0, 1));
    fixture.host.limit_frames(0);
    assert_eq!(fixture.free_old(), 1);
    fixture.write(pages(20, 1), 5);
    for advice in [Advice::Free, Advice::PageOut] {
        fixture.space.advise(pages(20, 1), advice).unwrap();
    }
    assert_eq!(fixture.read(1, 20), 0, "the page was not reclaimed");
    fixture.end();
}

#[test]
fn child_inherits_opt_out() {
    let fixture = Fixture::new();
    fixture.write_and_discard(pages(0, 2));
    fixture.space.set_discards(Discards::Immediate);
    assert_eq!(fixture.space.vm().discard_stats().freed, 2, "opting out frees pages");
    let child = fixture.space.fork().unwrap();
    access(&child, 0, pages(1, 1).start, Access::Write, 4).unwrap();
    child.advise(pages(1, 1), Advice::DontNeed).unwrap();
    assert_eq!(fixture.space.vm().discard_stats().in_place, 2);
    child.exit();
    fixture.end();
}

#[test]
fn discarded_page_is_shared_with_a_child_and_kept() {
    let fixture = Fixture::new();
    fixture.write_and_discard(pages(0, 1));
    let child = fixture.space.fork().unwrap();
    assert_eq!(fixture.free_old(), 0, "the child has the page");
    assert_eq!(access(&child, 2, pages(0, 1).start, Access::Read, 0), Ok(0));
    child.exit();
    fixture.end();
}

#[test]
fn failing_allocation_frees_discarded_pages() {
    let fixture = Fixture::new();
    fixture.write_and_discard(pages(0, 4));
    fixture.write(pages(8, 1), 1);
    fixture.host.limit_frames(0);
    // The fault holds the lock of its area, or of the space.
    fixture.write(pages(9, 3), 2);
    assert_eq!(fixture.space.vm().discard_stats().freed, 4);
    fixture.end();
}

#[test]
fn reclaim_frees_discarded_pages_first() {
    let fixture = Fixture::new();
    fixture.write_and_discard(pages(0, 3));
    assert_eq!(fixture.space.vm().reclaim(0, 3).freed, 3);
    fixture.end();
}

#[test]
fn changed_areas_do_not_confuse_the_list() {
    let fixture = Fixture::new();
    fixture.write_and_discard(pages(0, 6));
    fixture.space.unmap(pages(0, 1)).unwrap();
    fixture.space.protect(pages(1, 1), Protection::empty()).unwrap();
    fixture.space.protect(pages(2, 1), READ).unwrap();
    fixture.space.remap(pages(3, 1), pages(40, 1)).unwrap();
    fixture.map(4, 1, Sharing::Shared);
    fixture.write(pages(4, 1), 3);
    assert_eq!(fixture.free_old(), 3, "those without access, read-only, and unchanged");
    assert_eq!((fixture.read(0, 2), fixture.read(1, 40), fixture.read(1, 4)), (0, 0, 3));
    fixture.end();
}

#[test]
fn list_is_bounded() {
    let count = 600;
    let addresses = BASE..BASE + count * PAGE_BYTES;
    let fixture = Fixture::on(Host::with_addresses(2048, CPUS, addresses));
    fixture.map(0, count, Sharing::Private);
    for first in (0..count).step_by(6) {
        fixture.write_and_discard(pages(first, 6));
    }
    let stats = fixture.space.vm().discard_stats();
    assert_eq!(stats.in_place, count);
    assert!((500..=512).contains(&stats.peak), "{stats:?}");
    assert!(stats.freed >= 256 && stats.flushes == 1, "{stats:?}");
    fixture.end();
}

const TABLE: u64 = 2 << 20;

/// The addresses of a page in a table of the last level.
fn page_of(table: u64, number: u64) -> Range<u64> {
    let start = table * TABLE + number * PAGE_BYTES;
    start..start + PAGE_BYTES
}

/// The first CPUs have replicas, each with a link to one of the tables.
fn with_table_per_cpu<const COUNT: usize>(
    tables: [u64; COUNT],
) -> (Host, Space<REPLICATED, AT_WAIT>) {
    let host = Host::with_addresses(2048, CPUS, TABLE..32 * TABLE);
    let space = AddressSpace::new(&system(&host).with_reclaim()).unwrap();
    let place = Place::Fixed(TABLE..32 * TABLE);
    space.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
    for (cpu, table) in tables.into_iter().enumerate() {
        // A CPU gets its replica at its first fault.
        access(&space, cpu, page_of(table, 100 + cpu as u64).start, Access::Write, 7).unwrap();
    }
    run_on(0);
    (host, space)
}

/// Writes to some pages of a table on a CPU, and discards each.
fn discard_each(space: &Space<REPLICATED, AT_WAIT>, cpu: usize, table: u64, count: u64) {
    for number in 0..count {
        access(space, cpu, page_of(table, number).start, Access::Write, 7).unwrap();
        space.advise(page_of(table, number), Advice::DontNeed).unwrap();
        space.vm().platform().advance_ns(1);
    }
}

/// Checks that there was one flush, of pages of a table.
fn assert_flushed_only(host: &Host, table: u64) {
    let flushes = host.take_flushes();
    assert_eq!(flushes.len(), 1);
    let starts = flushes[0].extents.as_slice().iter().map(|extent| extent.start() / TABLE);
    assert!(starts.clone().all(|start| start == table), "{flushes:x?}");
}

/// With replicas, the pages of each page table are on a list of their own, as long as there are
/// enough lists.
#[test]
fn full_list_makes_room_with_pages_of_its_table() {
    const LISTED_MAX: u64 = 32;
    let pages_each = 40;
    // The last table first: the pages of several lists must be freed in order nevertheless.
    let tables = [3, 2, 1];
    let (host, space) = with_table_per_cpu(tables);
    for (cpu, table) in tables.into_iter().enumerate() {
        discard_each(&space, cpu, table, pages_each);
        assert_flushed_only(&host, table);
    }
    let (in_place, freed) = (CPUS as u64 * pages_each, CPUS as u64 * (LISTED_MAX / 2 + 1));
    let stats = space.vm().discard_stats();
    assert_eq!((stats.in_place, stats.freed), (in_place, freed), "{stats:?}");
    assert_eq!(free_old_discarded(space.vm()) as u64, in_place - freed);
    assert_eq!(host.take_flushes().len(), 1);
    for (cpu, table) in tables.into_iter().enumerate() {
        assert_eq!(access(&space, cpu, page_of(table, 39).start, Access::Read, 0), Ok(0));
    }
    space.exit();
}

/// From the third replica on, there are several lists.
#[test]
fn third_replica_frees_list_used_alone() {
    let (_, space) = with_table_per_cpu([1, 2]);
    discard_each(&space, 0, 1, 3);
    access(&space, 2, page_of(3, 100).start, Access::Write, 7).unwrap();
    discard_each(&space, 2, 3, 1);
    let stats = space.vm().discard_stats();
    assert_eq!((stats.freed, stats.now), (3, 1), "{stats:?}");
    space.exit();
}

/// The pages of tables that are 16 apart are on one list.
#[test]
fn full_list_keeps_pages_of_other_tables() {
    let (host, space) = with_table_per_cpu([1, 17, 2]);
    discard_each(&space, 0, 1, 20);
    host.take_flushes();
    discard_each(&space, 1, 17, 16);
    assert_flushed_only(&host, 17);
    space.exit();
}

/// The other two CPUs' replicas have links to the table.
#[test]
fn sharers_count_as_notifications() {
    let zeroed_max = 2 * ZEROED_MAX;
    for (count, in_place) in [(zeroed_max, zeroed_max), (zeroed_max + 1, 0)] {
        let (_, space) = with_table_per_cpu([1, 1, 1]);
        let pages = page_of(1, 0).start..page_of(1, count).start;
        for page in pages.clone().step_by(PAGE_BYTES as usize) {
            access(&space, 0, page, Access::Write, 7).unwrap();
        }
        space.advise(pages, Advice::DontNeed).unwrap();
        assert_eq!(space.vm().discard_stats().in_place, in_place);
        space.exit();
    }
}
