//! Real threads on one space, each a CPU with its own TLB. The machine detects the use of a freed
//! frame. Each word identifies the page that it was written for.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;

use crate::platform::*;
use shootdown_vm::{Access, AddressSpace, Advice, Backing, File, PAGE_BYTES, Place, Sharing};

const THREADS: usize = 4;
const ROUNDS: usize = if cfg!(miri) { 50 } else { 20_000 };

struct Worker<'t, const LOCK: u8> {
    space: &'t Space<LOCK, AT_WAIT>,
    file: &'t Arc<File<Host>>,
    cpu: usize,
    random: u64,
}

impl<const LOCK: u8> Worker<'_, LOCK> {
    fn run(&mut self) {
        run_on(self.cpu);
        for _ in 0..ROUNDS {
            let (first, count) = (self.below(PAGES), 1 + self.below(8));
            let range = pages(first, count.min(PAGES - first));
            match self.below(40) {
                0 | 1 => drop(self.space.unmap(range)),
                2 => drop(self.space.advise(range, Advice::DontNeed)),
                3 => drop(self.space.advise(range, Advice::Free)),
                4 => drop(self.space.protect_existing(range, READ)),
                5 => drop(self.space.protect(range, READ_WRITE)),
                6 => self.map(Place::Fixed(range)),
                7 | 8 => self.map(Place::Anywhere { length: count * PAGE_BYTES }),
                11 => drop(self.space.hint(range)),
                10 if discards_in_place(LOCK) => {
                    free_old_discarded(self.space.vm());
                }
                9 if self.below(8) == 0 => self.fork(first),
                _ => self.touch(first),
            }
        }
    }

    fn map(&mut self, place: Place) {
        let backing = match self.below(4) {
            0 => Backing::File { file: Arc::clone(self.file), first_page: 0 },
            _ => Backing::Anonymous,
        };
        // Pages of the file have no address of their own, so no thread may write to them.
        let _ = self.space.map(place, READ_WRITE, Sharing::Private, backing);
    }

    fn touch(&mut self, page: u64) {
        let address = pages(page, 1).start;
        let result = if self.below(2) == 0 {
            access(self.space, self.cpu, address, Access::Write, address)
        } else {
            access(self.space, self.cpu, address, Access::Read, 0)
        };
        if let Ok(word) = result {
            assert!(word == 0 || word == address, "{word:#x} at {address:#x}");
        }
    }

    /// Checks that reads in a child return the same value, while the parent's threads run.
    fn fork(&mut self, page: u64) {
        let Ok(child) = self.space.fork() else { return };
        let address = pages(page, 1).start;
        let read = || access(&child, self.cpu, address, Access::Read, 0);
        if let Ok(before) = read() {
            assert!(before == 0 || before == address);
            (0..50).for_each(|_| assert_eq!(read(), Ok(before)));
            let _ = access(&child, self.cpu, address, Access::Write, address + 1);
        }
        child.exit();
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % limit
    }
}

fn threads_use_no_freed_page<const LOCK: u8>() {
    let host = Host::new(4096, THREADS);
    let vm = system(&host).with_fault_around(4 * PAGE_BYTES);
    let space: Space<LOCK, AT_WAIT> = AddressSpace::new(&vm).unwrap();
    let file = Arc::new(File::new(host.clone()));
    thread::scope(|scope| {
        for cpu in 0..THREADS {
            let (space, file) = (&space, &file);
            let random = 0x9e37_79b9 * (cpu as u64 + 1);
            scope.spawn(move || Worker { space, file, cpu, random }.run());
        }
    });
    host.check_caches();
    space.exit();
    drop((space, file));
    assert_eq!(host.frames_in_use(), 1, "only the page of zeros is in use");
}

#[test]
fn threads_use_no_freed_page_exclusive_lock() {
    threads_use_no_freed_page::<EXCLUSIVE>();
}

#[test]
fn threads_use_no_freed_page_shared_lock() {
    threads_use_no_freed_page::<SHARED>();
}

#[test]
fn threads_use_no_freed_page_released_lock() {
    threads_use_no_freed_page::<RELEASED>();
}

#[test]
fn threads_use_no_freed_page_kept_tables() {
    threads_use_no_freed_page::<KEEPING>();
}

#[test]
fn threads_use_no_freed_page_replicas() {
    threads_use_no_freed_page::<REPLICATED>();
}

#[test]
fn threads_use_no_freed_page_discards_in_place() {
    threads_use_no_freed_page::<IN_PLACE>();
}

/// All threads in turn increment one word. Each thread reads the value that the previous one wrote,
/// although the page is forked, copied and moved in between.
#[test]
fn write_is_visible_to_later_reads() {
    let host = Host::new(4096, THREADS);
    let vm = system(&host);
    let space: Space<RELEASED, AT_WAIT> = AddressSpace::new(&vm).unwrap();
    let place = Place::Fixed(pages(0, 1));
    space.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
    let turn = AtomicU64::new(0);
    thread::scope(|scope| {
        for cpu in 0..THREADS as u64 {
            let (space, turn) = (&space, &turn);
            scope.spawn(move || {
                let _failure = FailTurns(turn);
                for round in 0..500 {
                    let now = round * THREADS as u64 + cpu;
                    while turn.load(Acquire) != now {
                        assert_ne!(turn.load(Acquire), FAILED);
                        // The read keeps a translation cached that may be outdated.
                        let seen = access(space, cpu as usize, BASE, Access::Read, 0).unwrap();
                        assert!(seen <= now);
                        thread::yield_now();
                    }
                    assert_eq!(access(space, cpu as usize, BASE, Access::Read, 0), Ok(now));
                    let child = now.is_multiple_of(3).then(|| space.fork().unwrap());
                    access(space, cpu as usize, BASE, Access::Write, now + 1).unwrap();
                    turn.store(now + 1, Release);
                    if let Some(child) = child {
                        assert_eq!(access(&child, cpu as usize, BASE, Access::Read, 0), Ok(now));
                        child.exit();
                    }
                }
            });
        }
    });
    space.exit();
    assert_eq!(host.frames_in_use(), 1);
}

/// One thread writes to a page that another moves. All threads find the last written value, at any
/// address of the page, and with any cached translation.
#[test]
fn threads_lose_no_write_during_moves() {
    let host = Host::new(64, THREADS);
    let space: Space<RELEASED, AT_WAIT> = AddressSpace::new(&system(&host)).unwrap();
    // In two page tables.
    let places = [pages(0, 1), pages(PAGES - 1, 1)];
    let place = Place::Fixed(places[0].clone());
    space.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
    // The page is at one of the two addresses, except during a move.
    let anywhere = |cpu, how, value| loop {
        let found =
            |place: &std::ops::Range<u64>| access(&space, cpu, place.start, how, value).ok();
        if let Some(word) = places.iter().find_map(found) {
            return word;
        }
    };
    let rounds = ROUNDS as u64 / 4;
    let last = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _failure = FailTurns(&last);
            for value in 1..=rounds {
                anywhere(0, Access::Write, value);
                assert_eq!(anywhere(0, Access::Read, 0), value);
                last.store(value, Release);
            }
        });
        scope.spawn(|| {
            for round in 0.. {
                let [from, to] = [0, 1].map(|n| places[(round + n) % 2].clone());
                space.remap(from, to).unwrap();
                if last.load(Acquire) >= rounds {
                    break;
                }
            }
        });
        for cpu in 2..THREADS {
            let (anywhere, last) = (&anywhere, &last);
            scope.spawn(move || {
                while last.load(Acquire) < rounds {
                    let before = last.load(Acquire);
                    assert!(anywhere(cpu, Access::Read, 0) >= before);
                }
            });
        }
    });
    host.check_caches();
    space.exit();
    assert_eq!(host.frames_in_use(), 1);
}

const FAILED: u64 = u64::MAX;

/// Makes other threads stop waiting for the turn of a thread that has failed.
struct FailTurns<'t>(&'t AtomicU64);

impl Drop for FailTurns<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(FAILED, Release);
        }
    }
}
