//! Pages that move to the memory of another node.

use std::sync::Arc;

use shootdown_vm::{Access, Advice, Sharing};

use crate::platform::*;
use crate::reclaim::world::*;

fn node_of<const LOCK: u8>(space: &OurSpace<LOCK>, page: u64) -> usize {
    space.vm().platform().frame_of(space.root(), pages(page, 1).start).0 as usize % NODES
}

fn pages_move_to_another_node<const LOCK: u8>() {
    let world = World::<LOCK>::new();
    world.map_file(0, 20, Sharing::Shared);
    world.map_anonymous(40, 20);
    for page in (0..20).chain(40..60) {
        write(&world.space, 1, page, page + 1).unwrap();
    }
    let in_use = world.host.frames_in_use();
    let mut moved = 0;
    for node in [0, 1] {
        moved += world.space.migrate(pages(0, PAGES), node).unwrap();
        world.host.check_caches();
        for page in (0..20).chain(40..60) {
            assert_eq!(read(&world.space, 0, page), Ok(page + 1));
            assert_eq!(node_of(&world.space, page), node);
        }
        assert_eq!(world.host.frames_in_use(), in_use);
    }
    assert_eq!(world.space.migrate(pages(0, PAGES), 1), Ok(0), "all are there");
    assert!(moved >= 40 && world.space.stats().migrated == moved as u64, "{moved}");
    // What was written before they moved is written out when they go.
    assert_eq!(world.reclaim(), 20);
    assert_eq!(world.host.stored(FILE, 3), 4);
    world.end();
}

#[test]
fn pages_move_to_another_node_one_by_one() {
    pages_move_to_another_node::<SHARED>();
}

#[test]
fn pages_move_to_another_node_in_batches() {
    pages_move_to_another_node::<BATCHING>();
}

/// What is written until a CPU is told that the page moves is in the copy; and from then on it
/// waits for that.
#[test]
fn no_write_is_lost_while_a_page_moves() {
    let world = World::<BATCHING>::new();
    world.map_anonymous(0, 1);
    write(&world.space, 1, 0, 1).unwrap();
    let node = 1 - node_of(&world.space, 0);
    let other = Arc::clone(&world.space);
    world.host.when_waiting(move || {
        assert_eq!(touch(&other, 1, 0, Access::Write, 2), Ok(2), "it has not been told");
        assert_eq!(touch(&other, 2, 0, Access::Read, 0), Err(Refused), "it has to wait");
    });
    assert_eq!(world.space.migrate(pages(0, 1), node), Ok(1));
    assert_eq!((read(&world.space, 2, 0), node_of(&world.space, 0)), (Ok(2), node));
    world.end();
}

#[test]
fn a_page_that_is_discarded_while_it_moves_is_gone() {
    let world = World::<BATCHING>::new();
    world.map_anonymous(0, 2);
    for page in 0..2 {
        write(&world.space, 1, page, 7).unwrap();
    }
    let other = Arc::clone(&world.space);
    world.host.when_waiting(move || other.advise(pages(0, 1), Advice::DontNeed).unwrap());
    for node in 0..NODES {
        world.space.migrate(pages(0, 2), node).unwrap();
    }
    assert_eq!((read(&world.space, 1, 0), read(&world.space, 1, 1)), (Ok(0), Ok(7)));
    world.end();
}

#[test]
fn what_others_map_too_stays_where_it_is() {
    let world = World::<BATCHING>::new();
    world.map_anonymous(0, 1);
    write(&world.space, 0, 0, 1).unwrap();
    let child = world.space.fork().unwrap();
    let node = 1 - node_of(&world.space, 0);
    assert_eq!(world.space.migrate(pages(0, 1), node), Ok(0));
    child.exit();
    assert_eq!(world.space.migrate(pages(0, 1), node), Ok(1));
    world.end();
}
