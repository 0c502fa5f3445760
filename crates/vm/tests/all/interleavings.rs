//! Two operations on one page, the second at every interruption point of the first: between any two
//! of its platform calls. A simulated CPU is suspended at these points, and on a real machine
//! another CPU's atomic operation may come there.

use std::sync::{Arc, mpsc};
use std::thread;

use crate::platform::*;
use shootdown_vm::{
    Access, AddressSpace, Advice, Backing, FaultError, File, FileId, PAGE_BYTES, Place, Sharing,
};

type OurSpace<const LOCK: u8> = Space<LOCK, AT_WAIT>;

/// The initial state of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The page table does not exist.
    Untouched,
    /// The page of zeros is mapped.
    Zero,
    /// Written, and not shared.
    Written,
    /// Written, and shared with a child.
    Shared,
    /// Written, and read-only although no other space shares the page any more.
    Unshared,
    /// Written and discarded, perhaps in place. All CPUs may cache the page.
    Discarded,
    /// A page of a file, never touched.
    File,
    /// A page of a file, read.
    FileRead,
    /// A page of a file, in memory and not mapped.
    FileCached,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Read,
    Write(u64),
    Discard,
    /// A discard, and a read, which maps the page of zeros.
    Replace,
    Free,
    /// A read of the next page. It also maps this page, if this page is in memory.
    ReadNext,
    /// An unmap of the pages right below, which must keep the page table.
    UnmapNeighbour,
    /// A reclaim of all pages that can be reclaimed.
    Reclaim,
    /// A migration to each of the two nodes.
    Migrate,
    /// The late release of pages that were discarded in place.
    FreeDiscarded,
}

/// The presence of reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReclaimMode {
    Off,
    On,
}

const STATES: [State; 9] = [
    State::Untouched,
    State::Zero,
    State::Written,
    State::Shared,
    State::Unshared,
    State::Discarded,
    State::File,
    State::FileRead,
    State::FileCached,
];
const FIRST: [Operation; 9] = [
    Operation::Read,
    Operation::Write(1),
    Operation::Discard,
    Operation::Free,
    Operation::ReadNext,
    Operation::UnmapNeighbour,
    Operation::Reclaim,
    Operation::Migrate,
    Operation::FreeDiscarded,
];
const SECOND: [Operation; 8] = [
    Operation::Read,
    Operation::Write(2),
    Operation::Discard,
    Operation::Free,
    Operation::ReadNext,
    Operation::Reclaim,
    Operation::Migrate,
    Operation::FreeDiscarded,
];

/// Numbers of the page, and of the pages right below it.
const PAGE: u64 = 10;
const NEIGHBOUR: u64 = 8;
const OLD: u64 = 100;

struct Fixture<const LOCK: u8> {
    host: Host,
    space: Arc<OurSpace<LOCK>>,
    child: Option<OurSpace<LOCK>>,
    file: Arc<File<Host>>,
}

impl<const LOCK: u8> Fixture<LOCK> {
    fn new(state: State, mode: ReclaimMode) -> Self {
        let host = Host::new(64, 3);
        let vm = system(&host).with_fault_around(16 * PAGE_BYTES);
        let (vm, file) = match mode {
            ReclaimMode::Off => (vm, File::new(host.clone())),
            ReclaimMode::On => (vm.with_reclaim(), File::stored(host.clone(), FileId(1))),
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
        let mut fixture = Self { host, space: Arc::new(space), child: None, file };
        fixture.bring_to(state);
        fixture
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
            State::Discarded => {
                touch(&self.space, Access::Write);
                self.space.advise(pages(PAGE, 1), Advice::DontNeed).unwrap();
            }
            State::Shared | State::Unshared => {
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

    /// Checks the result of any order of the two operations.
    fn check(self, state: State, first: Operation, second: Operation) {
        let address = pages(PAGE, 1).start;
        self.host.check_caches();
        let words: Vec<_> = (0..3)
            .map(|cpu| access(&*self.space, cpu, address, Access::Read, 0).unwrap())
            .collect();
        assert!(words.iter().all(|word| *word == words[0]), "CPUs read {words:?}");
        let discards = [first, second]
            .iter()
            .any(|one| matches!(one, Operation::Discard | Operation::Replace | Operation::Free));
        let was = match state {
            State::Written | State::Shared | State::Unshared => OLD,
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

/// Performs an operation once: for an access, at most one fault and one retry, which may fail.
fn perform<const LOCK: u8>(space: &OurSpace<LOCK>, cpu: usize, operation: Operation) {
    let touch = |page, how, value| {
        let address = pages(page, 1).start;
        let host = space.vm().platform();
        if host.touch(cpu, space.root_on(cpu), address, how, value).is_err() {
            assert_eq!(space.fault(address, how), Ok(()));
            let _ = host.touch(cpu, space.root_on(cpu), address, how, value);
        }
    };
    let before = run_on(cpu);
    match operation {
        Operation::Replace => {
            perform(space, cpu, Operation::Discard);
            touch(PAGE, Access::Read, 0);
        }
        Operation::Read => touch(PAGE, Access::Read, 0),
        Operation::Write(value) => touch(PAGE, Access::Write, value),
        Operation::Discard => space.advise(pages(PAGE, 1), Advice::DontNeed).unwrap(),
        Operation::Free => space.advise(pages(PAGE, 1), Advice::Free).unwrap(),
        Operation::FreeDiscarded => {
            free_old_discarded(space.vm());
        }
        Operation::ReadNext => touch(PAGE + 1, Access::Read, 0),
        Operation::UnmapNeighbour => space.unmap(pages(NEIGHBOUR, 2)).unwrap(),
        Operation::Reclaim => {
            (0..NODES).for_each(|node| assert!(space.vm().reclaim(node, 10).freed < 10));
        }
        Operation::Migrate => {
            (0..NODES).for_each(|node| assert!(space.migrate(pages(PAGE, 1), node).is_ok()));
        }
    }
    run_on(before);
}

/// Runs one interleaving. Returns `true` if the second operation ran before the first was complete.
fn interleave<const LOCK: u8>(
    mode: ReclaimMode,
    state: State,
    first: Operation,
    second: Operation,
    point: u64,
) -> bool {
    let fixture = Fixture::<LOCK>::new(state, mode);
    let space = Arc::clone(&fixture.space);
    fixture.host.interrupt_after(point, move || perform(&space, 1, second));
    perform(&fixture.space, 0, first);
    let is_complete = fixture.host.cancel_interruption();
    fixture.check(state, first, second);
    !is_complete
}

fn every_point<const LOCK: u8>(mode: ReclaimMode) {
    let mut count = 0;
    for state in STATES {
        for first in FIRST {
            for second in SECOND {
                if !discards_in_place(LOCK)
                    && (state == State::Discarded
                        || [first, second].contains(&Operation::FreeDiscarded))
                {
                    continue;
                }
                let interrupts =
                    |point: &u64| interleave::<LOCK>(mode, state, first, second, *point);
                count += (0..).take_while(interrupts).count();
            }
        }
    }
    assert!(count > 500, "only {count} interleavings");
}

#[test]
fn no_page_lost_or_leaked_under_shared_lock() {
    every_point::<SHARED>(ReclaimMode::Off);
}

#[test]
fn no_page_lost_or_leaked_with_released_lock() {
    every_point::<RELEASED>(ReclaimMode::Off);
}

/// A shared page is discarded in the middle of a claim, faulted in again, and claimed again. The
/// first claim must not resolve the second.
#[test]
fn no_page_lost_or_leaked_with_reclaim() {
    every_point::<SHARED>(ReclaimMode::On);
}

#[test]
fn no_page_lost_or_leaked_with_batched_reclaim() {
    every_point::<BATCHING>(ReclaimMode::On);
}

#[test]
fn no_page_lost_or_leaked_with_discards_in_place() {
    every_point::<IN_PLACE>(ReclaimMode::On);
}

#[test]
fn no_page_lost_or_leaked_with_replicas() {
    every_point::<REPLICATED>(ReclaimMode::On);
}

/// The page of zeros must not move, and has no user that could be counted.
#[test]
fn migration_leaves_the_page_of_zeros_that_replaces_its_page() {
    let (first, second) = (Operation::Migrate, Operation::Replace);
    let interrupts =
        |&point: &u64| interleave::<SHARED>(ReclaimMode::On, State::Written, first, second, point);
    assert!((0..).take_while(interrupts).count() > 10);
}

#[test]
fn claim_does_not_resolve_another_claim() {
    let fixture = Fixture::<RELEASED>::new(State::FileRead, ReclaimMode::Off);
    let address = pages(PAGE, 1).start;
    let (second_waits, until_second_waits) = mpsc::channel();
    let (first_is_done, until_first_is_done) = mpsc::channel();
    let (second_is, second) = mpsc::channel();
    let space = Arc::clone(&fixture.space);
    fixture.host.when_waiting(move || {
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
    assert_eq!(fixture.space.fault(address, Access::Write), Ok(()));
    // CPUs may still use the page that the second claim's flush has not yet removed.
    let root = fixture.space.root();
    assert_eq!(fixture.host.touch(0, root, address, Access::Write, 5), Err(PageFault));
    first_is_done.send(()).unwrap();
    assert_eq!(second.recv().unwrap().join().unwrap(), Ok(()));
    assert_eq!(access(&*fixture.space, 0, address, Access::Write, 2), Ok(2));
    fixture.check(State::FileRead, Operation::Write(2), Operation::Discard);
}

/// Segmentation faults are not memory errors.
#[test]
fn fault_without_area_fails() {
    let fixture = Fixture::<RELEASED>::new(State::Untouched, ReclaimMode::Off);
    assert_eq!(fixture.space.fault(pages(50, 1).start, Access::Read), Err(FaultError::NoArea));
    assert_eq!(
        fixture.space.fault(pages(PAGE, 1).start, Access::Execute),
        Err(FaultError::NotPermitted)
    );
}
