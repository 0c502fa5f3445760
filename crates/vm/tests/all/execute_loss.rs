//! Pages that lose their permission to execute, on a machine that needs their entries broken first
//! (`ExecuteLoss::BreakBeforeMake`). The machine also fails if one step changes such an entry, in
//! all tests of this policy.

use std::sync::Arc;

use shootdown_vm::{Access, AddressSpace, Backing, PAGE_BYTES, Place, Protection, Sharing};

use crate::large::fixture::{BLOCK, Fixture, at, block};
use crate::platform::*;

const CODE: Protection = READ_WRITE.union(Protection::EXECUTE);

/// Makes the next wait check which of the addresses are mapped. The space is locked for writing if
/// one is not.
fn expect_at_wait(host: &Host, space: &Arc<Space<KEEPING, AT_WAIT>>, expected: [(u64, bool); 2]) {
    let (machine, root) = (host.clone(), space.root());
    host.when_waiting(move || {
        let mapped = expected.map(|(address, _)| (address, machine.is_mapped(root, address)));
        assert_eq!(mapped, expected);
        let is_broken = expected.iter().any(|(_, is_mapped)| !is_mapped);
        // A fault could map another page.
        assert_eq!(lock::sleeping_locks(), (0, usize::from(is_broken)));
    });
}

#[test]
fn executable_page_is_broken_before_it_is_restricted() {
    let host = Host::new(64, 2);
    let space: Arc<Space<KEEPING, AT_WAIT>> = Arc::new(AddressSpace::new(&system(&host)).unwrap());
    let [code, data] = [pages(0, 1), pages(1, 1)];
    for (page, protection) in [(&code, CODE), (&data, READ_WRITE)] {
        let place = Place::Fixed(page.clone());
        space.map(place, protection, Sharing::Private, Backing::Anonymous).unwrap();
        assert_eq!(access(&space, 0, page.start, Access::Write, 7), Ok(7));
    }
    assert_eq!(access(&space, 1, code.start, Access::Execute, 0), Ok(7));
    let read_only = READ | Protection::EXECUTE;
    // Which of the pages are mapped when the call waits, if it does. The data is executable from
    // the second change on.
    for (protection, mapped) in [
        (READ, Some([false, true])),
        (CODE, None),
        (read_only, Some([true, true])),
        (Protection::empty(), Some([false, false])),
    ] {
        host.take_flushes();
        let [first, second] = mapped.unwrap_or_default();
        expect_at_wait(&host, &space, [(code.start, first), (data.start, second)]);
        space.protect(code.start..data.end, protection).unwrap();
        assert_eq!(host.hook_is_set(), mapped.is_none());
        assert_eq!(host.take_flushes().len(), usize::from(mapped.is_some()));
        host.check_caches();
        if protection.contains(READ) {
            assert_eq!(access(&space, 1, code.start, Access::Read, 0), Ok(7));
            assert!(host.is_dirty(space.root(), code.start), "the marks are kept");
        }
    }
    assert!(!host.is_mapped(space.root(), code.start));
    space.exit();
}

#[test]
fn large_executable_page_is_broken_whole() {
    let fixture = Fixture::<KEEPING>::new().with_large_page();
    let (host, space) = (&fixture.host, &fixture.space);
    space.protect(at(0, 3 * BLOCK), CODE).unwrap();
    let [first, last] = [block(1).start, block(1).end - PAGE_BYTES];
    assert!(access(space, 1, last, Access::Execute, 0).is_ok());
    expect_at_wait(host, space, [(first, false), (last, false)]);
    space.protect(block(1), READ).unwrap();
    assert!(!host.hook_is_set() && host.is_large(space.root(), first));
    host.check_caches();
}
