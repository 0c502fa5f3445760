//! Large pages on the simulated machine, whose MMU walks the page tables and whose oracle checks
//! every use, under designs that flush them on other CPUs.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::sync::Arc;

use shootdown_designs::{Engine, Linux70, Linux414};
use shootdown_run::{Instrumented, SimPlatform};
use shootdown_sim::{Affinity, Kernel, Machine, RunEnd, Sim, SwitchedTo, ThreadSpec, Time, Touch};
use shootdown_vm::{
    Access, AddressSpace, Advice, Backing, ErasedCoherence, LARGE_PAGE_BYTES, PAGE_BYTES, Place,
    Protection, Scheduling, Sharing, Vm, X86_64,
};

type Space = AddressSpace<(SimPlatform, Instrumented, X86_64)>;

const READ_WRITE: Protection = Protection::READ.union(Protection::WRITE);
const START: u64 = 1 << 30;
const PAGES: u64 = LARGE_PAGE_BYTES / PAGE_BYTES;
const WORKERS: u64 = 3;
const ROUNDS: u64 = 60;

/// The body of a thread.
type Body = Box<dyn FnOnce(&System, &Sim)>;

/// A kernel with one address space.
struct System {
    coherence: Arc<Instrumented>,
    space: OnceCell<Space>,
    done: Cell<u64>,
}

impl Kernel for System {
    fn online(&self) {
        self.coherence.online();
    }
    fn switch(&self, _: u64) {
        // SAFETY: the space lives as long as the system.
        #[expect(unsafe_code, reason = "the trait's `switch` is unsafe")]
        unsafe {
            self.coherence.switch(self.space().coherent());
        }
    }
    fn enter_lazy(&self) {
        self.coherence.enter_lazy();
    }
    fn leave_space(&self) {
        self.coherence.leave_space();
    }
    fn after_switch(&self, _: SwitchedTo) {
        self.space().vm().free_dead_tables();
    }
    fn flush_interrupt(&self) {
        self.coherence.interrupt();
    }
}

impl System {
    fn space(&self) -> &Space {
        self.space.get().expect("the space is created before any thread runs")
    }

    /// Accesses a word, and resolves faults until the access succeeds.
    fn touch(&self, sim: &Sim, address: u64, touch: Touch) -> u64 {
        let access = if touch == Touch::Read { Access::Read } else { Access::Write };
        loop {
            // SAFETY: as for `switch`.
            #[expect(unsafe_code, reason = "the trait's `return_to_user` is unsafe")]
            unsafe {
                self.coherence.return_to_user(self.space().coherent());
            }
            if let Ok(word) = sim.touch(address, touch) {
                return word;
            }
            self.coherence.enter_kernel();
            self.space().fault(address, access).unwrap();
        }
    }
}

/// Threads write to pages of their own, and read the words that they wrote. Another thread
/// collapses the pages, and makes parts of them small again. Returns the number of hazards.
fn assert_large_pages_keep_words<C: Into<ErasedCoherence>>(
    design: impl FnOnce(Rc<Sim>) -> C,
) -> u64 {
    let round = include_str!("../../../sim/tests/round.toml");
    let machine = Machine::from_toml(round).unwrap().with_cpus(WORKERS as usize + 1).unwrap();
    let sim = Rc::new(Sim::new(machine, 1 << 13, 8).unwrap());
    #[expect(clippy::arc_with_non_send_sync, reason = "a simulation stays on its thread")]
    let coherence = Arc::new(Instrumented::new(Rc::clone(&sim), design(Rc::clone(&sim))));
    let vm = Vm::new(SimPlatform::new(Rc::clone(&sim), None), Arc::clone(&coherence)).unwrap();
    let (space, done) = (OnceCell::from(AddressSpace::new(&vm).unwrap()), Cell::new(0));
    let system = Rc::new(System { coherence, space, done });
    sim.install(system.clone());
    let place = Place::Fixed(START..START + LARGE_PAGE_BYTES);
    let anonymous = Backing::Anonymous;
    system.space().map(place, READ_WRITE, Sharing::Private, anonymous).unwrap();
    let spawn = |cpu, body: Body| {
        let spec = ThreadSpec { space: Some(0), affinity: Affinity::Cpu(cpu) };
        let (inside, system) = (Rc::clone(&sim), Rc::clone(&system));
        sim.spawn(spec, move || body(&system, &inside)).unwrap();
    };
    for worker in 0..WORKERS {
        let body = move |system: &System, sim: &Sim| {
            for round in 1..=ROUNDS {
                for page in (worker..PAGES).step_by(37 * WORKERS as usize) {
                    let address = START + page * PAGE_BYTES;
                    let before = system.touch(sim, address, Touch::Read);
                    assert_eq!(before, if round == 1 { 0 } else { round - 1 });
                    system.touch(sim, address, Touch::Write(round));
                }
                sim.spend(Time::from_ns(3000 + worker * 700));
            }
            system.done.set(system.done.get() + 1);
        };
        spawn(worker as usize, Box::new(body));
    }
    let collapsed = Rc::new(Cell::new(0));
    let count = Rc::clone(&collapsed);
    let body = move |system: &System, sim: &Sim| {
        let space = system.space();
        // No worker uses the last pages.
        let part = START + (PAGES - 2) * PAGE_BYTES..START + PAGES * PAGE_BYTES;
        while system.done.get() < WORKERS {
            let made = space.collapse(START..START + LARGE_PAGE_BYTES).unwrap();
            count.set(count.get() + made);
            system.touch(sim, part.start, Touch::Write(7));
            sim.spend(Time::from_ns(20_000));
            space.advise(part.clone(), Advice::DontNeed).unwrap();
            assert_eq!(system.touch(sim, part.start, Touch::Read), 0);
            sim.spend(Time::from_ns(20_000));
        }
    };
    spawn(WORKERS as usize, Box::new(body));
    assert_eq!(sim.run_until(Time::END), RunEnd::Done);
    sim.uninstall();
    let wrong = sim.first_violations();
    assert_eq!(sim.violations(), 0, "{wrong:?}");
    assert!(collapsed.get() >= 3, "only {} large pages were made", collapsed.get());
    sim.hazards()
}

#[test]
fn large_pages_keep_words_under_the_engine() {
    assert_eq!(assert_large_pages_keep_words(Engine::<1>::new), 0);
}

#[test]
fn large_pages_keep_words_under_linux_4_14() {
    // The bug of Linux 4.14: a lazy CPU can walk page tables that were freed.
    let _hazards = assert_large_pages_keep_words(Linux414::new);
}

#[test]
fn large_pages_keep_words_under_linux_7_0() {
    assert_eq!(assert_large_pages_keep_words(Linux70::uncounted), 0);
}
