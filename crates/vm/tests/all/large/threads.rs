//! Real threads: some write and read, while another makes a large page and splits it again.

use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;

use shootdown_vm::{AddressSpace, Advice};

use crate::large::fixture::*;
use crate::platform::*;

const ROUNDS: usize = if cfg!(miri) { 3 } else { 60 };

#[test]
fn collapse_and_split_lose_no_write() {
    let host = Host::with_addresses(8 * BLOCK as usize, 4, everything());
    let vm = system(&host).with_reclaim();
    let space: OurSpace<BATCHING> = AddressSpace::new(&vm).unwrap();
    map(&space, block(1), READ_WRITE);
    let page = BLOCK + 17;
    write(&space, 2, page, 0);
    let (last, is_complete) = (AtomicU64::new(0), AtomicBool::new(false));
    let until_over = |mut act: Box<dyn FnMut() + '_>| {
        while !is_complete.load(Acquire) {
            act();
            // The lock of a TLB is not fair: without this, a flush would rarely get it.
            thread::yield_now();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0;
            until_over(Box::new(|| {
                value += 1;
                write(&space, 0, page, value);
                assert_eq!(read(&space, 0, page), value);
                last.store(value, Release);
            }));
        });
        scope.spawn(|| {
            until_over(Box::new(|| {
                let before = last.load(Acquire);
                assert!(read(&space, 1, page) >= before);
            }));
        });
        scope.spawn(|| {
            until_over(Box::new(|| {
                write(&space, 3, BLOCK + 5, 1);
                (0..NODES).for_each(|node| assert!(vm.reclaim(node, 9).freed < 99));
            }));
        });
        let _over = StopOnDrop(&is_complete);
        for round in 0..ROUNDS {
            // A block does not collapse while reclaim unmaps one of its pages.
            let is_large = (0..10_000).any(|_| space.collapse(block(1)) == Ok(1));
            assert!(is_large, "round {round}");
            match round % 4 {
                0 => {
                    space.protect(at(BLOCK + 100, 10), READ).unwrap();
                    space.protect(at(BLOCK + 100, 10), READ_WRITE).unwrap();
                }
                1 => space.advise(at(BLOCK, 10), Advice::DontNeed).unwrap(),
                2 => space.advise(at(BLOCK, 10), Advice::Free).unwrap(),
                _ => drop(space.migrate(at(page - 4, 8), round / 4 % NODES)),
            }
        }
    });
    host.check_caches();
    assert_eq!(read(&space, 2, page), last.load(Acquire));
    space.exit();
    drop((space, vm));
    assert_eq!(host.frames_in_use(), 1);
}

/// Makes the other threads end, also after a panic.
struct StopOnDrop<'t>(&'t AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Release);
    }
}
