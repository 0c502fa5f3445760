//! Programs of litmus tests: the instructions of each CPU, and the conditions on what the CPU
//! observes that make up the outcome of the test.
//!
//! A CPU that observes something else continues, but the run then has another outcome. A program
//! therefore has no branches, and for an access it suffices to know the translations that it *may*
//! find.

use std::cell::Cell;
use std::sync::atomic::Ordering::{Relaxed, Release};

use shootdown::Word;
use shootdown_check::{
    AccessTiming, CheckWord, Entry, HostileMachine, Moment, OnLoad, Outcome, PAGES, PageTables,
    Reach, RunSettings, Scenario, System, Translation, Violation, fence, publish, run,
    with_machine,
};

/// The page `x`.
pub(crate) const X: usize = 0;
/// The page `y`, in tests where it is a page.
pub(crate) const Y: usize = 1;
/// Another page, which has a table of its own and is always mapped at the beginning.
pub(crate) const Z: usize = PAGES;
/// The variable that signals the end of the writer's work: `y` in most tests.
pub(crate) const MESSAGE: usize = 0;
/// The variable that requests a flush, and then acknowledges it: `f`.
pub(crate) const REQUEST: usize = 1;
/// The variable that one CPU passes to the next: `a`.
pub(crate) const BATON: usize = 2;
/// The contents of the frame of `x`, through any mapping: `pa1`.
pub(crate) const FRAME: usize = 3;

/// The entry of `x` at the beginning, if `x` is mapped.
pub(crate) const OLD: Entry = Entry::to(X).writable();
/// The entry of `x`, read-only.
pub(crate) const READ_ONLY: Entry = Entry::to(X);
/// An entry for another frame.
pub(crate) const NEW: Entry = Entry::to(Z).writable();
/// The empty entry.
pub(crate) const INVALID: Entry = Entry::EMPTY;
/// Another entry that is not present.
pub(crate) const OTHER_INVALID: Entry = Entry(0x200);

/// The ASID of the address space.
pub(crate) const ASID: u16 = 1;
/// The ASID of another address space.
pub(crate) const OTHER_ASID: u16 = 2;

/// The page tables at the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// All pages are mapped.
    Mapped,
    /// All pages but `x` and `y` are mapped.
    Unmapped,
    /// As [`Start::Unmapped`], and `x` and `y` have no table.
    NoTable,
}

/// An instruction, or a condition on what it observes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Instruction {
    /// `STR` to the entry of a page.
    Map(usize, Entry),
    /// `STR` of the table of `x` to the entry of the root.
    MapTable,
    /// `STR` of the empty entry to the entry of the root.
    UnmapTable,
    /// `STR` to a variable.
    Set(usize, u64),
    /// `LDR` of a variable. Condition: it has this value.
    Reads(usize, u64),
    /// `LDR` of the entry of a page, as of any word. Condition: it has this value.
    ReadsEntry(usize, Entry),
    /// `LDR` through a page. Condition: it uses this entry.
    Finds(usize, Entry),
    /// `LDR` through a page. Condition: it uses another entry, or faults.
    Misses(usize, Entry),
    /// `LDR` through `x`. Condition: it reads this value from the first frame of `x`.
    Loads(u64),
    /// `STR` through a page. Condition: it does not fault.
    Writes(usize),
    /// `LDR` through a page. Condition: it faults, because the entry of the page or of the root is
    /// not present.
    Faults(usize),
    /// `LDR` through a page. Condition: it faults, because the entry of the page is not present.
    FaultsInTable(usize),
    /// The address of the next access depends on the last value that was read.
    Depends,
    /// `DMB SY`.
    Dmb,
    /// `DMB ST`, before a store.
    DmbSt,
    /// `DSB SY`.
    Dsb,
    /// `ISB`.
    Isb,
    /// `SVC`: enters the kernel.
    Svc,
    /// `ERET`: returns from the kernel.
    Eret,
    /// `TLBI VAE1` of a page.
    Tlbi(usize),
    /// `TLBI VAE1IS` of a page.
    TlbiIs(usize),
    /// `TLBI VMALLE1IS`.
    TlbiAllIs,
    /// `TLBI ASIDE1IS`.
    TlbiAsidIs(u16),
    /// Sends an interrupt to a CPU.
    Interrupts(usize),
}

use Instruction::*;

impl Instruction {
    /// Returns `true` if the instruction has a condition.
    const fn is_condition(self) -> bool {
        matches!(
            self,
            Reads(..)
                | ReadsEntry(..)
                | Finds(..)
                | Misses(..)
                | Loads(_)
                | Writes(_)
                | Faults(_)
                | FaultsInTable(_)
        )
    }
}

/// A test, without its verdict.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    pub(crate) start: Start,
    /// The instructions of each CPU.
    pub(crate) threads: &'static [&'static [Instruction]],
    /// The instructions of the interrupt handler.
    pub(crate) handler: &'static [Instruction],
    /// Number of conditions that may fail.
    pub(crate) optional: usize,
}

impl Program {
    /// Returns the number of conditions that must hold.
    fn required(&self) -> usize {
        let all = self.threads.iter().flat_map(|it| it.iter());
        all.filter(|it| it.is_condition()).count() - self.optional
    }
}

impl Scenario for Program {
    fn run(&self, settings: RunSettings<'_>) -> Outcome {
        run(settings, self.threads.len(), |machine| LitmusRun::new(machine, *self))
    }
}

/// A run of a program.
struct LitmusRun {
    program: Program,
    tables: PageTables,
    variables: [CheckWord; 4],
    /// Number of conditions that held.
    held: Cell<usize>,
}

/// State that affects a CPU's next instruction.
struct Context {
    /// The moment from which the CPU knows the address of the next access.
    address_known: Moment,
    /// `true` if earlier stores become visible before the next store.
    is_ordered: bool,
}

impl Context {
    const fn new() -> Self {
        Self { address_known: Moment::BEGINNING, is_ordered: false }
    }
}

impl LitmusRun {
    fn new(machine: &HostileMachine, program: Program) -> Self {
        let tables = PageTables::new(machine);
        machine.as_cpu(0, || match program.start {
            Start::Mapped => {}
            Start::Unmapped | Start::NoTable => {
                tables.store(X, INVALID);
                tables.store(Y, INVALID);
                if program.start == Start::NoTable {
                    tables.unlink_table(X);
                }
            }
        });
        machine.track_in_flight();
        for cpu in 0..program.threads.len() {
            let root = Some(tables.root());
            machine.as_cpu(cpu, || machine.load_root(root, ASID, OnLoad::Keep));
        }
        let names = ["the message", "the request", "the baton", "the first frame of x"];
        let variables = names.map(|name| CheckWord::named(0, || name.to_owned()));
        Self { program, tables, variables, held: Cell::new(0) }
    }

    /// Executes the instructions in order, and counts the conditions that hold until one does not.
    fn execute(&self, machine: &HostileMachine, instructions: &[Instruction]) {
        let mut context = Context::new();
        let mut all_hold = true;
        for &instruction in instructions {
            if instruction.is_condition() {
                all_hold &= self.holds(machine, instruction, &context);
                self.held.update(|count| count + usize::from(all_hold));
                context = Context::new();
            } else {
                self.perform(machine, instruction, &mut context);
            }
        }
        if self.held.get() >= self.program.required() {
            machine.report(Violation::OutcomeReached);
        }
    }

    /// Returns `true` if a condition can hold.
    fn holds(&self, machine: &HostileMachine, asked: Instruction, context: &Context) -> bool {
        let load = |page, is_so: &dyn Fn(Translation) -> bool| {
            machine.step();
            access(machine, page, context, AccessTiming::MaybeEarly, is_so)
        };
        match asked {
            Reads(variable, value) => self.variables[variable].load(Relaxed) == value,
            ReadsEntry(page, entry) => self.tables.entry(page) == entry,
            Finds(page, entry) => load(page, &|found| found == Translation::To(entry)),
            Misses(page, entry) => load(page, &|found| found != Translation::To(entry)),
            Writes(page) => {
                let is_writable =
                    |found| matches!(found, Translation::To(entry) if entry.is_writable());
                machine.step();
                access(machine, page, context, AccessTiming::InOrder, &is_writable)
            }
            Faults(page) => load(page, &Translation::is_fault),
            FaultsInTable(page) => load(page, &|found| found == Translation::FaultsInTable),
            Loads(value) => {
                // Translate and read in one step: between two steps, an invalidation would wait for
                // the access.
                let is_read = self.variables[FRAME].load(Relaxed) == value;
                let goes_there = |found| found == Translation::To(OLD);
                is_read && access(machine, X, context, AccessTiming::InOrder, &goes_there)
            }
            _ => unreachable!("it has no condition"),
        }
    }

    fn perform(&self, machine: &HostileMachine, instruction: Instruction, context: &mut Context) {
        let order = if context.is_ordered { Release } else { Relaxed };
        match instruction {
            Map(page, entry) => self.tables.store_in_order(page, entry, order),
            MapTable => self.tables.link_table(X, order),
            UnmapTable => drop(self.tables.unlink_table(X)),
            Set(variable, value) => self.variables[variable].store(value, order),
            Depends => return context.address_known = machine.moment(),
            DmbSt => return context.is_ordered = true,
            Dmb => fence(),
            Dsb => {
                // Complete invalidations first: an invalidated entry may be found again while a
                // store is still buffered.
                machine.complete_broadcasts();
                fence();
                publish();
            }
            Isb | Svc | Eret => machine.synchronise(),
            Tlbi(page) => machine.issue(Reach::Own, |it| it == page),
            TlbiAllIs => machine.issue(Reach::Everybody, |_| true),
            TlbiIs(page) => machine.issue(Reach::Everybody, |it| it == page),
            TlbiAsidIs(asid) => machine.issue_tag(Reach::Everybody, asid),
            Interrupts(cpu) => machine.send_interrupt(cpu),
            _ => unreachable!("it is a condition"),
        }
        *context = Context::new();
    }
}

/// Performs an access of this CPU to a page, in the current step. Returns `true` if a translation
/// that satisfies `is_so` may be found.
fn access(
    machine: &HostileMachine,
    page: usize,
    context: &Context,
    timing: AccessTiming,
    is_so: &dyn Fn(Translation) -> bool,
) -> bool {
    let found = machine.translations(page, context.address_known, timing);
    let it = found.iter().copied().find(|&found| is_so(found));
    machine.record(|| match it {
        Some(it) => format!("uses page {page}, and finds {it}"),
        None => {
            let found: Vec<_> = found.iter().map(ToString::to_string).collect();
            format!("uses page {page}, and finds {}", found.join(", or "))
        }
    });
    // A fault is an exception, and the handler returns to the instruction after the access.
    if it.is_some_and(Translation::is_fault) {
        machine.synchronise();
    }
    it.is_some()
}

impl System for LitmusRun {
    fn run(&self, cpu: usize) {
        with_machine(|machine| self.execute(machine, self.program.threads[cpu]));
    }
    fn handle_interrupt(&self, _: usize) {
        with_machine(|machine| self.execute(machine, self.program.handler));
    }
}
