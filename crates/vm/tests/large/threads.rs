//! Real threads: some write and read, one collapses, and one has the page split.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread;

use shootdown_vm::{Access, AddressSpace, Advice};

use crate::platform::*;
use crate::world::*;

const ROUNDS: u64 = if cfg!(miri) { 5 } else { 2000 };

#[test]
fn no_write_is_lost_while_pages_become_one_and_many_again() {
    let host = Host::with_addresses(8 * BLOCK as usize, 4, everything());
    let vm = system(&host).with_reclaim();
    let space: OurSpace<BATCHING> = AddressSpace::new(&vm).unwrap();
    map(&space, block(1), READ_WRITE);
    let page = BLOCK + 17;
    let (last, collapsed) = (AtomicU64::new(0), AtomicU64::new(0));
    let is_over = || last.load(Acquire) >= ROUNDS;
    thread::scope(|scope| {
        scope.spawn(|| {
            for value in 1..=ROUNDS {
                write(&space, 0, page, value);
                assert_eq!(read(&space, 0, page), value);
                last.store(value, Release);
            }
        });
        scope.spawn(|| {
            while !is_over() {
                let before = last.load(Acquire);
                assert!(read(&space, 1, page) >= before);
            }
        });
        scope.spawn(|| {
            while !is_over() || collapsed.load(Relaxed) == 0 {
                collapsed.fetch_add(space.collapse(block(1)).unwrap() as u64, Relaxed);
            }
        });
        scope.spawn(|| {
            for round in 0.. {
                let part = at(BLOCK + 100 * (round % 2), 10);
                match round % 5 {
                    0 => drop(space.protect(part.clone(), READ)),
                    1 => drop(space.protect(part.clone(), READ_WRITE)),
                    2 => drop(space.advise(at(BLOCK, 10), Advice::DontNeed)),
                    3 => drop(space.advise(at(BLOCK, 10), Advice::Free)),
                    _ => drop(space.migrate(block(1), round as usize / 5 % NODES)),
                }
                let _ = try_access(&space, 3, BLOCK + 5, Access::Write, 1);
                if is_over() {
                    break;
                }
            }
        });
    });
    assert_ne!(collapsed.load(Relaxed), 0);
    host.check_caches();
    assert_eq!(read(&space, 2, page), ROUNDS);
    space.exit();
    drop((space, vm));
    assert_eq!(host.frames_in_use(), 1);
}
