//! Real threads: some write and read, one collapses, and one has the page split.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread;

use shootdown_vm::{Access, AddressSpace, Advice};

use crate::platform::*;
use crate::world::*;

/// How often pages become one, at least.
const COLLAPSES: u64 = if cfg!(miri) { 3 } else { 100 };

#[test]
fn no_write_is_lost_while_pages_become_one_and_many_again() {
    let host = Host::with_addresses(8 * BLOCK as usize, 4, everything());
    let vm = system(&host).with_reclaim();
    let space: OurSpace<BATCHING> = AddressSpace::new(&vm).unwrap();
    map(&space, block(1), READ_WRITE);
    let page = BLOCK + 17;
    let (last, collapsed) = (AtomicU64::new(0), AtomicU64::new(0));
    let is_over = || collapsed.load(Relaxed) >= COLLAPSES;
    thread::scope(|scope| {
        scope.spawn(|| {
            for value in 1.. {
                write(&space, 0, page, value);
                assert_eq!(read(&space, 0, page), value);
                last.store(value, Release);
                thread::yield_now();
                if is_over() {
                    break;
                }
            }
        });
        scope.spawn(|| {
            while !is_over() {
                let before = last.load(Acquire);
                assert!(read(&space, 1, page) >= before);
                // The lock of a TLB is not fair: who flushes would hardly get it.
                thread::yield_now();
            }
        });
        scope.spawn(|| {
            while !is_over() {
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
                    _ => drop(space.migrate(at(page - 4, 8), round as usize / 5 % NODES)),
                }
                let _ = try_access(&space, 3, BLOCK + 5, Access::Write, 1);
                if is_over() {
                    break;
                }
            }
        });
    });
    host.check_caches();
    assert_eq!(read(&space, 2, page), last.load(Acquire));
    space.exit();
    drop((space, vm));
    assert_eq!(host.frames_in_use(), 1);
}
