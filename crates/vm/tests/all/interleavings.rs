//! Two operations on one page, the second at every moment of the first: between any two of its
//! calls of the platform, which is where a simulated CPU is suspended, and where on a real one
//! another CPU's atomic operation may come.

use std::sync::{Arc, mpsc};
use std::thread;

use crate::platform::*;
use shootdown_vm::{
    Access, AddressSpace, Advice, Backing, FaultError, File, FileId, PAGE_BYTES, Place, Sharing,
};

type OurSpace<const LOCK: u8> = Space<LOCK, AT_WAIT>;

/// What the page is like at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its page table does not exist.
    Untouched,
    /// The page of zeros.
    Zero,
    /// Written, and ours alone.
    Written,
    /// Written, and shared with a child.
    Shared,
    /// Written, and read-only though nobody shares it any more.
    Left,
    /// Of a file, and never touched.
    File,
    /// Of a file, and read.
    FileRead,
    /// Of a file, in memory, and not mapped.
    FileCached,
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Read,
    Write(u64),
    Discard,
    Free,
    /// Of the next page, which brings this one along if it is in memory.
    ReadNext,
    /// Of the pages right below: the page table is needed further on.
    UnmapNeighbour,
    /// Of everything that can be taken.
    Reclaim,
    /// To the one node, and to the other.
    Migrate,
}

/// Whether memory is reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    Plenty,
    Reclaimed,
}

const STATES: [State; 8] = [
    State::Untouched,
    State::Zero,
    State::Written,
    State::Shared,
    State::Left,
    State::File,
    State::FileRead,
    State::FileCached,
];
const FIRST: [Operation; 8] = [
    Operation::Read,
    Operation::Write(1),
    Operation::Discard,
    Operation::Free,
    Operation::ReadNext,
    Operation::UnmapNeighbour,
    Operation::Reclaim,
    Operation::Migrate,
];
const SECOND: [Operation; 7] = [
    Operation::Read,
    Operation::Write(2),
    Operation::Discard,
    Operation::Free,
    Operation::ReadNext,
    Operation::Reclaim,
    Operation::Migrate,
];

/// The page, and what is right below it.
const PAGE: u64 = 10;
const NEIGHBOUR: u64 = 8;
const OLD: u64 = 100;

struct World<const LOCK: u8> {
    host: Host,
    space: Arc<OurSpace<LOCK>>,
    child: Option<OurSpace<LOCK>>,
    file: Arc<File<Host>>,
}

impl<const LOCK: u8> World<LOCK> {
    fn new(state: State, memory: Memory) -> Self {
        let host = Host::new(64, 3);
        let vm = system(&host).with_fault_around(16 * PAGE_BYTES);
        let (vm, file) = match memory {
            Memory::Plenty => (vm, File::new(host.clone())),
            Memory::Reclaimed => (vm.with_reclaim(), File::stored(host.clone(), FileId(1))),
        };
        let space = AddressSpace::new(&vm).unwrap();
        let file = Arc::new(file);
        let backing = match state {
            State::File | State::FileRead | State::FileCached => {
                Backing::File { file: Arc::clone(&file), first_page: 0 }
            }
            _ => Backing::Anonymous,
        };
        space.map(Place::Fixed(pages(PAGE, 2)), READ_WRITE, Sharing::Private, backing).unwrap();
        let mut world = Self { host, space: Arc::new(space), child: None, file };
        world.bring_to(state);
        world
    }

    fn bring_to(&mut self, state: State) {
        let touch = |space: &OurSpace<LOCK>, how| {
            for cpu in 0..3 {
                access(space, cpu, pages(PAGE, 1).start, how, OLD).unwrap();
            }
        };
        match state {
            State::Untouched | State::File => {}
            State::Zero | State::FileRead => touch(&self.space, Access::Read),
            State::FileCached => {
                touch(&self.space, Access::Read);
                self.space.advise(pages(PAGE, 1), Advice::DontNeed).unwrap();
            }
            State::Written => touch(&self.space, Access::Write),
            State::Shared | State::Left => {
                touch(&self.space, Access::Write);
                let child = self.space.fork().unwrap();
                touch(&self.space, Access::Read);
                if state == State::Shared { self.child = Some(child) } else { child.exit() }
            }
        }
        if state != State::Untouched {
            let place = Place::Fixed(pages(NEIGHBOUR, 2));
            self.space.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
            let address = pages(NEIGHBOUR, 1).start;
            access(&*self.space, 0, address, Access::Write, OLD).unwrap();
        }
    }

    /// What must hold afterwards, whoever came first.
    fn check(self, state: State, first: Operation, second: Operation) {
        let address = pages(PAGE, 1).start;
        self.host.check_caches();
        let words: Vec<_> = (0..3)
            .map(|cpu| access(&*self.space, cpu, address, Access::Read, 0).unwrap())
            .collect();
        assert!(words.iter().all(|word| *word == words[0]), "CPUs see {words:?}");
        let discards =
            [first, second].iter().any(|one| matches!(one, Operation::Discard | Operation::Free));
        let was = match state {
            State::Written | State::Shared | State::Left => OLD,
            _ => 0,
        };
        let wrote = [1, 2].contains(&words[0]);
        assert!(wrote || words[0] == was || discards && words[0] == 0, "{words:?}");
        access(&*self.space, 1, address, Access::Write, 3).unwrap();
        if let Some(child) = &self.child {
            assert_eq!(access(child, 2, address, Access::Read, 0), Ok(OLD));
            child.exit();
        }
        let vm = self.space.vm().clone();
        self.space.exit();
        vm.close(self.file);
        drop((self.space, self.child));
        assert_eq!(self.host.frames_in_use(), 1);
    }
}

/// Does it once: a fault, and one more access. Whether it has got through is left open.
fn perform<const LOCK: u8>(space: &OurSpace<LOCK>, cpu: usize, operation: Operation) {
    let touch = |page, how, value| {
        let address = pages(page, 1).start;
        let host = space.vm().platform();
        if host.touch(cpu, space.root(), address, how, value).is_err() {
            assert_eq!(space.fault(address, how), Ok(()));
            let _ = host.touch(cpu, space.root(), address, how, value);
        }
    };
    match operation {
        Operation::Read => touch(PAGE, Access::Read, 0),
        Operation::Write(value) => touch(PAGE, Access::Write, value),
        Operation::Discard => space.advise(pages(PAGE, 1), Advice::DontNeed).unwrap(),
        Operation::Free => space.advise(pages(PAGE, 1), Advice::Free).unwrap(),
        Operation::ReadNext => touch(PAGE + 1, Access::Read, 0),
        Operation::UnmapNeighbour => space.unmap(pages(NEIGHBOUR, 2)).unwrap(),
        Operation::Reclaim => {
            (0..NODES).for_each(|node| assert!(space.vm().reclaim(node, 10).freed < 10));
        }
        Operation::Migrate => {
            (0..NODES).for_each(|node| assert!(space.migrate(pages(PAGE, 1), node).is_ok()));
        }
    }
}

/// Returns whether the second came before the first was over.
fn interleave<const LOCK: u8>(
    memory: Memory,
    state: State,
    first: Operation,
    second: Operation,
    moment: u64,
) -> bool {
    let world = World::<LOCK>::new(state, memory);
    let space = Arc::clone(&world.space);
    world.host.interrupt_after(moment, move || perform(&space, 1, second));
    perform(&world.space, 0, first);
    let is_over = world.host.cancel_interruption();
    world.check(state, first, second);
    !is_over
}

fn every_moment<const LOCK: u8>(memory: Memory) {
    let mut count = 0;
    for state in STATES {
        for first in FIRST {
            for second in SECOND {
                let comes =
                    |moment: &u64| interleave::<LOCK>(memory, state, first, second, *moment);
                count += (0..).take_while(comes).count();
            }
        }
    }
    assert!(count > 500, "{count} interleavings are not all");
}

#[test]
fn no_interleaving_loses_or_leaks_a_page_under_the_shared_lock() {
    every_moment::<SHARED>(Memory::Plenty);
}

#[test]
fn no_interleaving_loses_or_leaks_a_page_with_the_lock_released() {
    every_moment::<RELEASED>(Memory::Plenty);
}

/// A page that others have, too, is discarded in the middle of a claim, faulted in again, and
/// claimed again: the first claim must not end the second.
#[test]
fn no_interleaving_with_reclaim_does() {
    every_moment::<SHARED>(Memory::Reclaimed);
}

#[test]
fn no_interleaving_with_batched_reclaim_does() {
    every_moment::<BATCHING>(Memory::Reclaimed);
}

#[test]
fn a_claim_is_not_mistaken_for_another() {
    let world = World::<RELEASED>::new(State::FileRead, Memory::Plenty);
    let address = pages(PAGE, 1).start;
    let (second_waits, until_second_waits) = mpsc::channel();
    let (first_is_done, until_first_is_done) = mpsc::channel();
    let (second_is, second) = mpsc::channel();
    let space = Arc::clone(&world.space);
    world.host.when_waiting(move || {
        perform(&space, 1, Operation::Discard);
        perform(&space, 1, Operation::Read);
        space.vm().platform().when_waiting(move || {
            second_waits.send(()).unwrap();
            until_first_is_done.recv().unwrap();
        });
        let space = Arc::clone(&space);
        second_is.send(thread::spawn(move || space.fault(address, Access::Write))).unwrap();
        until_second_waits.recv().unwrap();
    });
    assert_eq!(world.space.fault(address, Access::Write), Ok(()));
    // CPUs may still use what the second claim's flush has not taken from them.
    let root = world.space.root();
    assert_eq!(world.host.touch(0, root, address, Access::Write, 5), Err(Refused));
    first_is_done.send(()).unwrap();
    assert_eq!(second.recv().unwrap().join().unwrap(), Ok(()));
    assert_eq!(access(&*world.space, 0, address, Access::Write, 2), Ok(2));
    world.check(State::FileRead, Operation::Write(2), Operation::Discard);
}

/// Segmentation faults are none of memory's.
#[test]
fn an_address_without_an_area_is_refused() {
    let world = World::<RELEASED>::new(State::Untouched, Memory::Plenty);
    assert_eq!(world.space.fault(pages(50, 1).start, Access::Read), Err(FaultError::NoArea));
    assert_eq!(
        world.space.fault(pages(PAGE, 1).start, Access::Execute),
        Err(FaultError::NotPermitted)
    );
}
