//! Programs of litmus tests: what each CPU does, and what it has to see on the way so that the
//! outcome is the one that is asked for.
//!
//! A CPU that sees something else goes on, but the outcome is another one then. So nothing has to
//! branch on what is seen, and of an access it is enough what it *may* find.

use std::cell::Cell;
use std::sync::atomic::Ordering::{Relaxed, Release};

use shootdown::Word;
use shootdown_check::{
    Access, CheckWord, Entry, Keeps, Moment, Outcome, PAGES, PageTables, Reach, Scene, Setting,
    System, Translation, World, Wrong, fence, publish, run, with_world,
};

/// The page `x`.
pub(crate) const X: usize = 0;
/// The page `y`, where that is one.
pub(crate) const Y: usize = 1;
/// Another page, which has a table of its own, and is always mapped in the beginning.
pub(crate) const Z: usize = PAGES;
/// The variable that tells what was done: `y` mostly.
pub(crate) const MESSAGE: usize = 0;
/// That asks for a flush, and says that it was made: `f`.
pub(crate) const REQUEST: usize = 1;
/// That goes from one CPU to the next: `a`.
pub(crate) const BATON: usize = 2;
/// What is in the frame of `x`, by whatever way one gets there: `pa1`.
pub(crate) const FRAME: usize = 3;

/// As `x` is mapped in the beginning, if it is.
pub(crate) const OLD: Entry = Entry::to(X).writable();
/// The same, but that it is not writable.
pub(crate) const READ_ONLY: Entry = Entry::to(X);
/// To another frame.
pub(crate) const NEW: Entry = Entry::to(Z).writable();
/// Nothing.
pub(crate) const INVALID: Entry = Entry::EMPTY;
/// Nothing either, in other words.
pub(crate) const INVALID_TOO: Entry = Entry(0x200);

/// The address space's number in TLBs.
pub(crate) const ASID: u16 = 1;
/// Another's.
pub(crate) const OTHER_ASID: u16 = 2;

/// What there is in the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// All pages are mapped.
    Mapped,
    /// All but `x` and `y`.
    Unmapped,
    /// Nor is there a table for them.
    NoTable,
}

/// What a CPU does; or what it has to see.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Instruction {
    /// `STR` to the entry of a page.
    Map(usize, Entry),
    /// `STR` to the entry of the root: the table of `x`.
    MapTable,
    /// The same: nothing.
    UnmapTable,
    /// `STR` to a variable.
    Set(usize, u64),
    /// `LDR` of a variable: it is to be so.
    Reads(usize, u64),
    /// `LDR` of the entry of a page, as of any word.
    ReadsEntry(usize, Entry),
    /// `LDR` through a page: it is to go where this entry goes.
    Finds(usize, Entry),
    /// The same: it is to go anywhere else, or to fault.
    Misses(usize, Entry),
    /// `LDR` through `x`: what it reads in the first frame of `x` is to be this.
    Loads(u64),
    /// `STR` through a page: it is not to fault.
    Writes(usize),
    /// `LDR` through a page: it is to fault, because the table has nothing there, or the root.
    Faults(usize),
    /// The same, because the table has nothing there.
    FaultsInTable(usize),
    /// The address of the next access depends on what was just read.
    Depends,
    /// `DMB SY`.
    Dmb,
    /// `DMB ST`, before a store.
    DmbSt,
    /// `DSB SY`.
    Dsb,
    /// `ISB`.
    Isb,
    /// `SVC`: to the kernel.
    Svc,
    /// `ERET`: from it.
    Eret,
    /// `TLBI VAE1`, of a page.
    Tlbi(usize),
    /// `TLBI VAE1IS`, of a page.
    TlbiIs(usize),
    /// `TLBI VMALLE1IS`.
    TlbiAllIs,
    /// `TLBI ASIDE1IS`.
    TlbiAsidIs(u16),
    /// An interrupt is sent to a CPU.
    Interrupts(usize),
}

use Instruction::*;

impl Instruction {
    /// Whether it asks for something.
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
    /// What each CPU does.
    pub(crate) threads: &'static [&'static [Instruction]],
    /// What it does when it is interrupted.
    pub(crate) handler: &'static [Instruction],
    /// Of what it asks for, how much may be otherwise.
    pub(crate) spared: usize,
}

impl Program {
    /// How much has to be as it is asked for.
    fn wanted(&self) -> usize {
        let all = self.threads.iter().flat_map(|it| it.iter());
        all.filter(|it| it.is_condition()).count() - self.spared
    }
}

impl Scene for Program {
    fn run(&self, setting: Setting<'_>) -> Outcome {
        run(setting, self.threads.len(), |world| Machine::new(world, *self))
    }
}

/// A program on a machine.
struct Machine {
    program: Program,
    tables: PageTables,
    variables: [CheckWord; 4],
    /// How much of what is asked for came true.
    came_true: Cell<usize>,
}

/// What a CPU's next instructions depend on.
struct Context {
    /// From when on it knows the address of the next access.
    address_known: Moment,
    /// Whether stores before the next one become visible first.
    is_ordered: bool,
}

impl Context {
    const fn new() -> Self {
        Self { address_known: Moment::BEGINNING, is_ordered: false }
    }
}

impl Machine {
    fn new(world: &World, program: Program) -> Self {
        let tables = PageTables::new(world);
        world.as_cpu(0, || match program.start {
            Start::Mapped => {}
            Start::Unmapped | Start::NoTable => {
                tables.store(X, INVALID);
                tables.store(Y, INVALID);
                if program.start == Start::NoTable {
                    tables.unhook(X);
                }
            }
        });
        world.track_in_flight();
        for cpu in 0..program.threads.len() {
            let root = Some(tables.root());
            world.as_cpu(cpu, || world.load_root(root, ASID, Keeps::Everything));
        }
        let names = ["the message", "the request", "the baton", "the first frame of x"];
        let variables = names.map(|name| CheckWord::named(0, || name.to_owned()));
        Self { program, tables, variables, came_true: Cell::new(0) }
    }

    /// Does one after the other, and counts what is as it is asked for, until something is not.
    fn execute(&self, world: &World, instructions: &[Instruction]) {
        let mut context = Context::new();
        let mut is_all_so = true;
        for &instruction in instructions {
            if instruction.is_condition() {
                is_all_so &= self.is_so(world, instruction, &context);
                self.came_true.update(|count| count + usize::from(is_all_so));
                context = Context::new();
            } else {
                self.perform(world, instruction, &mut context);
            }
        }
        if self.came_true.get() >= self.program.wanted() {
            world.wrong(Wrong::Seen);
        }
    }

    /// Whether what is asked for is so.
    fn is_so(&self, world: &World, asked: Instruction, context: &Context) -> bool {
        let load = |page, is_so: &dyn Fn(Translation) -> bool| {
            world.step();
            access(world, page, context, Access::MaybeDone, is_so)
        };
        match asked {
            Reads(variable, value) => self.variables[variable].load(Relaxed) == value,
            ReadsEntry(page, entry) => self.tables.entry(page) == entry,
            Finds(page, entry) => load(page, &|found| found == Translation::To(entry)),
            Misses(page, entry) => load(page, &|found| found != Translation::To(entry)),
            Writes(page) => {
                let is_writable =
                    |found| matches!(found, Translation::To(entry) if entry.is_writable());
                world.step();
                access(world, page, context, Access::Now, &is_writable)
            }
            Faults(page) => load(page, &Translation::is_fault),
            FaultsInTable(page) => load(page, &|found| found == Translation::FaultsInTable),
            Loads(value) => {
                // Found and read in one step: an invalidation would wait between the two.
                let is_read = self.variables[FRAME].load(Relaxed) == value;
                let goes_there = |found| found == Translation::To(OLD);
                is_read && access(world, X, context, Access::Now, &goes_there)
            }
            _ => unreachable!("it asks for nothing"),
        }
    }

    fn perform(&self, world: &World, instruction: Instruction, context: &mut Context) {
        let order = if context.is_ordered { Release } else { Relaxed };
        match instruction {
            Map(page, entry) => self.tables.store_in_order(page, entry, order),
            MapTable => self.tables.hook(X, order),
            UnmapTable => drop(self.tables.unhook(X)),
            Set(variable, value) => self.variables[variable].store(value, order),
            Depends => return context.address_known = world.moment(),
            DmbSt => return context.is_ordered = true,
            Dmb => fence(),
            Dsb => {
                // What is invalidated first may be found again, as long as a store is on its way.
                world.complete_broadcasts();
                fence();
                publish();
            }
            Isb | Svc | Eret => world.synchronise(),
            Tlbi(page) => world.issue(Reach::Own, |it| it == page),
            TlbiAllIs => world.issue(Reach::Everybody, |_| true),
            TlbiIs(page) => world.issue(Reach::Everybody, |it| it == page),
            TlbiAsidIs(asid) => world.issue_tag(Reach::Everybody, asid),
            Interrupts(cpu) => world.ring(cpu),
            _ => unreachable!("it does nothing"),
        }
        *context = Context::new();
    }
}

/// An access of this CPU to a page, in the step that was just made: whether what it finds may be
/// so.
fn access(
    world: &World,
    page: usize,
    context: &Context,
    access: Access,
    is_so: &dyn Fn(Translation) -> bool,
) -> bool {
    let found = world.translations(page, context.address_known, access);
    let it = found.iter().copied().find(|&found| is_so(found));
    world.say(|| match it {
        Some(it) => format!("uses page {page}, and finds {it}"),
        None => {
            let found: Vec<_> = found.iter().map(ToString::to_string).collect();
            format!("uses page {page}, and finds {}", found.join(", or "))
        }
    });
    // A fault is an exception, from which the handler returns behind the access.
    if it.is_some_and(Translation::is_fault) {
        world.synchronise();
    }
    it.is_some()
}

impl System for Machine {
    fn run(&self, cpu: usize) {
        with_world(|world| self.execute(world, self.program.threads[cpu]));
    }
    fn interrupt(&self, _: usize) {
        with_world(|world| self.execute(world, self.program.handler));
    }
}
