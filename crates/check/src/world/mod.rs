//! What a run is in the middle of: CPUs that are suspended before each step that another could see.
//!
//! All CPUs share the thread of the host that the run is on. A CPU is a coroutine; between two
//! suspensions it does one thing that others may see, and whatever it does by itself.

#![expect(unsafe_code, reason = "the run is found by a pointer, and CPUs are suspended by one")]

mod log;
mod machine;
mod run;
mod system;
mod word;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::ptr;

use corosensei::Yielder;

use crate::flush_scope::Announcement;
use crate::hardware::{Entry, Hardware, Wrong};
use crate::hash::mix;
use crate::history::{Line, LineKind, Writing};
use crate::kernel_pages::KernelPages;
use crate::memory::{Access, Memory, Visible};
use crate::profile::Profile;
use crate::sharing::Sharing;
use crate::sometimes::Sometimes;
pub use machine::{KernelTable, PageTables, Upper};
pub use run::{End, Outcome, Setting, Stacks, run};
pub use system::System;
use system::with_system;
pub use word::{CheckWord, complete_accesses, fence, publish};

/// What can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A CPU does its next step.
    Step(usize),
    /// A CPU takes the interrupt that is on its way to it.
    Interrupt(usize),
    /// A store of a CPU becomes visible: the one that was this many places behind the oldest.
    Store(usize, usize),
}

impl Action {
    /// Whose.
    #[must_use]
    pub const fn cpu(self) -> usize {
        match self {
            Self::Step(cpu) | Self::Interrupt(cpu) | Self::Store(cpu, _) => cpu,
        }
    }
}

/// The state of a CPU's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    /// It can go on.
    Ready,
    /// It waits until a word changes that it has read since it last began to wait.
    Waiting,
    /// It is over.
    Idle,
}

struct CpuContext {
    program: Cell<Program>,
    /// What it has read since it last began to wait, and how often that had changed by then.
    read: RefCell<Vec<(u32, u32)>>,
    /// A hash of all that it has done and seen.
    seen: Cell<u64>,
    /// How often interrupts were masked.
    masks: Cell<u32>,
    is_rung: Cell<bool>,
    /// It takes the interrupt when it is resumed.
    takes_interrupt: Cell<bool>,
}

/// A run.
pub struct World {
    cpus: Vec<CpuContext>,
    running: Cell<usize>,
    in_context: Cell<bool>,
    yielder: Cell<*const Yielder<(), ()>>,
    memory: RefCell<Memory>,
    hardware: RefCell<Hardware>,
    kernel_pages: RefCell<KernelPages>,
    flush_scope: RefCell<Announcement>,
    sharing: RefCell<Sharing>,
    wrong: RefCell<Option<Wrong>>,
    choices: RefCell<Vec<Action>>,
    reached: RefCell<BTreeSet<Sometimes>>,
    has_begun: Cell<bool>,
    /// How many words there were when it did.
    words_at_begin: Cell<u32>,
    steps: Cell<u64>,
    lines: RefCell<Option<Vec<Line>>>,
    /// What was last written of what each CPU holds.
    held: RefCell<Vec<String>>,
    /// Objects whose host addresses words may hold, each with its name in histories.
    objects: RefCell<Vec<(u64, String)>>,
}

impl World {
    fn new(profile: Profile, cpus: usize, writing: Writing) -> Self {
        let cpu = |_| CpuContext {
            program: Cell::new(Program::Ready),
            read: RefCell::default(),
            seen: Cell::new(0),
            masks: Cell::new(0),
            is_rung: Cell::new(false),
            takes_interrupt: Cell::new(false),
        };
        Self {
            cpus: (0..cpus).map(cpu).collect(),
            running: Cell::new(0),
            in_context: Cell::new(false),
            yielder: Cell::new(ptr::null()),
            memory: RefCell::new(Memory::new(profile.stores, cpus, writing)),
            hardware: RefCell::new(Hardware::new(profile, cpus)),
            kernel_pages: RefCell::new(KernelPages::new(profile, cpus)),
            flush_scope: RefCell::new(Announcement::new(cpus)),
            sharing: RefCell::default(),
            wrong: RefCell::new(None),
            choices: RefCell::default(),
            reached: RefCell::default(),
            has_begun: Cell::new(false),
            words_at_begin: Cell::new(0),
            steps: Cell::new(0),
            lines: RefCell::new((writing == Writing::On).then(Vec::new)),
            held: RefCell::default(),
            objects: RefCell::default(),
        }
    }

    /// How many CPUs there are.
    const fn cpu_count(&self) -> usize {
        self.cpus.len()
    }

    /// The architecture of the run.
    pub(crate) fn profile(&self) -> Profile {
        *self.hardware.borrow().profile()
    }

    /// Makes a value, and names the words that belong to it, by their place among them, in
    /// histories.
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

    /// Names an object whose host address a word may hold. A history then shows the name, and so
    /// has the same bytes on every host.
    pub(crate) fn name_object<T>(&self, object: &T, name: impl FnOnce() -> String) {
        if self.lines.borrow().is_some() {
            self.objects.borrow_mut().push((ptr::from_ref(object).addr() as u64, name()));
        }
    }

    /// The CPU whose turn it is.
    #[must_use]
    pub fn cpu(&self) -> usize {
        self.running.get()
    }

    /// Does something as a CPU, before the run has begun.
    pub fn as_cpu<R>(&self, cpu: usize, f: impl FnOnce() -> R) -> R {
        let before = self.running.replace(cpu);
        let result = f();
        self.running.set(before);
        self.memory.borrow_mut().settle();
        result
    }

    /// The calling CPU is about to do something that others may see: others go first, if they do.
    pub fn step(&self) {
        if !self.in_context.get() {
            return;
        }
        loop {
            self.suspend();
            let cpu = self.cpu();
            if !self.cpus[cpu].takes_interrupt.replace(false) {
                // It has come farther, even if it sees nothing there.
                return self.see(0);
            }
            self.handle_interrupt(cpu);
        }
    }

    /// The same for what nobody else can see: only an interrupt may come first.
    fn step_if_interrupted(&self) {
        let context = &self.cpus[self.cpu()];
        if context.is_rung.get() && context.masks.get() == 0 {
            self.step();
        } else if self.in_context.get() {
            // As after a step: who was interrupted before, and is at the same place with the same
            // in mind, is in the same state.
            self.see(0);
        }
    }

    fn handle_interrupt(&self, cpu: usize) {
        self.see(1);
        let program = self.cpus[cpu].program.replace(Program::Ready);
        self.mask();
        self.forget_in_flight();
        with_system(|system| system.interrupt(cpu));
        self.forget_in_flight();
        self.unmask();
        self.cpus[cpu].program.set(match program {
            // What it waits for may have come by its own hand.
            Program::Waiting => Program::Ready,
            other => other,
        });
    }

    /// The calling CPU has done something, which its program now knows to have come to `value`.
    pub fn see(&self, value: u64) {
        let seen = &self.cpus[self.cpu()].seen;
        seen.set(mix(seen.get(), value));
    }

    /// Waits until something is so, by a look that remembers nothing of the last one, nor of
    /// interrupts in between: the program is where it was before each, and such states are one.
    pub fn wait_until(&self, is_so: impl Fn() -> bool) {
        let context = &self.cpus[self.cpu()];
        let before = context.seen.get();
        while !is_so() {
            self.spin_hint();
            context.seen.set(before);
        }
    }

    /// The calling CPU waits until a word changes that it has read since its last call: if none
    /// does, it would only do the same again.
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

    /// The calling CPU is about to use a word: a step if that is shared, or if it makes its stores
    /// visible at once. Returns whether the word is shared.
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

    /// The calling CPU uses a word. Returns whether that is shared.
    fn note_use(&self, word: u32, access: Access) -> bool {
        // Page tables are read by walkers, too; and what is made on the way is not always the same.
        !self.has_begun.get()
            || word >= self.words_at_begin.get()
            || self.sharing.borrow_mut().note(word, self.cpu(), access != Access::Reads)
            || self.is_of_page_tables(word)
    }

    fn is_of_page_tables(&self, word: u32) -> bool {
        self.hardware.borrow().is_of_page_tables(word) || self.kernel_pages.borrow().contains(word)
    }

    /// Masks the interrupt on the calling CPU.
    pub fn mask(&self) {
        let masks = &self.cpus[self.cpu()].masks;
        masks.set(masks.get() + 1);
    }

    /// Unmasks it, as often as it was masked.
    pub fn unmask(&self) {
        let masks = &self.cpus[self.cpu()].masks;
        masks.set(masks.get() - 1);
    }

    /// Whether it is masked.
    #[must_use]
    pub fn is_masked(&self) -> bool {
        self.cpus[self.cpu()].masks.get() > 0
    }

    /// Sends the interrupt to a CPU: with it, everything that the sender has stored.
    pub fn ring(&self, target: usize) {
        self.step();
        self.say_as(LineKind::Rings(target), || format!("interrupts CPU {target}"));
        self.drain(self.cpu());
        // A CPU interrupts itself to go on with its bell later, or to complete its own broadcast.
        let is_own = target == self.cpu();
        if !is_own && !self.flush_scope.borrow().may_interrupt(self.cpu(), target) {
            self.wrong(Wrong::InterruptedForNothing { cpu: target });
        }
        self.cpus[target].is_rung.set(true);
    }

    /// Something happened that must happen in some run.
    pub fn reach(&self, what: Sometimes) {
        self.reached.borrow_mut().insert(what);
    }

    /// Something must not be.
    pub fn wrong(&self, wrong: Wrong) {
        self.wrong.borrow_mut().get_or_insert(wrong);
    }

    fn suspend(&self) {
        let yielder = self.yielder.get();
        // SAFETY: it was set by the coroutine that runs, when it began or was resumed last.
        unsafe { &*yielder }.suspend(());
        self.yielder.set(yielder);
    }

    fn store_becomes_visible(&self, cpu: usize, index: usize) {
        let stored = self.memory.borrow_mut().write_back(cpu, index);
        let name = || self.memory.borrow().name_of(stored.word);
        let text = || format!("its store to {} becomes visible", name());
        self.write_line(cpu, self.kind_of_access(stored.word), text);
        self.stored(cpu, stored);
    }

    fn stored(&self, cpu: usize, stored: Visible) {
        self.flush_scope.borrow_mut().has_stored(&self.memory.borrow(), cpu);
        if stored.is_change {
            self.written(cpu, stored.word, stored.before);
        }
    }

    /// A word has another value for all from now on, written by this CPU. It held `before`.
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
        if let Some(wrong) = found {
            self.wrong(wrong);
        }
    }

    /// All that a CPU has stored becomes visible.
    fn drain(&self, cpu: usize) {
        loop {
            let Some(word) = self.memory.borrow().oldest(cpu) else { return };
            self.unlock_others(word, cpu);
            let stored = self.memory.borrow_mut().write_back(cpu, 0);
            self.stored(cpu, stored);
        }
    }

    /// Nothing is in the way any more of a CPU that is about to write to the word at once.
    fn unlock(&self, word: u32, cpu: usize) {
        self.unlock_others(word, cpu);
        self.clear_the_way(word, cpu, cpu);
    }

    fn unlock_others(&self, word: u32, cpu: usize) {
        for other in (0..self.cpus.len()).filter(|&other| other != cpu) {
            self.clear_the_way(word, cpu, other);
        }
    }

    fn clear_the_way(&self, word: u32, cpu: usize, other: usize) {
        loop {
            let Some(index) = self.memory.borrow().in_the_way(word, cpu, other) else { return };
            let stored = self.memory.borrow_mut().write_back(other, index);
            self.stored(other, stored);
        }
    }

    /// What can happen next.
    fn find_actions(&self, actions: &mut Vec<Action>) {
        actions.clear();
        for (cpu, context) in self.cpus.iter().enumerate() {
            if self.goes_on(context) {
                actions.push(Action::Step(cpu));
            }
            if context.is_rung.get() && context.masks.get() == 0 {
                actions.push(Action::Interrupt(cpu));
            }
        }
        let memory = self.memory.borrow();
        for cpu in 0..self.cpus.len() {
            actions.extend(memory.visible_next(cpu).map(|index| Action::Store(cpu, index)));
        }
    }

    fn goes_on(&self, context: &CpuContext) -> bool {
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

    /// Whether every program is over, and nobody is on his way.
    fn is_over(&self) -> bool {
        self.cpus.iter().all(|context| context.program.get() == Program::Idle)
    }

    fn state(&self) -> u64 {
        let mut hash = mix(self.memory.borrow().hash(), self.hardware.borrow().hash());
        hash = mix(hash, self.kernel_pages.borrow().hash());
        hash = mix(hash, self.flush_scope.borrow().hash());
        for context in &self.cpus {
            let program = match context.program.get() {
                Program::Ready => 0,
                // What matters is whether it can go on.
                Program::Waiting => 1 + u64::from(self.goes_on(context)),
                Program::Idle => 3,
            };
            let flags = u64::from(context.is_rung.get()) << 2 | u64::from(context.masks.get()) << 3;
            hash = mix(mix(hash, context.seen.get()), program | flags);
        }
        hash
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("steps", &self.steps.get()).finish_non_exhaustive()
    }
}

thread_local! {
    static WORLD: Cell<*const World> = const { Cell::new(ptr::null()) };
}

/// Calls `f` with the run that this thread of the host is in.
///
/// # Panics
///
/// If it is in none.
pub fn with_world<R>(f: impl FnOnce(&World) -> R) -> R {
    let world = WORLD.get();
    // SAFETY: null, or that of a world that `PinnedCpu` borrows further down the stack.
    let world = unsafe { world.as_ref() };
    f(world.expect("words and machines are used within runs"))
}

/// While it lives, this thread of the host is in a run.
struct PinnedCpu(*const World);

impl PinnedCpu {
    fn enter(world: &World) -> Self {
        Self(WORLD.replace(world))
    }
}

impl Drop for PinnedCpu {
    fn drop(&mut self) {
        WORLD.set(self.0);
    }
}
