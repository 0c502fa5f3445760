//! The simulation: CPUs take turns in the order of simulated time.
//!
//! Each CPU executes a *context*, which is a coroutine with its own stack: a thread's, or the CPU's
//! idle loop. Code under test runs in a context as it would on a CPU, and calls the simulation for
//! each step that takes time. Time passes only in [`Sim::spend`]. It suspends the context until
//! every other CPU has reached the same time, so that all effects happen in the order of (time,
//! CPU), and takes the interrupts that arrive in that time.
//!
//! Each thread has its own context, because threads block in the middle of kernel code: for example
//! on the lock of an address space, deep in a page fault. Their stacks then hold the state of that
//! code, as kernel stacks do.

#![expect(unsafe_code, reason = "the simulation that runs is found by a pointer")]

use core::cell::{Cell, OnceCell, RefCell};
use core::{fmt, ptr};
use std::collections::HashMap;
use std::io;
use std::rc::Rc;

use crate::causes::Cause;
use crate::classes::Target;
use crate::clock::{Clock, CpuClock, Step};
use crate::context::Contexts;
use crate::counts::Counts;
use crate::holders::Holders;
use crate::hot::{HotSpot, Site};
use crate::lines::{Access, Cost, LineId, Lines};
use crate::lock::queue::LockQueues;
use crate::lock::queued::QueuedLock;
use crate::lock::waiting::LockWaiting;
use crate::machine::Machine;
use crate::memory::{FrameNumber, Memory};
use crate::oracle::{Oracle, Violation};
use crate::queue::Key;
use crate::rng::Rng;
use crate::thread_id::ThreadId;
use crate::threads::Scheduler;
use crate::time::Time;
use crate::tlb::Tlb;
use crate::waits::FlushWaits;

/// The kernel that runs on the machine. Each function is called on the CPU that it concerns, in
/// simulated time.
pub trait Kernel {
    /// This CPU goes online.
    fn online(&self);
    /// A thread of this space is about to run on this CPU. `space` is the number in its
    /// [`ThreadSpec`](crate::ThreadSpec).
    fn switch(&self, space: u64);
    /// A thread without a space, or no thread at all, is about to run on this CPU.
    fn enter_lazy(&self);
    /// This CPU is about to lose its TLB in a deep idle state.
    fn leave_space(&self);
    /// A switch is complete, or the CPU has unloaded its page tables, and interrupts are unmasked
    /// again. Work that is impossible in the middle of a switch can be done here.
    fn after_switch(&self, _to: SwitchedTo) {}
    /// Handles the flush interrupt.
    fn flush_interrupt(&self);
    /// A flush on this CPU has been counted, and chooses its targets next.
    fn flush_counted(&self) {}
    /// A flush on this CPU has chosen its targets, and sends interrupts to them, if there are any.
    fn flush_sending(&self) {}
    /// The time that a flush interrupt takes to the target if it is longer than on the machine;
    /// `None` for the machine's time.
    fn flush_delivery(&self, _target: usize) -> Option<Time> {
        None
    }
    /// The interval at which the kernel wants [`tick`](Self::tick) called on every CPU that is not
    /// idle; `None` for never.
    ///
    /// The interrupt itself costs nothing: every kernel has it, whether or not a design uses it.
    fn tick_interval(&self) -> Option<Time> {
        None
    }
    /// Handles the timer interrupt.
    fn tick(&self) {}
}

/// The kind of work that a CPU does after a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchedTo {
    /// The CPU runs a thread of a space.
    Space,
    /// The CPU is idle or runs a kernel thread.
    Nothing,
}

/// A simulated machine, and the kernel and threads that run on it.
pub struct Sim {
    pub(crate) machine: Machine,
    /// The CPU whose turn it is.
    running: Cell<usize>,
    in_context: Cell<bool>,
    /// Sequence number of the latest TLB invalidation. An entry that is cached with a smaller
    /// number is older than that invalidation.
    invalidations: Cell<u64>,
    pub(crate) clock: RefCell<Clock>,
    pub(crate) lines: RefCell<Lines>,
    pub(crate) memory: RefCell<Memory>,
    /// For each node, the lock of its free frames.
    pub(crate) zones: Vec<QueuedLock>,
    pub(crate) tlbs: RefCell<Vec<Tlb>>,
    pub(crate) oracle: RefCell<Oracle>,
    pub(crate) waits: RefCell<FlushWaits>,
    /// The space of each root of a replica.
    pub(crate) replicas: RefCell<HashMap<FrameNumber, FrameNumber>>,
    pub(crate) holders: RefCell<Holders>,
    /// The interrupts that have no class yet, for each CPU; empty if none are classified.
    pub(crate) targets: OnceCell<RefCell<Vec<Target>>>,
    /// Number of CPUs on which accesses decide the class of an interrupt.
    pub(crate) watched_cpus: Cell<usize>,
    pub(crate) contexts: Contexts,
    pub(crate) scheduler: RefCell<Scheduler>,
    /// The threads that wait for sleeping locks.
    pub(crate) lock_queues: RefCell<LockQueues>,
    pub(crate) lock_waiting: Cell<LockWaiting>,
    kernel: RefCell<Option<Rc<dyn Kernel>>>,
    /// Set if a hypervisor stops CPUs.
    pub(crate) is_guest: Cell<bool>,
    pub(crate) jitter: RefCell<Option<Rng>>,
}

/// Reason why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum RunEnd {
    /// All threads have finished.
    Done,
    /// The end time was reached.
    TimeUp,
    /// No event is left, and this number of threads is still waiting.
    Deadlock(usize),
}

impl Sim {
    /// Creates a machine with `frames` frames of memory and room for `threads_max` threads, on
    /// which nothing runs.
    ///
    /// # Errors
    ///
    /// If the host has no memory for the stacks.
    pub fn new(machine: Machine, frames: usize, threads_max: usize) -> io::Result<Self> {
        Self::with_nodes(machine, frames, 1, threads_max)
    }

    /// Creates a machine like [`new`](Self::new), whose memory and sockets are divided among
    /// `nodes` nodes.
    ///
    /// # Errors
    ///
    /// If the host has no memory for the stacks.
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
            invalidations: Cell::new(0),
            clock: RefCell::new(Clock::new(cpus)),
            lines: RefCell::new(Lines::new(
                machine.topology,
                machine.cache.clone(),
                machine.far.line,
            )),
            memory: RefCell::new(Memory::new(frames, nodes, cpus)),
            zones: (0..nodes).map(|_| QueuedLock::default()).collect(),
            tlbs: RefCell::new((0..cpus).map(|_| Tlb::new(&machine.tlb)).collect()),
            oracle: RefCell::new(Oracle::new()),
            waits: RefCell::new(FlushWaits::default()),
            replicas: RefCell::default(),
            holders: RefCell::default(),
            targets: OnceCell::new(),
            watched_cpus: Cell::new(0),
            contexts: Contexts::new(cpus + threads_max)?,
            scheduler: RefCell::new(Scheduler::new(cpus)),
            lock_queues: RefCell::default(),
            lock_waiting: Cell::default(),
            kernel: RefCell::new(None),
            is_guest: Cell::new(false),
            jitter: RefCell::new(None),
            machine,
        };
        sim.start_idle_loops()?;
        Ok(sim)
    }

    /// Sets the kernel that runs on the machine.
    pub fn install(&self, kernel: Rc<dyn Kernel>) {
        *self.kernel.borrow_mut() = Some(kernel);
    }

    /// Drops the kernel that runs on the machine. The kernel may own a reference to the machine.
    pub fn uninstall(&self) {
        *self.kernel.borrow_mut() = None;
    }

    /// The machine's description.
    #[must_use]
    pub const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Runs until all threads have finished, or until `end`.
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

    /// The current time of the running CPU.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Time {
        self.clock.borrow().cpus[self.cpu()].now
    }

    /// The time of the CPU that is furthest ahead. After a run, the time at which the run ended.
    #[must_use]
    pub fn time(&self) -> Time {
        let clock = self.clock.borrow();
        clock.cpus.iter().map(|cpu| cpu.now).max().unwrap_or(Time::ZERO)
    }

    /// Lets `time` pass on this CPU. Interrupts that arrive in that time are taken, and their cost
    /// is added.
    #[inline]
    pub fn spend(&self, time: Time) {
        if self.in_context.get() {
            // No event is scheduled after `Time::END`.
            self.advance((self.now() + time).min(Time::END));
        }
    }

    /// Masks interrupts on this CPU until [`unmask`](Self::unmask) was called as often.
    #[inline]
    pub fn mask(&self) {
        self.clock.borrow_mut().cpus[self.cpu()].masks += 1;
    }

    /// Reverts one call of [`mask`](Self::mask). If it was the last, pending interrupts are taken.
    #[inline]
    pub fn unmask(&self) {
        self.clock.borrow_mut().cpus[self.cpu()].masks -= 1;
        self.spend(Time::ZERO);
    }

    /// Calls `f` with interrupts masked on this CPU.
    #[inline]
    pub fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
        self.mask();
        let result = f();
        self.unmask();
        result
    }

    /// Returns `true` if interrupts are masked on this CPU.
    #[inline]
    #[must_use]
    pub fn is_masked(&self) -> bool {
        self.clock.borrow().cpus[self.cpu()].masks > 0
    }

    /// A full barrier: waits until all earlier stores have their lines.
    #[inline]
    pub fn fence(&self) {
        let stored_at = {
            let cpu = &mut self.clock.borrow_mut().cpus[self.cpu()];
            let wait = cpu.stored_at.saturating_sub(cpu.now);
            cpu.count_line_wait(wait);
            wait
        };
        self.spend(stored_at + self.machine.cache.fence);
    }

    /// One iteration of a loop that waits for another CPU.
    #[inline]
    pub fn spin_hint(&self) {
        self.spend(self.machine.cache.pause);
    }

    /// One iteration of a loop that waits until other CPUs have flushed. When the loop has waited
    /// for 0.1 ms, its iterations become longer, because the host simulates each: the CPUs of a
    /// virtual machine may answer after 100 ms.
    #[inline]
    pub fn flush_wait_hint(&self) {
        let pause = {
            let mut clock = self.clock.borrow_mut();
            let CpuClock { now, wait_loop, .. } = &mut clock.cpus[self.cpu()];
            wait_loop.next_pause(*now, self.machine.cache.pause)
        };
        self.spend_as(Cause::FlushWait, pause);
    }

    /// Counts of one CPU so far, with its current idle time.
    #[must_use]
    pub fn counts_of(&self, cpu: usize) -> Counts {
        self.clock.borrow().cpus[cpu].counts_at(self.now())
    }

    /// Reads some of a CPU's [counts](Self::counts_of) without a copy of all. The current idle time
    /// is not included.
    #[inline]
    pub fn read_counts<R>(&self, cpu: usize, read: impl FnOnce(&Counts) -> R) -> R {
        read(&self.clock.borrow().cpus[cpu].counts)
    }

    /// Sum of the counts of all CPUs so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut total = Counts::default();
        for cpu in &self.clock.borrow().cpus {
            total += cpu.counts_at(self.now());
        }
        total
    }

    /// The waits for lines and locks so far, by name. Later readings have the same names at the
    /// same places, and perhaps more.
    #[must_use]
    pub fn hot_spots(&self) -> Vec<HotSpot> {
        self.lines.borrow().hot.spots.clone()
    }

    /// Records that a thread waited for the lock in a line.
    pub(crate) fn waited_for_lock(&self, line: LineId, wait: Time) {
        let mut lines = self.lines.borrow_mut();
        let name = lines.name(line);
        lines.hot.waited_for_lock(name, wait);
    }

    /// Distribution of the durations of all flushes so far.
    #[must_use]
    pub fn flush_waits(&self) -> FlushWaits {
        self.waits.borrow().clone()
    }

    /// Number of times that a CPU used a translation, page or table that it must not use any more.
    #[must_use]
    pub fn violations(&self) -> u64 {
        self.oracle.borrow().violations
    }

    /// Number of page tables that were freed while a CPU could still walk them.
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

    #[inline]
    pub(crate) fn count(&self, f: impl FnOnce(&mut Counts)) {
        f(&mut self.clock.borrow_mut().cpus[self.cpu()].counts);
    }

    /// An access to a line: waits for the line as a CPU would, and then for this CPU's turn.
    #[inline]
    pub(crate) fn access(&self, line: LineId, access: Access, site: Option<Site>) {
        self.access_by(access, |lines, cpu, now| lines.access(line, cpu, access, now, site));
    }

    /// An access to a line that `cost` finds.
    #[inline]
    pub(crate) fn access_by(
        &self,
        access: Access,
        cost: impl FnOnce(&mut Lines, usize, Time) -> Cost,
    ) {
        if !self.in_context.get() {
            return;
        }
        let (step, target) = {
            let mut clock = self.clock.borrow_mut();
            let number = self.cpu();
            let cpu = &mut clock.cpus[number];
            let cost = cost(&mut self.lines.borrow_mut(), number, cpu.now);
            let mut target = cpu.now + cost.busy;
            let mut wait = cost.wait;
            match access {
                Access::Load | Access::Prefetch | Access::PrefetchForWrite => {}
                Access::Store => cpu.stored_at = cpu.stored_at.max(cost.stored_at),
                // A locked operation waits for earlier stores to drain.
                Access::Atomic => {
                    wait += cpu.stored_at.saturating_sub(target);
                    target = target.max(cpu.stored_at);
                }
            }
            cpu.count_line_wait(wait);
            (clock.step(number, target), target)
        };
        if step != Step::Reached {
            self.finish_advance(step, target);
        }
    }

    /// Starts an invalidation. Every entry that is cached now is older than the returned number.
    pub(crate) fn next_invalidation(&self) -> u64 {
        self.invalidations.set(self.invalidations.get() + 1);
        self.invalidations.get()
    }

    /// Sequence number for an entry that is cached now.
    pub(crate) fn last_invalidation(&self) -> u64 {
        self.invalidations.get()
    }

    pub(crate) fn forget_line(&self, line: LineId) {
        self.lines.borrow_mut().forget(line);
    }

    #[inline]
    pub(crate) fn is_in_context(&self) -> bool {
        self.in_context.get()
    }

    /// Lets time pass on this CPU until `target`, later by the interrupts that the CPU takes.
    /// Returns the time that is left if the thread is preempted before.
    pub(crate) fn advance(&self, target: Time) -> Time {
        let step = self.clock.borrow_mut().step(self.cpu(), target);
        if step == Step::Reached { Time::ZERO } else { self.finish_advance(step, target) }
    }

    /// Continues to `target` after a step that did not reach it. Returns as
    /// [`advance`](Self::advance) does.
    #[inline(never)]
    pub(crate) fn finish_advance(&self, mut step: Step, mut target: Time) -> Time {
        let mut stolen = Time::ZERO;
        loop {
            if let Step::Preceded(until) = step {
                self.suspend();
                let taken = self.clock.borrow_mut().cpus[self.cpu()].charge_stolen();
                (target, stolen) = (target + taken, stolen + taken);
                debug_assert!(self.now() <= until || self.interrupt_is_due(), "woken late");
            }
            // A CPU that suspends may be woken early, for an interrupt that was sent after that.
            if self.interrupt_is_due() {
                let before = self.now();
                self.take_interrupt();
                target += self.now() - before;
                let computes = self.clock.borrow().cpus[self.cpu()].computes;
                if computes && self.must_reschedule(self.cpu()) {
                    break;
                }
            } else if self.now() >= target {
                break;
            }
            step = self.clock.borrow_mut().step(self.cpu(), target);
            if step == Step::Reached {
                break;
            }
        }
        if stolen != Time::ZERO {
            let cpu = &mut self.clock.borrow_mut().cpus[self.cpu()];
            cpu.causes.transfer(stolen, Cause::Interrupts, cpu.now);
        }
        target.saturating_sub(self.now())
    }

    /// Calls `f` on this CPU, in no time and without caches, as what was done before the run.
    pub(crate) fn outside_time(&self, f: impl FnOnce()) {
        self.in_context.set(false);
        f();
        self.in_context.set(true);
    }

    /// Suspends the context until its CPU's event is next. A thread's context may continue on
    /// another CPU.
    pub(crate) fn suspend(&self) {
        self.in_context.set(false);
        self.contexts.suspend();
        self.in_context.set(true);
    }

    /// Gives the turn to another context of this CPU, at the same simulated time.
    pub(crate) fn yield_turn(&self) {
        let mut clock = self.clock.borrow_mut();
        let cpu = self.cpu();
        let key = Key::new(clock.cpus[cpu].now, cpu);
        clock.cpus[cpu].key = key;
        clock.queue.replace_top(key);
    }

    /// Waits, without using the CPU, until `until` or until [`wake_at`](Clock::wake_at).
    pub(crate) fn wait_for_event(&self, until: Option<Time>) {
        {
            let mut clock = self.clock.borrow_mut();
            let cpu = self.cpu();
            clock.queue.pop();
            let at = match (until, clock.cpus[cpu].arrivals.front()) {
                (Some(until), Some(arrival)) => Some(until.min(arrival.at)),
                (until, arrival) => until.or(arrival.map(|arrival| arrival.at)),
            };
            clock.cpus[cpu].key = Key::NEVER;
            clock.cpus[cpu].is_waiting = true;
            if let Some(at) = at {
                clock.wake_at(cpu, at);
            }
        }
        self.suspend();
        self.clock.borrow_mut().cpus[self.cpu()].is_waiting = false;
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
        match self.scheduler.borrow().unfinished {
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
    #[inline]
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
    /// The simulation that runs on this thread of the host; null if none does.
    static RUNNING: Cell<*const Sim> = const { Cell::new(ptr::null()) };
}

/// Calls `f` with the simulation that runs on this thread of the host; `None` if none does.
#[inline]
pub fn with_running<R>(f: impl FnOnce(&Sim) -> R) -> Option<R> {
    let sim = RUNNING.get();
    // SAFETY: the pointer is null or was set by `while_running`, which borrows the `Sim` further
    // down the stack of this thread (or of the thread that resumed this coroutine, which waits for
    // it).
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
