//! Lack of memory: allocation while all pages are being reclaimed, and migration.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use shootdown_vm::{Access, Sharing};

use crate::platform::*;
use crate::reclaim::fixture::*;

/// An allocation that finds no page to reclaim, because other threads are reclaiming all of them,
/// must not fail.
#[test]
fn allocation_waits_for_isolated_pages() {
    let fixture = Fixture::<BATCHING>::new();
    fixture.map_file(0, 8, Sharing::Shared);
    fixture.map_anonymous(20, 1);
    cache(&fixture.space, 0, 0..8);
    let (notified, result) = mpsc::channel();
    let (host, allocating) = (fixture.host.clone(), Arc::clone(&fixture.space));
    fixture.reclaim_while(move |_| {
        host.limit_allocations(0);
        thread::spawn(move || notified.send(write(&allocating, 1, 20, 5)));
        // Long enough for the allocation to find nothing, and to fail.
        thread::sleep(Duration::from_millis(50));
        host.limit_allocations(u64::MAX);
    });
    assert_eq!(result.recv().unwrap(), Ok(5));
    fixture.end();
}

/// A node has free frames for only some of the pages that should move there. The other pages stay.
#[test]
fn pages_stay_if_node_is_full() {
    for room in 0..8 {
        let fixture = Fixture::<BATCHING>::new();
        fixture.map_file(0, 4, Sharing::Shared);
        fixture.map_anonymous(40, 4);
        for page in (0..4).chain(40..44) {
            write(&fixture.space, 1, page, page + 1).unwrap();
        }
        let in_use = fixture.host.frames_in_use();
        // Some pages are on node 0 already, where the next frames come from.
        fixture.space.migrate(pages(0, PAGES), 0).unwrap();
        fixture.host.limit_allocations(room);
        assert_eq!(fixture.space.migrate(pages(0, PAGES), 1), Ok(room as usize));
        fixture.host.limit_allocations(u64::MAX);
        fixture.host.check_caches();
        assert_eq!(fixture.host.frames_in_use(), in_use);
        for page in (0..4).chain(40..44) {
            assert_eq!(read(&fixture.space, 2, page), Ok(page + 1));
            assert_eq!(touch(&fixture.space, 2, page, Access::Write, page), Ok(page));
        }
        assert_eq!(fixture.space.migrate(pages(0, PAGES), 1), Ok(8 - room as usize));
        fixture.end();
    }
}
