//! The simulation: CPUs take turns in the order of simulated time.
//!
//! Each CPU executes a *context*, a coroutine with a stack of its own: a thread's, or the CPU's own
//! idle loop. Code under test runs in a context as it would on a CPU, and calls back for whatever
//! takes time. [`Sim::spend`] is the one way by which time passes: it suspends the context until
//! every other CPU has come as far, so that all effects happen in the order of (time, CPU), and
//! takes the interrupts that fall due meanwhile.
//!
//! A context per thread, and not one per CPU, because threads block in the middle of things: on the
//! lock of an address space, deep in a page fault. Their stacks then hold what they were doing, as
//! kernel stacks do.

#![expect(unsafe_code, reason = "the simulation that runs is found by a pointer")]

use core::cell::{Cell, RefCell};
use core::{fmt, ptr};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::rc::Rc;

use crate::clock::Clock;
use crate::context::Contexts;
use crate::counts::Counts;
use crate::lines::{Access, LineId, Lines};
use crate::machine::Machine;
use crate::memory::Memory;
use crate::oracle::{Oracle, Violation};
use crate::queue::Key;
use crate::threads::{Scheduler, ThreadId, Waiter};
use crate::time::Time;
use crate::tlb::Tlb;
use crate::waits::FlushWaits;

/// What runs on the machine: called on the CPU that the call concerns, in simulated time.
pub trait Kernel {
    /// This CPU begins to work.
    fn online(&self);
    /// A thread of this space is about to run here. `space` is what its
    /// [`ThreadSpec`](crate::ThreadSpec) says.
    fn switch(&self, space: u64);
    /// A thread without a space, or no thread at all, is about to run here.
    fn enter_lazy(&self);
    /// This CPU is about to lose its TLB in a deep idle state.
    fn leave(&self);
    /// A switch is over, or the CPU has let go of what it had loaded, and interrupts are let in
    /// again: time for what could not be done in the middle of it.
    fn after_switch(&self, to: SwitchedTo) {
        let _ = to;
    }
    /// The flush interrupt.
    fn flush_interrupt(&self);
    /// How often it wants [`tick`](Self::tick) called on every CPU that does not idle, if at all.
    ///
    /// The interrupt itself costs nothing: every kernel has it, whether or not it is of use here.
    fn tick_interval(&self) -> Option<Time> {
        None
    }
    /// The timer's interrupt.
    fn tick(&self) {}
}

/// What a CPU does after a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchedTo {
    /// It runs a thread of a space.
    Space,
    /// It idles, or runs a kernel thread.
    Nothing,
}

/// A simulated machine, and what runs on it.
pub struct Sim {
    pub(crate) machine: Machine,
    /// The CPU whose turn it is.
    running: Cell<usize>,
    in_context: Cell<bool>,
    /// Counts the invalidations of TLBs: what was cached before one is told from what came later.
    moment: Cell<u64>,
    pub(crate) clock: RefCell<Clock>,
    pub(crate) lines: RefCell<Lines>,
    pub(crate) memory: RefCell<Memory>,
    pub(crate) tlbs: RefCell<Vec<Tlb>>,
    pub(crate) oracle: RefCell<Oracle>,
    pub(crate) waits: RefCell<FlushWaits>,
    pub(crate) contexts: Contexts,
    pub(crate) scheduler: RefCell<Scheduler>,
    /// Who waits for which sleeping lock, by the lock's address.
    pub(crate) waiters: RefCell<HashMap<usize, VecDeque<Waiter>>>,
    kernel: RefCell<Option<Rc<dyn Kernel>>>,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum RunEnd {
    /// All threads are done.
    Done,
    /// The time was up.
    TimeUp,
    /// Nothing can happen any more, and so many threads are still waiting.
    Deadlock(usize),
}

impl Sim {
    /// A machine with so many frames of memory and room for so many threads, on which nothing runs.
    ///
    /// # Errors
    ///
    /// If the host has no room for the stacks.
    pub fn new(machine: Machine, frames: usize, threads_max: usize) -> io::Result<Self> {
        Self::with_nodes(machine, frames, 1, threads_max)
    }

    /// The same, with memory of so many nodes, among which sockets are divided.
    ///
    /// # Errors
    ///
    /// If the host has no room for the stacks.
    pub fn with_nodes(
        machine: Machine,
        frames: usize,
        nodes: usize,
        threads_max: usize,
    ) -> io::Result<Self> {
        let cpus = machine.cpu_count();
        let sim = Self {
            running: Cell::new(0),
            in_context: Cell::new(false),
            moment: Cell::new(0),
            clock: RefCell::new(Clock::new(cpus)),
            lines: RefCell::new(Lines::new(machine.topology, machine.cache.clone())),
            memory: RefCell::new(Memory::new(frames, nodes)),
            tlbs: RefCell::new((0..cpus).map(|_| Tlb::new(&machine.tlb)).collect()),
            oracle: RefCell::new(Oracle::default()),
            waits: RefCell::new(FlushWaits::new()),
            contexts: Contexts::new(cpus + threads_max)?,
            scheduler: RefCell::new(Scheduler::new(cpus)),
            waiters: RefCell::new(HashMap::new()),
            kernel: RefCell::new(None),
            machine,
        };
        sim.start_idle_loops()?;
        Ok(sim)
    }

    /// Says what runs on the machine.
    pub fn install(&self, kernel: Rc<dyn Kernel>) {
        *self.kernel.borrow_mut() = Some(kernel);
    }

    /// Forgets what runs on the machine, which may hold the machine in turn.
    pub fn uninstall(&self) {
        *self.kernel.borrow_mut() = None;
    }

    /// The machine.
    #[must_use]
    pub const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Runs until all threads are done, or until `end`.
    pub fn run_until(&self, end: Time) -> RunEnd {
        let end = end.min(Time::END - Time::TICK);
        self.clock.borrow_mut().end = end;
        while_running(self, || self.turns(end))
    }

    /// The CPU whose turn it is.
    #[inline]
    #[must_use]
    pub fn cpu(&self) -> usize {
        self.running.get()
    }

    /// The time on this CPU.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Time {
        self.clock.borrow().cpus[self.cpu()].now
    }

    /// The time of the CPU that has come farthest: when a run ended.
    #[must_use]
    pub fn time(&self) -> Time {
        let clock = self.clock.borrow();
        clock.cpus.iter().map(|cpu| cpu.now).max().unwrap_or(Time::ZERO)
    }

    /// Lets time pass on this CPU; interrupts that fall due are taken, and come on top.
    #[inline]
    pub fn spend(&self, time: Time) {
        if self.in_context.get() {
            // Beyond the end there is nothing to come to.
            self.advance((self.now() + time).min(Time::END));
        }
    }

    /// Masks interrupts on this CPU until as many calls of [`unmask`](Self::unmask).
    #[inline]
    pub fn mask(&self) {
        self.clock.borrow_mut().cpus[self.cpu()].masks += 1;
    }

    /// Unmasks interrupts; those that have arrived are taken.
    #[inline]
    pub fn unmask(&self) {
        self.clock.borrow_mut().cpus[self.cpu()].masks -= 1;
        self.spend(Time::ZERO);
    }

    /// Whether interrupts are masked on this CPU.
    #[must_use]
    pub fn is_masked(&self) -> bool {
        self.clock.borrow().cpus[self.cpu()].masks > 0
    }

    /// A full barrier: waits until earlier stores have their lines.
    pub fn fence(&self) {
        let stored_at = {
            let clock = self.clock.borrow();
            let cpu = &clock.cpus[self.cpu()];
            cpu.stored_at.saturating_sub(cpu.now)
        };
        self.spend(stored_at + self.machine.cache.fence);
    }

    /// One turn of a loop that waits for another CPU.
    pub fn spin_hint(&self) {
        self.spend(self.machine.cache.pause);
    }

    /// What one CPU did so far.
    #[must_use]
    pub fn counts_of(&self, cpu: usize) -> Counts {
        self.clock.borrow().cpus[cpu].counts_at(self.now())
    }

    /// Reads some of a CPU's [counts](Self::counts_of), other than the idle time, without a copy of
    /// all.
    #[inline]
    pub fn read_counts<R>(&self, cpu: usize, read: impl FnOnce(&Counts) -> R) -> R {
        read(&self.clock.borrow().cpus[cpu].counts)
    }

    /// What all CPUs did so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut total = Counts::default();
        for cpu in &self.clock.borrow().cpus {
            total += cpu.counts_at(self.now());
        }
        total
    }

    /// How long the flushes so far took.
    #[must_use]
    pub fn flush_waits(&self) -> FlushWaits {
        self.waits.borrow().clone()
    }

    /// How often a CPU used what it must not use any more.
    #[must_use]
    pub fn violations(&self) -> u64 {
        self.oracle.borrow().violations
    }

    /// How often a page table was freed that a CPU could still walk.
    #[must_use]
    pub fn hazards(&self) -> u64 {
        self.oracle.borrow().hazards
    }

    /// The first violations and hazards.
    #[must_use]
    pub fn first_violations(&self) -> Vec<Violation> {
        self.oracle.borrow().first.clone()
    }

    pub(crate) fn kernel(&self) -> Option<Rc<dyn Kernel>> {
        self.kernel.borrow().clone()
    }

    pub(crate) fn count(&self, f: impl FnOnce(&mut Counts)) {
        f(&mut self.clock.borrow_mut().cpus[self.cpu()].counts);
    }

    /// An access to a line: waits for it as a CPU would, and then for its turn.
    #[inline]
    pub(crate) fn access(&self, line: LineId, access: Access) {
        if !self.in_context.get() {
            return;
        }
        let target = {
            let mut clock = self.clock.borrow_mut();
            let number = self.cpu();
            let cpu = &mut clock.cpus[number];
            let cost = self.lines.borrow_mut().access(line, number, access, cpu.now);
            let mut target = cpu.now + cost.busy;
            match access {
                Access::Load | Access::Prefetch => {}
                Access::Store => cpu.stored_at = cpu.stored_at.max(cost.stored_at),
                // A locked operation waits for the stores before it.
                Access::Atomic => target = target.max(cpu.stored_at),
            }
            target
        };
        self.advance(target);
    }

    /// A moment before which all that is cached now was cached.
    pub(crate) fn next_moment(&self) -> u64 {
        self.moment.set(self.moment.get() + 1);
        self.moment.get()
    }

    /// The moment of what is cached now.
    pub(crate) fn moment(&self) -> u64 {
        self.moment.get()
    }

    pub(crate) fn forget_line(&self, line: LineId) {
        self.lines.borrow_mut().forget(line);
    }

    /// Lets time pass on this CPU until `target`, later by the interrupts that it takes.
    fn advance(&self, mut target: Time) {
        loop {
            let (suspend, until) = self.clock.borrow_mut().step(self.cpu(), target);
            if suspend {
                self.suspend();
                target += self.clock.borrow_mut().cpus[self.cpu()].lose_stolen();
            }
            // Who suspends may be woken early, for an interrupt that was sent meanwhile.
            if self.interrupt_is_due() {
                let before = self.now();
                self.take_interrupt();
                target += self.now() - before;
            } else if self.now() >= target {
                return;
            } else {
                debug_assert!(self.now() <= until, "woken late");
            }
        }
    }

    /// Returns when this CPU's event comes to the top, which may be on another CPU than before.
    pub(crate) fn suspend(&self) {
        self.in_context.set(false);
        self.contexts.suspend();
        self.in_context.set(true);
    }

    /// Gives the turn to another context of this CPU, at the same time.
    pub(crate) fn yield_turn(&self) {
        let mut clock = self.clock.borrow_mut();
        let cpu = self.cpu();
        let key = Key::new(clock.cpus[cpu].now, cpu);
        clock.cpus[cpu].key = key;
        clock.queue.replace_top(key);
    }

    /// Waits with nothing to do until `until`, or until [`wake_at`](Self::wake_at).
    pub(crate) fn park(&self, until: Option<Time>) {
        {
            let mut clock = self.clock.borrow_mut();
            let cpu = self.cpu();
            clock.queue.pop();
            let at = match (until, clock.cpus[cpu].arrivals.front()) {
                (Some(until), Some(arrival)) => Some(until.min(arrival.at)),
                (until, arrival) => until.or(arrival.map(|arrival| arrival.at)),
            };
            clock.cpus[cpu].key = Key::NEVER;
            clock.cpus[cpu].parked = true;
            if let Some(at) = at {
                clock.wake_at(cpu, at);
            }
        }
        self.suspend();
        self.clock.borrow_mut().cpus[self.cpu()].parked = false;
    }

    fn turns(&self, end: Time) -> RunEnd {
        while let Some((key, cpu)) = self.next_event() {
            if key.time() > end {
                return RunEnd::TimeUp;
            }
            self.running.set(cpu);
            let (context, before) = {
                let scheduler = self.scheduler.borrow();
                (scheduler.context_of(cpu), scheduler.current(cpu))
            };
            self.in_context.set(true);
            self.contexts.resume(context);
            self.in_context.set(false);
            self.finish_switch(cpu, before);
        }
        match self.scheduler.borrow().unfinished() {
            0 => RunEnd::Done,
            waiting => RunEnd::Deadlock(waiting),
        }
    }

    fn next_event(&self) -> Option<(Key, usize)> {
        let mut clock = self.clock.borrow_mut();
        loop {
            let key = clock.queue.top()?;
            let cpu = key.cpu();
            if clock.cpus[cpu].key == key {
                clock.cpus[cpu].now = clock.cpus[cpu].now.max(key.time());
                return Some((key, cpu));
            }
            clock.queue.pop();
        }
    }

    /// The thread that this CPU runs, if it runs one.
    #[must_use]
    pub fn current_thread(&self) -> Option<ThreadId> {
        self.scheduler.borrow().current(self.cpu())
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim")
            .field("machine", &self.machine.name)
            .field("time", &self.time())
            .finish_non_exhaustive()
    }
}

thread_local! {
    /// The simulation that runs on this thread of the host.
    static RUNNING: Cell<*const Sim> = const { Cell::new(ptr::null()) };
}

/// Calls `f` with the simulation that runs on this thread, if one does.
#[inline]
pub fn with_running<R>(f: impl FnOnce(&Sim) -> R) -> Option<R> {
    let sim = RUNNING.get();
    // SAFETY: the pointer is null, or that of a `Sim` that is borrowed by `while_running` further
    // down the stack of this thread (or of the thread that resumed this coroutine, which waits).
    unsafe { sim.as_ref() }.map(f)
}

/// Calls `f` with `sim` as the simulation that runs on this thread.
pub(crate) fn while_running<R>(sim: &Sim, f: impl FnOnce() -> R) -> R {
    struct Restore(*const Sim);
    impl Drop for Restore {
        fn drop(&mut self) {
            RUNNING.set(self.0);
        }
    }
    let _restore = Restore(RUNNING.replace(sim));
    f()
}
