//! A design on a machine with round numbers, without a memory manager: threads that are told what
//! to do and when, so that counts can be worked out by hand.

use std::rc::Rc;

use shootdown::Root;
use shootdown_sim::{Affinity, Kernel, Machine, Purpose, RunEnd, Sim, ThreadSpec, Time, Touch};
use shootdown_vm::{Change, Coherence, Freed};

/// A design, a machine, and two spaces of 64 mapped pages each.
pub(crate) struct Rig<C: Coherence> {
    pub(crate) sim: Rc<Sim>,
    pub(crate) design: C,
    spaces: Vec<(C::Space, u64)>,
}

impl<C: Coherence + 'static> Rig<C> {
    pub(crate) fn new(cpus: usize, design: impl FnOnce(Rc<Sim>) -> C) -> Rc<Self> {
        let round = include_str!("../../../sim/tests/round.toml");
        let machine = Machine::from_toml(round).unwrap().with_cpus(cpus).unwrap();
        let sim = Rc::new(Sim::new(machine, 1 << 12, 64).unwrap());
        let design = design(Rc::clone(&sim));
        let spaces = (0..2)
            .map(|_| {
                let root = tables(&sim);
                (design.space(Root(root << 12)), root)
            })
            .collect();
        let rig = Rc::new(Self { sim: Rc::clone(&sim), design, spaces });
        sim.install(rig.clone());
        rig
    }

    /// A thread of a space, bound to a CPU.
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

    pub(crate) fn run(&self) {
        assert_eq!(self.sim.run_until(Time::END), RunEnd::Done);
        self.sim.uninstall();
        assert_eq!((self.sim.violations(), self.sim.hazards()), (0, 0));
    }

    /// Computes until so many microseconds after the start.
    pub(crate) fn until(&self, us: u64) {
        let time = Time::from_ns(us * 1000);
        assert!(self.sim.now() <= time, "late: {}", self.sim.now());
        self.sim.spend(time.saturating_sub(self.sim.now()));
    }

    /// Blocks, and is awake again at so many microseconds: a kernel thread on `alarm_cpu`, which
    /// computes until then, sees to that.
    pub(crate) fn sleep_until(self: &Rc<Self>, us: u64, alarm_cpu: usize) {
        let id = self.sim.current_thread().unwrap();
        let spec = ThreadSpec { space: None, affinity: Affinity::Cpu(alarm_cpu) };
        let rig = Rc::clone(self);
        let alarm = move || {
            rig.until(us);
            rig.sim.wake(id);
        };
        self.sim.spawn(spec, alarm).unwrap();
        self.sim.block();
    }

    /// Reads pages of the space that is loaded.
    pub(crate) fn touch(&self, pages: core::ops::Range<u64>) {
        for page in pages {
            self.sim.touch(page << 12, Touch::Read).unwrap();
        }
    }

    /// Flushes pages of a space and waits. Nothing was changed in the page tables, so that the
    /// pages may go on being used; the oracle watches all the same.
    pub(crate) fn flush(&self, space: u64, pages: core::ops::Range<u64>, freed: Freed) {
        let range = pages.start << 12..pages.end << 12;
        let (space, root) = &self.spaces[space as usize];
        let record = self.sim.flush_began(*root, Some(range.clone()));
        let change = Change::range(range, freed);
        let pending = self.design.flush(space, &change);
        self.sim.flush_sent();
        self.design.wait(pending);
        self.sim.flush_ended(record);
    }
}

impl<C: Coherence> Kernel for Rig<C> {
    fn online(&self) {
        self.design.online();
    }
    fn switch(&self, space: u64) {
        // SAFETY: spaces live as long as the rig, and their tables are never freed.
        #[expect(unsafe_code, reason = "the seam's `switch` is unsafe")]
        unsafe {
            self.design.switch(&self.spaces[space as usize].0);
        }
    }
    fn enter_lazy(&self) {
        self.design.enter_lazy();
    }
    fn leave(&self) {
        self.design.leave();
    }
    fn flush_interrupt(&self) {
        self.design.interrupt();
    }
}

/// Page tables that map the first 64 pages. Returns the root's frame.
fn tables(sim: &Sim) -> u64 {
    let table = || sim.allocate(Purpose::Table).unwrap();
    let (top, upper, middle, leaf) = (table(), table(), table(), table());
    for (from, to) in [(top, upper), (upper, middle), (middle, leaf)] {
        sim.update_entry(from, 0, |_| to << 12 | 7);
    }
    for index in 0..64 {
        let page = sim.allocate(Purpose::Page).unwrap();
        sim.update_entry(leaf, index, |_| page << 12 | 7);
    }
    top
}
