//! Real threads: some change and end spaces, others are lazy on them.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use parking_lot::Mutex;
use shootdown::Root;
use shootdown_vm::{Access, Advice, Backing, Place, Sharing};

use crate::platform::READ_WRITE;
use crate::quarantine::fixture::{Fixture, LAZY, OurSpace, TABLES, page_of, unmap, write};

/// Threads map, write and unmap in one space. Another CPU is lazy on it from time to time, and
/// walks. The machine detects the walk of a freed table, and a table that is freed twice.
#[test]
fn threads_free_each_table_once() {
    const ROUNDS: u64 = if cfg!(miri) { 30 } else { 3000 };
    let fixture = Fixture::new(1);
    let is_complete = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers = [1, 2].map(|seed| {
            let space = &fixture.space;
            scope.spawn(move || {
                let mut random = Random(seed);
                for _ in 0..ROUNDS {
                    let table = 1 + random.below(8);
                    match random.below(4) {
                        0 => unmap(space, table..table + 1 + random.below(4)),
                        1 => drop(space.advise(page_of(table), Advice::DontNeed)),
                        _ => {
                            let place = Place::Fixed(page_of(table));
                            let backing = Backing::Anonymous;
                            space.map(place, READ_WRITE, Sharing::Private, backing).unwrap();
                            // The fault fails if the area was removed again.
                            let _ = space.fault(page_of(table).start, Access::Write);
                        }
                    }
                }
            })
        });
        scope.spawn(|| {
            let mut random = Random(3);
            while !is_complete.load(Relaxed) {
                match random.below(16) {
                    0 => fixture.design.leave_space(LAZY[0]),
                    1 => fixture.design.go_lazy(LAZY[0], fixture.space.root()),
                    _ => fixture.speculate(),
                }
            }
        });
        let results = workers.map(thread::ScopedJoinHandle::join);
        is_complete.store(true, Relaxed);
        results.into_iter().for_each(Result::unwrap);
    });
    fixture.quarantined_of_space();
    fixture.end([&fixture.space]);
}

/// Two threads create and end spaces. The other CPUs are lazy on them, and free them.
#[test]
fn threads_free_each_dead_space_once() {
    const ROUNDS: u64 = if cfg!(miri) { 10 } else { 500 };
    let fixture = Fixture::with_quarantined_tables_max(1, 40);
    // Live spaces, on which the other CPUs become lazy.
    let living: [Mutex<Option<Root>>; 2] = Default::default();
    let is_complete = AtomicBool::new(false);
    thread::scope(|scope| {
        let makers = [0, 1].map(|index| {
            let (vm, slot) = (&fixture.vm, &living[index]);
            scope.spawn(move || {
                let mut random = Random(index as u64);
                let mut spaces = Vec::new();
                for _ in 0..ROUNDS {
                    let space = OurSpace::new(vm).unwrap();
                    *slot.lock() = Some(space.root());
                    (0..4).for_each(|_| write(&space, random.below(TABLES)));
                    unmap(&space, 0..TABLES / 2);
                    *slot.lock() = None;
                    space.exit();
                    // Keep the space, because a lazy CPU may have it loaded.
                    spaces.push(space);
                }
            })
        });
        for (cpu, seed) in LAZY.into_iter().zip(10..) {
            let (fixture, living, is_complete) = (&fixture, &living, &is_complete);
            scope.spawn(move || {
                let mut random = Random(seed);
                while !is_complete.load(Relaxed) {
                    match random.below(4) {
                        0 => fixture.design.leave_space(cpu),
                        1 => fixture.vm.free_dead_tables(),
                        2 => fixture.speculate(),
                        _ => {
                            let slot = living[random.below(2) as usize].lock();
                            if let Some(root) = *slot {
                                fixture.design.go_lazy(cpu, root);
                            }
                        }
                    }
                }
            });
        }
        let results = makers.map(thread::ScopedJoinHandle::join);
        is_complete.store(true, Relaxed);
        results.into_iter().for_each(Result::unwrap);
    });
    fixture.end([&fixture.space]);
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % limit
    }
}
