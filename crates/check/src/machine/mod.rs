//! The state of a run: a machine whose CPUs are suspended before each step that another CPU could
//! observe.
//!
//! All CPUs share the host thread that executes the run. Each CPU is a coroutine. Between two
//! suspensions it performs one action that other CPUs may observe, and any number of actions that
//! they cannot.

#![expect(unsafe_code, reason = "the run and its coroutines are reached by pointers")]

mod devices;
mod guest_ops;
mod hardware_ops;
mod record;
mod run;
mod system;
mod word;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ptr;

use corosensei::Yielder;

use crate::hardware::{Entry, Hardware, Violation};
use crate::hash::{hash_of, mix};
use crate::history::{History, Line, LineKind};
use crate::interrupt_oracle::InterruptOracle;
use crate::kernel_pages::KernelPages;
use crate::memory::{Access, Memory, Visible};
use crate::profile::Profile;
use crate::sharing::Sharing;
use crate::sometimes::Sometimes;
pub use hardware_ops::{KernelTable, PageTables, WalkCaches};
pub use run::{End, Outcome, RunSettings, run};
pub use system::System;
use system::with_system;
pub use word::{CheckWord, complete_accesses, fence, publish};

/// An event that can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A CPU performs its next step.
    Step(usize),
    /// A CPU takes its pending interrupt.
    Interrupt(usize),
    /// A store of a CPU becomes visible. The second number is its index in the CPU's store buffer,
    /// where 0 is the oldest store.
    Store(usize, usize),
}

impl Action {
    /// The CPU that acts.
    pub const fn cpu(self) -> usize {
        match self {
            Self::Step(cpu) | Self::Interrupt(cpu) | Self::Store(cpu, _) => cpu,
        }
    }
}

/// The state of a CPU's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    /// The program can run.
    Ready,
    /// The program waits until a word changes that it has read since its last call of `spin_hint`.
    Waiting,
    /// The program has finished.
    Idle,
}

#[derive(Debug)]
struct CpuContext {
    program: Cell<Program>,
    /// The words that the program has read since its last call of `spin_hint`, each with its number
    /// of changes at that time.
    read: RefCell<Vec<(u32, u32)>>,
    /// Hash of everything that the program has done and observed.
    seen: Cell<u64>,
    /// Nesting depth of interrupt masking.
    masks: Cell<u32>,
    is_interrupt_pending: Cell<bool>,
    /// The CPU takes the interrupt when it is resumed.
    takes_interrupt: Cell<bool>,
}

/// The machine and the state of a run on it.
#[derive(Debug)]
pub struct HostileMachine {
    cpus: Vec<CpuContext>,
    running: Cell<usize>,
    in_context: Cell<bool>,
    yielder: Cell<*const Yielder<(), ()>>,
    memory: RefCell<Memory>,
    hardware: RefCell<Hardware>,
    kernel_pages: RefCell<KernelPages>,
    interrupt_oracle: RefCell<InterruptOracle>,
    sharing: RefCell<Sharing>,
    violation: RefCell<Option<Violation>>,
    choices: RefCell<Vec<Action>>,
    reached: RefCell<BTreeSet<Sometimes>>,
    has_begun: Cell<bool>,
    /// Number of words when the run began.
    words_at_begin: Cell<u32>,
    steps: Cell<u64>,
    lines: RefCell<Option<Vec<Line>>>,
    /// For each CPU, the last recorded description of its stale entries.
    stale_text: RefCell<Vec<String>>,
    /// Objects whose host addresses words may contain, each with its name in histories.
    objects: RefCell<Vec<(u64, String)>>,
}

impl HostileMachine {
    fn new(profile: Profile, cpus: usize, history: History) -> Self {
        let cpu = |_| CpuContext {
            program: Cell::new(Program::Ready),
            read: RefCell::default(),
            seen: Cell::new(0),
            masks: Cell::new(0),
            is_interrupt_pending: Cell::new(false),
            takes_interrupt: Cell::new(false),
        };
        Self {
            cpus: (0..cpus).map(cpu).collect(),
            running: Cell::new(0),
            in_context: Cell::new(false),
            yielder: Cell::new(ptr::null()),
            memory: RefCell::new(Memory::new(profile.stores, cpus, history)),
            hardware: RefCell::new(Hardware::new(profile, cpus)),
            kernel_pages: RefCell::new(KernelPages::new(profile, cpus)),
            interrupt_oracle: RefCell::new(InterruptOracle::new(cpus)),
            sharing: RefCell::default(),
            violation: RefCell::new(None),
            choices: RefCell::default(),
            reached: RefCell::default(),
            has_begun: Cell::new(false),
            words_at_begin: Cell::new(0),
            steps: Cell::new(0),
            lines: RefCell::new((history == History::On).then(Vec::new)),
            stale_text: RefCell::default(),
            objects: RefCell::default(),
        }
    }

    /// The architecture of the run.
    pub(crate) fn profile(&self) -> Profile {
        *self.hardware.borrow().profile()
    }

    /// Calls `make`, and names the words that it allocates. `name` gets the index of a word among
    /// them.
    pub(crate) fn with_names<R>(
        &self,
        make: impl FnOnce() -> R,
        name: impl Fn(usize) -> String,
    ) -> R {
        let first = self.memory.borrow().word_count();
        let result = make();
        self.memory.borrow_mut().name_from(first, name);
        result
    }

    /// Names an object whose host address a word may contain. Histories then show the name instead
    /// of the address, and so have the same bytes on every host.
    pub(crate) fn name_object<T>(&self, object: &T, name: impl FnOnce() -> String) {
        if self.lines.borrow().is_some() {
            self.objects.borrow_mut().push((ptr::from_ref(object).addr() as u64, name()));
        }
    }

    /// The CPU that is running.
    pub fn cpu(&self) -> usize {
        self.running.get()
    }

    /// Calls `f` as a CPU, before the run has begun.
    pub fn as_cpu<R>(&self, cpu: usize, f: impl FnOnce() -> R) -> R {
        let before = self.running.replace(cpu);
        let result = f();
        self.running.set(before);
        self.memory.borrow_mut().complete_stores();
        result
    }

    /// Lets other CPUs act before the calling CPU performs an action that they may observe.
    pub fn step(&self) {
        if !self.in_context.get() {
            return;
        }
        loop {
            self.suspend();
            let cpu = self.cpu();
            if !self.cpus[cpu].takes_interrupt.replace(false) {
                // The program has advanced, even if it observes nothing here.
                return self.observe(0);
            }
            self.handle_interrupt(cpu);
        }
    }

    /// Lets only an interrupt come before an action that no other CPU can observe.
    fn step_if_interrupted(&self) {
        let context = &self.cpus[self.cpu()];
        if context.is_interrupt_pending.get() && context.masks.get() == 0 {
            self.step();
        } else if self.in_context.get() {
            // Record this as after a step. A CPU that was interrupted earlier, and that is now at
            // the same place having observed the same values, is then in the same state.
            self.observe(0);
        }
    }

    fn handle_interrupt(&self, cpu: usize) {
        self.observe(1);
        let program = self.cpus[cpu].program.replace(Program::Ready);
        self.mask();
        self.forget_in_flight();
        // The handler runs in the kernel: it may answer before it invalidates.
        let was_in_user_mode = self.hardware.borrow().is_in_user_mode(cpu);
        self.hardware(|hardware, memory, cpu| hardware.set_user_mode(memory, cpu, false));
        with_system(|system| system.handle_interrupt(cpu));
        self.hardware(|hardware, memory, cpu| {
            hardware.set_user_mode(memory, cpu, was_in_user_mode)
        });
        self.forget_in_flight();
        self.unmask();
        self.cpus[cpu].program.set(match program {
            // The handler itself may have changed a word that the program waits for.
            Program::Waiting => Program::Ready,
            other => other,
        });
    }

    /// Records that the calling CPU's program has observed `value`.
    pub fn observe(&self, value: u64) {
        let seen = &self.cpus[self.cpu()].seen;
        seen.set(mix(seen.get(), value));
    }

    /// Waits until `is_done` returns `true`. The program forgets failed attempts, and interrupts
    /// between them. It is then in the same place before each attempt, so these states count as
    /// one.
    pub fn wait_until(&self, is_done: impl Fn() -> bool) {
        let context = &self.cpus[self.cpu()];
        let before = context.seen.get();
        while !is_done() {
            self.spin_hint();
            context.seen.set(before);
        }
    }

    /// Suspends the calling CPU until a word changes that it has read since its last call. Until
    /// then, it would only repeat itself.
    pub fn spin_hint(&self) {
        if !self.in_context.get() {
            return;
        }
        let context = &self.cpus[self.cpu()];
        context.program.set(Program::Waiting);
        self.step();
        context.program.set(Program::Ready);
        context.read.borrow_mut().clear();
    }

    /// Prepares an access of the calling CPU to a word. This is a step if the word is shared, or if
    /// the access makes the CPU's stores visible. Returns `true` if the word is shared.
    fn step_to(&self, word: u32, access: Access, is_barrier: bool) -> bool {
        let is_shared = self.note_use(word, access);
        let cpu = self.cpu();
        if is_shared || is_barrier && self.memory.borrow().has_stored(cpu) {
            self.step();
        } else {
            self.step_if_interrupted();
        }
        let version = self.memory.borrow().version(word);
        self.cpus[cpu].read.borrow_mut().push((word, version));
        is_shared
    }

    /// Records an access of the calling CPU to a word. Returns `true` if the word is shared.
    fn note_use(&self, word: u32, access: Access) -> bool {
        // Walkers also read page tables. A word that is allocated during a run is not the same word
        // in every run.
        !self.has_begun.get()
            || word >= self.words_at_begin.get()
            || self.sharing.borrow_mut().note(word, self.cpu(), access != Access::Reads)
            || self.is_of_page_tables(word)
    }

    fn is_of_page_tables(&self, word: u32) -> bool {
        self.hardware.borrow().is_of_page_tables(word) || self.kernel_pages.borrow().contains(word)
    }

    /// Masks interrupts on the calling CPU. Calls nest.
    pub fn mask(&self) {
        let masks = &self.cpus[self.cpu()].masks;
        masks.set(masks.get() + 1);
    }

    /// Undoes one call of [`mask`](Self::mask) on the calling CPU.
    pub fn unmask(&self) {
        let masks = &self.cpus[self.cpu()].masks;
        masks.set(masks.get() - 1);
    }

    /// Returns `true` if interrupts are masked on the calling CPU.
    pub fn is_masked(&self) -> bool {
        self.cpus[self.cpu()].masks.get() > 0
    }

    /// Sends an interrupt to a CPU. All stores of the sender become visible first.
    pub fn send_interrupt(&self, target: usize) {
        self.deliver_interrupt(target);
        // A CPU interrupts itself to continue with its bell later, or to complete its own
        // broadcast.
        let is_own = target == self.cpu();
        if !is_own && !self.interrupt_oracle.borrow().may_interrupt(self.cpu(), target) {
            self.report(Violation::InterruptedForNothing { cpu: target });
        }
    }

    /// As [`send_interrupt`](Self::send_interrupt), for an interrupt that no flush asks for, and
    /// that may therefore go to any CPU.
    pub(crate) fn deliver_interrupt(&self, target: usize) {
        self.step();
        self.record_as(LineKind::SendsInterrupt(target), || format!("interrupts CPU {target}"));
        self.drain(self.cpu());
        self.cpus[target].is_interrupt_pending.set(true);
    }

    /// Records that `event` happened in this run.
    pub fn reach(&self, event: Sometimes) {
        self.reached.borrow_mut().insert(event);
    }

    /// Records a violation, which ends the run. Only the first one counts.
    pub fn report(&self, violation: Violation) {
        self.violation.borrow_mut().get_or_insert(violation);
    }

    fn suspend(&self) {
        let yielder = self.yielder.get();
        // SAFETY: the running coroutine set `yielder` when it began, or after it was last resumed.
        unsafe { &*yielder }.suspend(());
        self.yielder.set(yielder);
    }

    fn store_becomes_visible(&self, cpu: usize, index: usize) {
        let stored = self.memory.borrow_mut().write_back(cpu, index);
        let name = || self.memory.borrow().name_of(stored.word);
        let text = || format!("its store to {} becomes visible", name());
        self.add_line(cpu, self.kind_of_access(stored.word), text);
        self.stored(cpu, stored);
    }

    fn stored(&self, cpu: usize, stored: Visible) {
        self.interrupt_oracle.borrow_mut().has_stored(&self.memory.borrow(), cpu);
        if stored.is_change {
            self.written(cpu, stored.word, stored.before);
        }
    }

    /// Handles a change of a word by a CPU. `before` is the old value.
    fn written(&self, cpu: usize, word: u32, before: u64) {
        let found = {
            let memory = self.memory.borrow();
            let mut kernel = self.kernel_pages.borrow_mut();
            if kernel.contains(word) {
                kernel.written(&memory, cpu, word, Entry(before))
            } else {
                self.hardware.borrow_mut().written(&memory, cpu, word, Entry(before))
            }
        };
        if let Some(violation) = found {
            self.report(violation);
        }
    }

    /// Makes all stores of a CPU visible.
    fn drain(&self, cpu: usize) {
        loop {
            let Some(word) = self.memory.borrow().oldest(cpu) else { return };
            self.unblock_others(word, cpu);
            let stored = self.memory.borrow_mut().write_back(cpu, 0);
            self.stored(cpu, stored);
        }
    }

    /// Completes all stores that block an immediate write of `cpu` to the word.
    fn unblock(&self, word: u32, cpu: usize) {
        self.unblock_others(word, cpu);
        self.complete_blocking(word, cpu, cpu);
    }

    fn unblock_others(&self, word: u32, cpu: usize) {
        for other in (0..self.cpus.len()).filter(|&other| other != cpu) {
            self.complete_blocking(word, cpu, other);
        }
    }

    fn complete_blocking(&self, word: u32, cpu: usize, other: usize) {
        loop {
            let Some(index) = self.memory.borrow().blocking_store(word, cpu, other) else { return };
            let stored = self.memory.borrow_mut().write_back(other, index);
            self.stored(other, stored);
        }
    }

    /// Lists the events that can happen next.
    fn find_actions(&self, actions: &mut Vec<Action>) {
        actions.clear();
        for (cpu, context) in self.cpus.iter().enumerate() {
            if self.can_run(context) {
                actions.push(Action::Step(cpu));
            }
            if context.is_interrupt_pending.get() && context.masks.get() == 0 {
                actions.push(Action::Interrupt(cpu));
            }
        }
        let memory = self.memory.borrow();
        for cpu in 0..self.cpus.len() {
            actions.extend(memory.visible_next(cpu).map(|index| Action::Store(cpu, index)));
        }
    }

    fn can_run(&self, context: &CpuContext) -> bool {
        match context.program.get() {
            Program::Ready => true,
            Program::Waiting => {
                let memory = self.memory.borrow();
                let read = context.read.borrow();
                read.iter().any(|&(word, version)| memory.version(word) != version)
            }
            Program::Idle => false,
        }
    }

    /// Returns `true` if every program has finished.
    fn is_finished(&self) -> bool {
        self.cpus.iter().all(|context| context.program.get() == Program::Idle)
    }

    fn state(&self) -> u64 {
        let mut hash = mix(self.memory.borrow().hash(), hash_of(&*self.hardware.borrow()));
        hash = mix(hash, hash_of(&*self.kernel_pages.borrow()));
        hash = mix(hash, hash_of(&*self.interrupt_oracle.borrow()));
        for context in &self.cpus {
            let program = match context.program.get() {
                Program::Ready => 0,
                // Only the ability to continue matters.
                Program::Waiting => 1 + u64::from(self.can_run(context)),
                Program::Idle => 3,
            };
            let flags = u64::from(context.is_interrupt_pending.get()) << 2
                | u64::from(context.masks.get()) << 3;
            hash = mix(mix(hash, context.seen.get()), program | flags);
        }
        hash
    }
}

thread_local! {
    static MACHINE: Cell<*const HostileMachine> = const { Cell::new(ptr::null()) };
}

/// Calls `f` with the machine of the run that this host thread executes.
///
/// # Panics
///
/// If this host thread executes no run.
pub fn with_machine<R>(f: impl FnOnce(&HostileMachine) -> R) -> R {
    let machine = MACHINE.get();
    // SAFETY: the pointer is null, or that of a machine that `CurrentRun` borrows further down the
    // stack.
    let machine = unsafe { machine.as_ref() };
    f(machine.expect("words and machines are used during a run"))
}

/// While it lives, this host thread executes a run.
struct CurrentRun(*const HostileMachine);

impl CurrentRun {
    fn enter(machine: &HostileMachine) -> Self {
        Self(MACHINE.replace(machine))
    }
}

impl Drop for CurrentRun {
    fn drop(&mut self) {
        MACHINE.set(self.0);
    }
}
