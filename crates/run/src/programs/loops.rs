//! Loops like those of will-it-scale: each task does one thing over and over, as a thread of one
//! process or as a process of its own.

use shootdown_sim::Rng;

use shootdown_program::operation::{AreaId, Operation, Permission, ProgramId, Steps, Workload};

use super::parts::{start_all, steps};

/// What a task does over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Writes a page of its own and gives it back with `madvise` (`tlb_flush2`).
    Madvise,
    /// Maps 16 pages, writes them, unmaps them.
    Mmap,
    /// Makes a page read-only, reads it, makes it writable, writes it.
    Mprotect,
    /// Writes 64 fresh pages, and gives all of them back at once (`page_fault1`).
    PageFault,
    /// Hands a token to its partner and waits for it (`context_switch1`).
    ContextSwitch,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Madvise, Self::Mmap, Self::Mprotect, Self::PageFault, Self::ContextSwitch];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Madvise => "madvise",
            Self::Mmap => "mmap",
            Self::Mprotect => "mprotect",
            Self::PageFault => "page-fault",
            Self::ContextSwitch => "context-switch",
        }
    }
}

/// What the tasks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tasks {
    /// Threads of one process.
    Threads,
    /// Processes with one thread each.
    Processes,
}

impl Tasks {
    /// Their name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Processes => "processes",
        }
    }

    /// Starts one.
    pub(super) const fn start(self, task: ProgramId) -> Operation {
        match self {
            Self::Threads => Operation::Spawn(task),
            Self::Processes => Operation::Fork(task),
        }
    }
}

/// A number of tasks in a loop.
#[derive(Clone, Copy, Debug)]
pub struct Loop {
    /// What each does.
    pub kind: Kind,
    /// What they are.
    pub tasks: Tasks,
    /// How many there are. In pairs, for [`Kind::ContextSwitch`].
    pub count: u32,
    /// How often each does it.
    pub iterations: u64,
    /// Each task computes for a while first, up to 20 µs, depending on this: who collides with whom
    /// depends on such things, and a comparison should not.
    pub seed: u64,
}

impl Workload for Loop {
    fn name(&self) -> String {
        format!("{}-{}-{}", self.kind.name(), self.count, self.tasks.name())
    }

    fn steps(&self, program: ProgramId) -> Steps {
        if program == ProgramId(0) {
            let tasks = self.tasks;
            return start_all((1..=self.count).map(ProgramId), move |task| tasks.start(task));
        }
        let area = AreaId(program.0);
        let iterations = self.iterations;
        let body: Steps = match self.kind {
            Kind::Madvise => {
                once_and_then(Operation::map_own(area, 256), iterations, madvise(area))
            }
            Kind::PageFault => {
                once_and_then(Operation::map_own(area, 64), iterations, page_fault(area))
            }
            Kind::Mprotect => {
                once_and_then(Operation::map_own(area, 1), iterations, mprotect(area))
            }
            Kind::Mmap => Box::new((0..iterations).flat_map(mmap(area))),
            Kind::ContextSwitch => context_switch(program, iterations),
        };
        let head_start = Rng::stream(self.seed, u64::from(program.0)).below(20_000);
        steps![[Operation::Compute(head_start)], body, [Operation::End { iterations }]]
    }
}

fn once_and_then<I>(
    first: Operation,
    iterations: u64,
    turn: impl FnMut(u64) -> I + 'static,
) -> Steps
where
    I: IntoIterator<Item = Operation> + 'static,
{
    steps![[first], (0..iterations).flat_map(turn)]
}

fn madvise(area: AreaId) -> impl FnMut(u64) -> [Operation; 3] {
    move |turn| {
        let page = turn % 256;
        let pages = page..page + 1;
        [
            Operation::write(area, pages.clone()),
            Operation::discard(area, pages.clone()),
            Operation::read(area, pages),
        ]
    }
}

fn page_fault(area: AreaId) -> impl FnMut(u64) -> [Operation; 2] {
    move |_| [Operation::write(area, 0..64), Operation::discard(area, 0..64)]
}

fn mprotect(area: AreaId) -> impl FnMut(u64) -> [Operation; 4] {
    move |_| {
        let protect = |permission| Operation::protect(area, 0..1, permission);
        [
            Operation::write(area, 0..1),
            protect(Permission::Read),
            Operation::read(area, 0..1),
            protect(Permission::ReadWrite),
        ]
    }
}

fn mmap(area: AreaId) -> impl FnMut(u64) -> [Operation; 3] {
    move |_| {
        [Operation::map_own(area, 16), Operation::write(area, 0..16), Operation::unmap(area, 0..16)]
    }
}

/// The odd one of each pair begins.
fn context_switch(program: ProgramId, iterations: u64) -> Steps {
    let begins = program.0 % 2 == 1;
    let partner = ProgramId(if begins { program.0 + 1 } else { program.0 - 1 });
    let turn = move |_| {
        let (wake, block) = (Operation::Wake(partner), Operation::Block);
        if begins { [wake, block] } else { [block, wake] }
    };
    Box::new((0..iterations).flat_map(turn))
}
