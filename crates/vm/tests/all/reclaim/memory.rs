//! Memory that is short: for who asks while all is on its way out, and for pages that move.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use shootdown_vm::{Access, Sharing};

use crate::platform::*;
use crate::reclaim::world::*;

/// Whoever finds no page that could be taken, because others are about to take all of them, is not
/// out of memory.
#[test]
fn who_finds_every_page_on_its_way_out_waits_until_one_is_free() {
    let world = World::<BATCHING>::new();
    world.map_file(0, 8, Sharing::Shared);
    world.map_anonymous(20, 1);
    cache(&world.space, 0, 0..8);
    let (told, result) = mpsc::channel();
    let (host, needy) = (world.host.clone(), Arc::clone(&world.space));
    world.reclaim_while(move |_| {
        host.limit_allocations(0);
        thread::spawn(move || told.send(write(&needy, 1, 20, 5)));
        // Long enough to find nothing, and to say so.
        thread::sleep(Duration::from_millis(50));
        host.limit_allocations(u64::MAX);
    });
    assert_eq!(result.recv().unwrap(), Ok(5));
    world.end();
}

/// A node has room for so many of the pages that are to move there: the others stay.
#[test]
fn pages_for_which_a_node_has_no_room_stay_where_they_are() {
    for room in 0..8 {
        let world = World::<BATCHING>::new();
        world.map_file(0, 4, Sharing::Shared);
        world.map_anonymous(40, 4);
        for page in (0..4).chain(40..44) {
            write(&world.space, 1, page, page + 1).unwrap();
        }
        let in_use = world.host.frames_in_use();
        // Where the next frames come from, some already are.
        world.space.migrate(pages(0, PAGES), 0).unwrap();
        world.host.limit_allocations(room);
        assert_eq!(world.space.migrate(pages(0, PAGES), 1), Ok(room as usize));
        world.host.limit_allocations(u64::MAX);
        world.host.check_caches();
        assert_eq!(world.host.frames_in_use(), in_use);
        for page in (0..4).chain(40..44) {
            assert_eq!(read(&world.space, 2, page), Ok(page + 1));
            assert_eq!(touch(&world.space, 2, page, Access::Write, page), Ok(page));
        }
        assert_eq!(world.space.migrate(pages(0, PAGES), 1), Ok(8 - room as usize));
        world.end();
    }
}
