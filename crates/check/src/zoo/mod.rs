//! The zoo: bugs that other kernels shipped, each as a program of a few lines with a fixed variant.
//!
//! A program keeps the race of its bug and leaves out the kernel around it. One flag selects the
//! variant: the fixed one does what the fix does, and is otherwise the same. The search must find
//! the faulty variant's violation, of the kind that the story describes, and must visit every state
//! of the fixed variant without a violation. `zoo.toml` has the bugs, and the modules have their
//! programs.

mod domains;
mod errata;
mod frames;
mod guests;
mod hardware;
mod isolated;
mod marks;
mod presence;
mod reclaim;
mod sharers;
mod table;
mod tables;
mod unflushed;
mod waiting;

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use shootdown::Word;

use crate::explore::Scenario;
use crate::hardware::{Entry, OnLoad, Violation};
use crate::machine::{
    CheckWord, HostileMachine, KernelTable, Outcome, PageTables, RunSettings, System, WalkCaches,
    fence, publish, run, with_machine,
};
use crate::profile::Profile;

/// A bug, from `zoo.toml`.
#[derive(Clone, Copy, Debug)]
pub struct Bug {
    /// The name of the bug in this project.
    pub name: &'static str,
    /// The kernel that had it, and the commit or report.
    pub source: &'static str,
    /// The race and its consequence, in a sentence or two.
    pub story: &'static str,
    /// The architecture on which it shows.
    pub profile: Profile,
    /// Returns `true` for the violation that the search must find.
    pub finds: fn(Violation) -> bool,
    spaces: usize,
    has_kernel_table: bool,
    words: &'static [&'static str],
    program: &'static Program,
}

/// The program of a bug.
#[derive(Debug)]
struct Program {
    /// The name of the bug.
    bug: &'static str,
    cpus: &'static [fn(&Stage)],
    handler: fn(&Stage),
}

/// Defines the programs of a module. Each has the name of a bug, what the CPUs do, and a handler of
/// interrupts if it does not invalidate everything.
macro_rules! programs {
    ($($bug:literal: $($cpu:expr),* $(=> $handler:path)?;)*) => {
        pub(super) const PROGRAMS: &[super::Program] = &[$(super::Program {
            bug: $bug,
            cpus: &[$($cpu),*],
            handler: super::programs!(@handler $($handler)?),
        }),*];
    };
    (@handler) => { super::Stage::invalidate_all };
    (@handler $handler:path) => { $handler };
}
use programs;

/// Variant of a bug's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// The program with the bug, as it was shipped.
    Faulty,
    /// The program with the fix.
    Fixed,
}

impl Bug {
    /// Returns all bugs.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        table::BUGS.iter()
    }

    /// Returns one variant as a scenario to run.
    pub const fn scenario(&self, variant: Variant) -> BugScenario<'_> {
        BugScenario { bug: self, variant }
    }
}

/// A variant of a bug, to run.
#[derive(Clone, Copy, Debug)]
pub struct BugScenario<'b> {
    bug: &'b Bug,
    variant: Variant,
}

impl Scenario for BugScenario<'_> {
    fn run(&self, settings: RunSettings<'_>) -> Outcome {
        let set_up = |machine: &HostileMachine| Stage::new(machine, self.bug, self.variant);
        run(settings, self.bug.program.cpus.len(), set_up)
    }
}

/// The environment of a bug's program: spaces, words, and interrupts with correct acknowledgements.
#[derive(Debug)]
pub(crate) struct Stage {
    spaces: Vec<PageTables>,
    kernel: Option<KernelTable>,
    words: Vec<(&'static str, CheckWord)>,
    /// Number of interrupts that were sent to each CPU.
    requests: Vec<CheckWord>,
    /// Number of those interrupts that each CPU has handled.
    handled: Vec<CheckWord>,
    cpus: &'static [fn(&Self)],
    handler: fn(&Self),
    variant: Variant,
}

impl System for Stage {
    fn run(&self, cpu: usize) {
        self.cpus[cpu](self);
    }
    fn handle_interrupt(&self, cpu: usize) {
        let requests = self.requests[cpu].load(Acquire);
        (self.handler)(self);
        self.handled[cpu].store(requests, Release);
    }
}

#[expect(clippy::unused_self, reason = "programs act through their stage")]
impl Stage {
    fn new(machine: &HostileMachine, bug: &Bug, variant: Variant) -> Self {
        let Bug { spaces, has_kernel_table, words, program, .. } = *bug;
        let Program { cpus, handler, .. } = *program;
        let counters = |name: &str| -> Vec<_> {
            (0..cpus.len()).map(|cpu| CheckWord::named(0, || format!("{name} {cpu}"))).collect()
        };
        Self {
            spaces: (0..spaces).map(|_| PageTables::new(machine)).collect(),
            kernel: has_kernel_table.then(|| KernelTable::new(machine)),
            words: words
                .iter()
                .map(|&name| (name, CheckWord::named(0, || name.to_owned())))
                .collect(),
            requests: counters("requests to CPU"),
            handled: counters("acknowledgement of CPU"),
            cpus,
            handler,
            variant,
        }
    }

    fn is_fixed(&self) -> bool {
        self.variant == Variant::Fixed
    }

    fn cpu(&self) -> usize {
        with_machine(HostileMachine::cpu)
    }

    /// Returns the word of this name, which must be in the bug's list of words.
    fn word(&self, name: &str) -> &CheckWord {
        let (_, word) =
            self.words.iter().find(|(it, _)| *it == name).expect("it is in the bug's list");
        word
    }

    fn space(&self, index: usize) -> &PageTables {
        &self.spaces[index]
    }

    /// The kernel's page table, which the bug must have.
    fn kernel(&self) -> &KernelTable {
        self.kernel.as_ref().expect("the bug has one")
    }

    /// Unmaps a page, visibly to all CPUs, and returns its frame.
    fn unmap(&self, space: usize, page: usize) -> usize {
        let entry = self.space(space).swap(page, Entry::EMPTY);
        fence();
        entry.target()
    }

    /// Removes a table from a root, and returns its number.
    fn unlink_table(&self, space: usize, slot: usize) -> usize {
        self.space(space).unlink_table(slot).expect("each table is unlinked once")
    }

    /// Loads a space, and invalidates all entries under its tag.
    fn load(&self, space: usize) {
        self.load_under(space, space as u16 + 1, OnLoad::Flush);
    }

    fn load_under(&self, space: usize, tag: u16, on_load: OnLoad) {
        let root = self.space(space).root();
        with_machine(|machine| machine.load_root(Some(root), tag, on_load));
    }

    fn load_kernel(&self) {
        with_machine(|machine| machine.load_root(None, 0, OnLoad::Keep));
    }

    fn user_mode(&self) {
        with_machine(HostileMachine::stay_in_user_mode);
    }

    fn invalidate_page(&self, page: usize) {
        with_machine(|machine| machine.invalidate_pages(|it| it == page, WalkCaches::Keep));
    }

    fn invalidate_all(&self) {
        with_machine(|machine| machine.invalidate_tag(None));
    }

    /// Broadcasts an invalidation of a page, and waits until it is complete.
    fn broadcast(&self, page: usize) {
        with_machine(|machine| machine.issue_broadcast(|it| it == page));
        self.complete();
    }

    /// Waits until all broadcasts of this CPU are complete.
    fn complete(&self) {
        with_machine(HostileMachine::complete_broadcasts);
    }

    /// Interrupts a CPU. Returns the ticket of the interrupt.
    fn interrupt(&self, cpu: usize) -> u64 {
        let ticket = self.requests[cpu].fetch_add(1, AcqRel) + 1;
        with_machine(|machine| machine.send_interrupt(cpu));
        ticket
    }

    /// Interrupts a CPU, and waits until it has handled the interrupt.
    fn interrupt_and_wait(&self, cpu: usize) {
        let ticket = self.interrupt(cpu);
        self.wait_until(|| self.handled[cpu].load(Acquire) >= ticket);
    }

    /// Interrupts CPU 0, and waits until it has handled that, if the lowest bit of a word is set.
    fn interrupt_if_set(&self, word: &str) {
        if self.word(word).load(Acquire) & 1 != 0 {
            self.interrupt_and_wait(0);
        }
    }

    fn wait_until(&self, is_done: impl Fn() -> bool) {
        with_machine(|machine| machine.wait_until(is_done));
    }

    /// Waits until another CPU has signalled this word.
    fn wait_for(&self, word: &str) {
        self.wait_until(|| self.word(word).load(Acquire) != 0);
    }

    /// Signals this word to other CPUs.
    fn signal(&self, word: &str) {
        self.word(word).store(1, Release);
        fence();
    }

    /// Claims that a page is flushed.
    fn claim_flushed(&self, space: usize, page: usize) {
        let root = self.space(space).root();
        with_machine(|machine| {
            machine.complete_flush(machine.stale_entries(root, |it| it == page));
        });
    }

    fn reuse(&self, frame: usize) {
        with_machine(|machine| machine.reuse_frame(frame));
    }

    /// Calls `first` and then `second`; the faulty variant calls them in the opposite order.
    fn in_fixed_order(&self, first: impl FnOnce(), second: impl FnOnce()) {
        if self.is_fixed() {
            first();
            second();
        } else {
            second();
            first();
        }
    }

    fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
        with_machine(HostileMachine::mask);
        let result = f();
        with_machine(HostileMachine::unmask);
        result
    }
}

fn nothing(_: &Stage) {}

fn use_the_space(stage: &Stage) {
    stage.load(0);
    stage.user_mode();
}

/// Joins the mask, and loads the space.
fn join_the_mask(stage: &Stage) {
    stage.masked(|| {
        stage.word("the mask").fetch_or(1, AcqRel);
        stage.load(0);
    });
}

/// Removes a table, interrupts CPU 0 if `must_interrupt` returns `true`, and frees the table.
fn free_table_after_interrupt(stage: &Stage, must_interrupt: impl FnOnce() -> bool) {
    let table = stage.unlink_table(0, 0);
    fence();
    if must_interrupt() {
        stage.interrupt_and_wait(0);
    }
    with_machine(|machine| machine.free_table(table));
}

/// Unmaps a page, interrupts CPU 0, and reuses the frame.
fn unmap_interrupt_and_reuse(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    stage.interrupt_and_wait(0);
    stage.reuse(frame);
}

/// Unmaps a page, interrupts CPU 0 if the lowest bit of a word is set, and reuses the frame.
fn unmap_interrupt_if_set_and_reuse(stage: &Stage, word: &str) {
    let frame = stage.unmap(0, 0);
    stage.interrupt_if_set(word);
    stage.reuse(frame);
}

/// Unmaps a page, broadcasts its invalidation, calls `fix` in the fixed variant, and reuses the
/// frame.
fn unmap_broadcast_and_reuse(stage: &Stage, fix: impl FnOnce()) {
    let frame = stage.unmap(0, 0);
    publish();
    stage.broadcast(0);
    if stage.is_fixed() {
        fix();
    }
    stage.reuse(frame);
}
