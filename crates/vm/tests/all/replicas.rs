//! Spaces whose CPUs have upper page tables of their own, while other calls act.

use std::ops::Range;
use std::sync::Arc;

use crate::platform::*;
use shootdown_vm::{Access, AddressSpace, Advice, Backing, PAGE_BYTES, Place, Sharing};

type OurSpace = Space<REPLICATED, AT_WAIT>;

const CPUS: usize = 4;
const COUNT: u64 = 10;

struct Fixture {
    host: Host,
    space: Arc<OurSpace>,
}

impl Fixture {
    /// Creates a space with pages that each CPU caches by way of its replica.
    fn new() -> Self {
        let host = Host::new(256, CPUS);
        let space = AddressSpace::new(&system(&host).with_reclaim()).unwrap();
        let place = Place::Fixed(pages(0, COUNT));
        space.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
        // A CPU gets its replica at its first fault.
        for cpu in 0..CPUS {
            access(&space, cpu, pages(cpu as u64, 1).start, Access::Write, 7).unwrap();
            assert_ne!(space.root_on(cpu), space.root());
        }
        for address in pages(0, COUNT).step_by(PAGE_BYTES as usize) {
            for cpu in 0..CPUS {
                access(&space, cpu, address, Access::Write, 7).unwrap();
            }
        }
        run_on(0);
        Self { host, space: Arc::new(space) }
    }

    fn end(self) {
        self.host.check_caches();
        self.space.exit();
        assert_eq!(self.space.vm().quarantined_tables().now, 0);
        drop(self.space);
        assert_eq!(self.host.frames_in_use(), 1, "only the page of zeros is in use");
    }
}

/// Runs `run` when a call waits, after `waits` earlier waits.
fn at_wait(host: &Host, waits: usize, run: impl FnOnce() + Send + 'static) {
    let other = host.clone();
    if waits == 0 {
        host.when_waiting(run);
    } else {
        host.when_waiting(move || at_wait(&other, waits - 1, run));
    }
}

/// Checks that no CPU can use a page, without a fault.
fn check_unused(space: &OurSpace, range: Range<u64>) {
    let host = space.vm().platform();
    for cpu in 0..CPUS {
        let cached = host.touch(cpu, space.root_on(cpu), range.start, Access::Write, 8);
        assert_eq!(cached, Err(PageFault), "CPU {cpu} uses a page that was removed");
    }
}

/// Neither the replica of the CPU that unmaps nor any other.
#[test]
fn no_replica_has_link_to_freed_table() {
    let fixture = Fixture::new();
    fixture.space.unmap(pages(0, COUNT)).unwrap();
    check_unused(&fixture.space, pages(0, 1));
    fixture.end();
}

/// The first call has unhooked the table, so the second one finds no sharers of it.
#[test]
fn unmap_during_unmap_flushes_all_replicas() {
    let fixture = Fixture::new();
    let other = Arc::clone(&fixture.space);
    fixture.host.when_waiting(move || {
        other.unmap(pages(3, 1)).unwrap();
        check_unused(&other, pages(3, 1));
    });
    fixture.space.unmap(pages(0, COUNT)).unwrap();
    assert!(!fixture.host.hook_is_set(), "the call did not wait");
    fixture.end();
}

/// A page that is flushed alone is announced until that flush, which leaves out the replicas.
#[test]
fn reclaim_page_by_page_excludes_replicas() {
    let vm: OurVm<REPLICATED_PER_PAGE, AT_WAIT> = system(&Host::new(64, 2));
    for (vm, has_replica) in [(vm.clone(), true), (vm.with_reclaim(), false)] {
        let space = AddressSpace::new(&vm).unwrap();
        let place = Place::Fixed(pages(0, 1));
        space.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
        access(&space, 0, pages(0, 1).start, Access::Write, 7).unwrap();
        assert_eq!(space.root_on(0) != space.root(), has_replica);
        space.exit();
    }
}

/// A batch has room for the space and one replica.
#[test]
fn replicas_that_crowd_a_batch_are_given_up() {
    for (sharers, has_replica) in [(1, true), (2, false)] {
        let host = Host::new(64, CPUS);
        let vm: OurVm<REPLICATED_IF_WORTH, AT_WAIT> = system(&host).with_reclaim();
        let space = AddressSpace::new(&vm).unwrap();
        let place = Place::Fixed(pages(0, PAGES));
        space.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
        // Faults of two CPUs, in another table, turn replicas on.
        for cpu in [2, 3] {
            access(&space, cpu, pages(PAGES - cpu as u64, 1).start, Access::Write, 7).unwrap();
        }
        for cpu in 0..sharers {
            access(&space, cpu, pages(1 + cpu as u64, 1).start, Access::Write, 7).unwrap();
            assert_ne!(space.root_on(cpu), space.root(), "CPU {cpu}");
            access(&space, cpu, pages(0, 1).start, Access::Write, 7).unwrap();
        }
        run_on(0);
        space.advise(pages(0, 1), Advice::Free).unwrap();
        space.advise(pages(0, 1), Advice::PageOut).unwrap();
        access(&space, 0, pages(0, 1).start, Access::Read, 0).unwrap();
        assert_eq!(space.root_on(0) != space.root(), has_replica, "{sharers} sharers");
        space.exit();
    }
}

/// A batch has room for the space and one replica, so the replicas of a page need several. Until
/// the last of them is flushed, a discard that finds the entry empty must flush the page.
#[test]
fn space_is_batched_until_its_last_replica_is_flushed() {
    let mut waits = 0;
    loop {
        let fixture = Fixture::new();
        fixture.space.advise(pages(0, 1), Advice::Free).unwrap();
        for cpu in 0..CPUS {
            access(&fixture.space, cpu, pages(0, 1).start, Access::Read, 0).unwrap();
        }
        run_on(0);
        let other = Arc::clone(&fixture.space);
        at_wait(&fixture.host, waits, move || {
            other.advise(pages(0, 1), Advice::DontNeed).unwrap();
            check_unused(&other, pages(0, 1));
        });
        fixture.space.advise(pages(0, 1), Advice::PageOut).unwrap();
        let is_complete = fixture.host.hook_is_set();
        fixture.host.when_waiting(|| ());
        fixture.end();
        if is_complete {
            break;
        }
        waits += 1;
    }
    assert_eq!(waits, CPUS, "a batch for each replica");
}

/// CPU 0 flushes a page of a table that CPU 1 has linked. Then CPU 1 does, and links again if it
/// has cut the link.
#[test]
fn link_is_cut_after_16_flushes_by_others() {
    for (flushes, links) in [(15, 0), (16, 1)] {
        let fixture = Fixture::new();
        let page = pages(0, 1);
        let flush_on = |cpu| {
            access(&fixture.space, cpu, page.start, Access::Write, 7).unwrap();
            run_on(cpu);
            fixture.space.protect(page.clone(), READ).unwrap();
            fixture.space.protect(page.clone(), READ_WRITE).unwrap();
        };
        (0..flushes).for_each(|_| flush_on(0));
        flush_on(1);
        let before = fixture.space.stats().linked;
        access(&fixture.space, 1, page.start, Access::Read, 0).unwrap();
        assert_eq!(fixture.space.stats().linked - before, links, "{flushes} flushes");
        run_on(0);
        fixture.end();
    }
}
