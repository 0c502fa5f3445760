//! A design on a machine with round numbers, without a memory manager. Threads run scripted steps
//! at given times, so that the expected counts can be calculated by hand.

#![allow(dead_code, unused_imports, reason = "each test file uses only a part")]

mod later;
mod reclaim;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use shootdown::Root;
use shootdown_sim::{
    Affinity, Kernel, Machine, Purpose, RunEnd, Sim, SwitchedTo, ThreadId, ThreadSpec, Time, Touch,
};
use shootdown_vm::{Change, Coherence, Freed, Retired};

pub(crate) use later::Unmapped;
pub(crate) use reclaim::Batch;

/// Hardware of the machine besides its round numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hardware {
    /// No other hardware: each CPU has its own tags, and interrupts notify other CPUs.
    Plain,
    /// Broadcasts of single pages, each in 300 ns.
    Broadcast,
    /// As `Broadcast`, and broadcasts of a tag in one or two domains, of one CPU each.
    Domains,
    /// Remote fences by firmware.
    Fence,
    /// The kernel refills the TLB, and tags are renamed.
    Renamed,
}

impl Hardware {
    pub(crate) fn machine(self, tags: usize, cpus: usize) -> Machine {
        let round = include_str!("../../../../sim/tests/round.toml");
        let round = round.replace("tags = { value = 6.0", &format!("tags = {{ value = {tags}"));
        let section = |name: &str, keys: &[(&str, u32)]| {
            let key = |&(key, value): &(&str, u32)| {
                format!("{key} = {{ value = {value}, source = \"made up for tests\" }}\n")
            };
            format!("\n[{name}]\n{}", keys.iter().map(key).collect::<String>())
        };
        let (head, tail) = match self {
            Self::Plain => ("", String::new()),
            Self::Broadcast | Self::Domains => {
                let times =
                    [("issue_ns", 10), ("complete_ns", 300), ("cross_ns", 0), ("occupy_ns", 100)];
                let limits = [("victim_ns", 0), ("pages_per_operation", 1), ("page_ceiling", 512)];
                let keys = [&times[..], &limits[..]].concat();
                let mut sections = section("broadcast", &keys);
                if matches!(self, Self::Domains) {
                    let keys = [("cpus", 1), ("most", 2), ("complete_ns", 300), ("occupy_ns", 50)];
                    sections += &section("domains", &keys);
                }
                ("tagging = \"global\"\n", sections)
            }
            Self::Fence => {
                let caller = [("call_ns", 500), ("each_ns", 50), ("deliver_ns", 1000)];
                let target = [("target_ns", 300), ("page_ceiling", 64)];
                let keys = [&caller[..], &target].concat();
                ("tagging = \"global\"\n", section("remote_fence", &keys))
            }
            Self::Renamed => ("tagging = \"renamed\"\nrefill = \"software\"\n", String::new()),
        };
        Machine::from_toml(&format!("{head}{round}{tail}")).unwrap().with_cpus(cpus).unwrap()
    }
}

/// A design, a machine, and spaces of 64 mapped pages each.
pub(crate) struct Rig<C: Coherence> {
    pub(crate) sim: Rc<Sim>,
    pub(crate) design: C,
    spaces: Vec<Space<C::Space>>,
    /// If set, CPUs free the dead spaces that they get after a switch, as a kernel must.
    pub(crate) frees_dead: Cell<bool>,
    freed: RefCell<Vec<(u64, usize)>>,
    /// Threads that another thread will wake.
    pub(crate) sleepers: RefCell<Vec<ThreadId>>,
}

struct Space<S> {
    coherent: S,
    root: Root,
    tables: [u64; 4],
}

impl<C: Coherence + 'static> Rig<C> {
    /// Creates a rig with two spaces.
    pub(crate) fn new(cpus: usize, design: impl FnOnce(Rc<Sim>) -> C) -> Rc<Self> {
        Self::with_spaces(2, cpus, design)
    }

    pub(crate) fn with_spaces(
        spaces: u64,
        cpus: usize,
        design: impl FnOnce(Rc<Sim>) -> C,
    ) -> Rc<Self> {
        Self::on(Hardware::Plain.machine(6, cpus), spaces, design)
    }

    pub(crate) fn on(machine: Machine, spaces: u64, design: impl FnOnce(Rc<Sim>) -> C) -> Rc<Self> {
        let sim = Rc::new(Sim::new(machine, 1 << 14, 512).unwrap());
        let design = design(Rc::clone(&sim));
        let space = |_| {
            let tables = tables(&sim);
            let root = Root(tables[0] << 12);
            Space { coherent: design.space(root), root, tables }
        };
        let spaces = (0..spaces).map(space).collect();
        let rig = Rc::new(Self {
            sim: Rc::clone(&sim),
            design,
            spaces,
            frees_dead: Cell::new(true),
            freed: RefCell::default(),
            sleepers: RefCell::default(),
        });
        sim.install(rig.clone());
        rig
    }

    /// Starts a thread of a space on a CPU.
    pub(crate) fn thread(
        self: &Rc<Self>,
        cpu: usize,
        space: u64,
        body: impl FnOnce(&Self) + 'static,
    ) {
        let spec = ThreadSpec { space: Some(space), affinity: Affinity::Cpu(cpu) };
        let rig = Rc::clone(self);
        self.sim.spawn(spec, move || body(&rig)).unwrap();
    }

    /// Starts a thread without a space on a CPU.
    pub(crate) fn kernel_thread(
        self: &Rc<Self>,
        cpu: usize,
        body: impl FnOnce(&Rc<Self>) + 'static,
    ) {
        let spec = ThreadSpec { space: None, affinity: Affinity::Cpu(cpu) };
        let rig = Rc::clone(self);
        self.sim.spawn(spec, move || body(&rig)).unwrap();
    }

    /// Runs until all threads have finished, and asserts that there was no violation.
    pub(crate) fn run(&self) {
        self.run_unchecked();
        let first = self.sim.first_violations();
        assert_eq!((self.sim.violations(), self.sim.hazards()), (0, 0), "{first:?}");
    }

    pub(crate) fn run_unchecked(&self) {
        assert_eq!(self.sim.run_until(Time::END), RunEnd::Done);
        self.sim.uninstall();
    }

    /// Computes until `us` microseconds after the start.
    pub(crate) fn until(&self, us: u64) {
        let time = Time::from_ns(us * 1000);
        assert!(self.sim.now() <= time, "late: {}", self.sim.now());
        self.sim.spend(time.saturating_sub(self.sim.now()));
    }

    /// Blocks until `us` microseconds after the start. A kernel thread on `alarm_cpu` computes
    /// until then, and wakes the calling thread.
    pub(crate) fn sleep_until(self: &Rc<Self>, us: u64, alarm_cpu: usize) {
        let id = self.sim.current_thread().unwrap();
        self.kernel_thread(alarm_cpu, move |rig| {
            rig.until(us);
            rig.sim.wake(id);
        });
        self.sim.block();
    }

    /// Reads pages of the loaded space.
    pub(crate) fn touch(&self, pages: core::ops::Range<u64>) {
        for page in pages {
            self.sim.touch(page << 12, Touch::Read).unwrap();
        }
    }

    /// The calling thread, of a space, returns to user mode.
    pub(crate) fn return_to_user(&self, space: u64) {
        // SAFETY: spaces exist as long as the rig, and their tables until they may be freed.
        #[expect(unsafe_code, reason = "the interface's function is unsafe")]
        unsafe {
            self.design.return_to_user(&self.spaces[space as usize].coherent);
        }
    }

    /// Flushes pages of a space and waits. The page tables are unchanged, so the pages may still be
    /// used after that; the oracle checks the flush as usual.
    pub(crate) fn flush(&self, space: u64, pages: core::ops::Range<u64>, freed: Freed) {
        let range = pages.start << 12..pages.end << 12;
        let space = &self.spaces[space as usize];
        let record = self.sim.flush_began(space.tables[0], Some(range.clone()));
        let change = Change::range(range, freed);
        let pending = self.design.flush(&space.coherent, &change);
        self.sim.flush_sent();
        self.design.wait(pending);
        self.sim.flush_ended(record);
    }

    /// Ends the calling thread's use of a space, of which it is the last thread.
    pub(crate) fn exit(&self, space: u64) {
        self.sim.set_space(None);
        self.retire(space);
    }

    /// Retires a space without threads, whose tables are freed now or later.
    pub(crate) fn retire(&self, number: u64) {
        let space = &self.spaces[number as usize];
        let record = self.sim.flush_began(space.tables[0], None);
        let retired = self.design.retire(&space.coherent);
        self.sim.flush_sent();
        self.sim.flush_ended(record);
        if retired == Retired::Free {
            self.free(space.root);
        }
        self.free_dead();
    }

    /// The spaces that were freed so far, and the CPUs that freed them.
    pub(crate) fn freed(&self) -> Vec<(u64, usize)> {
        self.freed.borrow().clone()
    }
}

impl<C: Coherence> Rig<C> {
    fn free_dead(&self) {
        while let Some(root) = self.design.take_dead() {
            self.free(root);
        }
    }

    fn free(&self, root: Root) {
        let number = self.spaces.iter().position(|space| space.root == root).unwrap();
        self.freed.borrow_mut().push((number as u64, self.sim.cpu()));
        for table in self.spaces[number].tables {
            self.sim.free_table(table);
        }
    }
}

impl<C: Coherence> Kernel for Rig<C> {
    fn online(&self) {
        self.design.online();
    }
    fn switch(&self, space: u64) {
        // SAFETY: spaces exist as long as the rig, and their tables until they may be freed.
        #[expect(unsafe_code, reason = "the interface's `switch` is unsafe")]
        unsafe {
            self.design.switch(&self.spaces[space as usize].coherent);
        }
    }
    fn enter_lazy(&self) {
        self.design.enter_lazy();
    }
    fn leave_space(&self) {
        self.design.leave_space();
    }
    fn after_switch(&self, _: SwitchedTo) {
        if self.frees_dead.get() {
            self.free_dead();
        }
    }
    fn tick_interval(&self) -> Option<Time> {
        self.design.policy().tick_ns.map(Time::from_ns)
    }
    fn tick(&self) {
        self.design.tick();
    }
    fn flush_interrupt(&self) {
        self.design.interrupt();
    }
}

/// Builds page tables that map the first 64 pages. Returns the tables, the root first.
fn tables(sim: &Sim) -> [u64; 4] {
    let table = || sim.allocate(Purpose::Table).unwrap();
    let (top, upper, middle, leaf) = (table(), table(), table(), table());
    for (from, to) in [(top, upper), (upper, middle), (middle, leaf)] {
        sim.update_entry(from, 0, |_| to << 12 | 7);
    }
    for index in 0..64 {
        let page = sim.allocate(Purpose::Page).unwrap();
        sim.update_entry(leaf, index, |_| page << 12 | 7);
    }
    [top, upper, middle, leaf]
}
