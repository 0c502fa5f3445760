//! Shootdown itself: the engine, as a kernel would embed it.

#![expect(unsafe_code, reason = "makes tokens, and switches to spaces")]

use core::cell::Cell;
use core::marker::PhantomData;
use std::rc::Rc;

use shootdown::{Extent, Here, Pending, Root, Rule, Shootdown, Space};
use shootdown_sim::{Sim, SimMachine};
use shootdown_vm::{Change, Coherence, EmptyTables, UnmapLock};

/// How many times a CPU that was interrupted, or has interrupted others, tells when it enters the
/// kernel.
///
/// To tell costs a store, and a locked operation at the return, some 10 ns together, and a cache
/// miss if somebody looked meanwhile. It saves the interrupt, 1 to 4 µs, of every flush that comes
/// while the CPU is in the kernel, where threads of a process that changes its memory often are. A
/// CPU that nobody interrupts pays nothing; one that was interrupted once pays for as many entries
/// as an interrupt costs.
const TELLS: u32 = 128;

/// The design, with room for `64 * WORDS` CPUs.
#[derive(Debug)]
pub struct Engine<const WORDS: usize, P = Ours> {
    sim: Rc<Sim>,
    /// For each CPU: how many more times it tells when it enters the kernel.
    tells: Vec<Cell<u32>>,
    /// For ever: a `Pending` borrows it.
    engine: &'static Shootdown<SimMachine<WORDS>>,
    policy: PhantomData<P>,
}

/// What the memory manager does with locks and page tables: not the engine's doing, but made
/// possible by it, so that it can be told apart.
pub trait Policy {
    /// See [`Coherence::UNMAP_LOCK`].
    const UNMAP_LOCK: UnmapLock;
    /// See [`Coherence::EMPTY_TABLES`].
    const EMPTY_TABLES: EmptyTables;
}

/// Locks are let go of before the wait, and empty page tables kept.
#[derive(Debug)]
pub struct Ours;

/// As under Linux 7.0.
#[derive(Debug)]
pub struct LinuxPolicy;

impl Policy for Ours {
    const UNMAP_LOCK: UnmapLock = UnmapLock::Released;
    const EMPTY_TABLES: EmptyTables = EmptyTables::Kept;
}

impl Policy for LinuxPolicy {
    const UNMAP_LOCK: UnmapLock = UnmapLock::Shared;
    const EMPTY_TABLES: EmptyTables = EmptyTables::Freed;
}

impl<const WORDS: usize, P: Policy> Engine<WORDS, P> {
    /// On this machine.
    #[must_use]
    pub fn new(sim: Rc<Sim>) -> Self {
        Self::with_broken_rule(sim, None)
    }

    /// An engine that breaks a rule, for tests that expect the oracle to notice.
    #[must_use]
    pub fn with_broken_rule(sim: Rc<Sim>, broken: Option<Rule>) -> Self {
        let engine = Box::leak(Box::new(SimMachine::engine(&sim, broken)));
        let tells = (0..sim.machine().cpu_count()).map(|_| Cell::new(0)).collect();
        Self { sim, tells, engine, policy: PhantomData }
    }

    /// Calls `f` with the token of this CPU.
    fn here<R>(&self, f: impl FnOnce(Here<'static, SimMachine<WORDS>>) -> R) -> R {
        self.sim.mask();
        // SAFETY: interrupts are masked, so this context stays on its CPU until it unmasks them,
        // and the handler does not interrupt it.
        let result = f(unsafe { self.engine.here() });
        self.sim.unmask();
        result
    }
}

impl<const WORDS: usize, P: Policy> Coherence for Engine<WORDS, P> {
    type Space = Rc<Space<SimMachine<WORDS>>>;
    type Pending = Pending<'static, SimMachine<WORDS>>;

    const UNMAP_LOCK: UnmapLock = P::UNMAP_LOCK;
    const EMPTY_TABLES: EmptyTables = P::EMPTY_TABLES;

    fn online(&self) {
        self.here(|here| here.online());
    }

    fn space(&self, root: Root) -> Self::Space {
        Rc::new(self.engine.space(root))
    }

    fn flush(&self, space: &Self::Space, change: &Change) -> Self::Pending {
        let pending = self.here(|here| here.flush(space, change.extent()));
        self.sim.flush_sent();
        if !pending.waiting().is_empty() {
            // Whose threads change its memory at the same time will be told soon, too.
            self.tells[self.sim.cpu()].set(TELLS);
        }
        pending
    }

    fn wait(&self, pending: Self::Pending) {
        // Masked, it answers its own bell meanwhile, and is sent no interrupt.
        self.sim.mask();
        pending.wait();
        self.sim.unmask();
    }

    fn retire(&self, space: &Self::Space) {
        // The procedure that `Here::switch` asks for.
        self.here(|here| here.leave());
        let pending = self.here(|here| here.flush(space, Extent::whole().freeing_tables()));
        self.wait(pending);
    }

    unsafe fn switch(&self, space: &Self::Space) {
        self.here(|here| {
            // SAFETY: the CPU is online since its idle loop began; for the rest, as our caller
            // promises.
            unsafe { here.switch(space) };
            // The thread is in the kernel, and need not be told of flushes until it leaves that.
            if self.tells[self.sim.cpu()].get() > 0 {
                here.enter_lazy();
            }
        });
    }

    fn enter_kernel(&self) {
        let tells = &self.tells[self.sim.cpu()];
        if tells.get() > 0 {
            tells.set(tells.get() - 1);
            self.here(|here| here.enter_lazy());
        }
    }

    unsafe fn return_to_user(&self, space: &Self::Space) {
        self.here(|here| {
            // SAFETY: as above. Nothing but a comparison, if the CPU has not told.
            unsafe { here.switch(space) };
        });
    }

    fn enter_lazy(&self) {
        self.here(|here| here.enter_lazy());
    }

    fn leave(&self) {
        self.here(|here| here.leave());
    }

    fn interrupt(&self) {
        self.tells[self.sim.cpu()].set(TELLS);
        self.here(|here| here.answer());
    }
}
