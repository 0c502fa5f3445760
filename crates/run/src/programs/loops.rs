//! Loops like those of will-it-scale: each task does one thing over and over, as a thread of one
//! process or as a process of its own.

use shootdown_sim::Rng;

use shootdown_program::operation::{
    Access, AreaId, Mapping, Operation, Permission, ProgramId, Start, Steps, Workload,
};

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

    fn processes(&self) -> Vec<Start> {
        vec![Start { program: ProgramId(0), cpu: None }]
    }

    fn steps(&self, program: ProgramId) -> Steps {
        if program == ProgramId(0) {
            let (tasks, start) = (1..=self.count, self.tasks);
            let begin = tasks.clone().map(move |task| start.start(ProgramId(task)));
            let end = tasks.map(|task| Operation::Join(ProgramId(task)));
            return Box::new([Operation::Begin].into_iter().chain(begin).chain(end));
        }
        let area = AreaId(program.0);
        let iterations = self.iterations;
        let own_area = |pages| Operation::Map {
            area,
            pages,
            permission: Permission::ReadWrite,
            mapping: Mapping::Anonymous,
        };
        let body: Steps = match self.kind {
            Kind::Madvise => once_and_then(own_area(256), iterations, madvise(area)),
            Kind::PageFault => once_and_then(own_area(64), iterations, page_fault(area)),
            Kind::Mprotect => once_and_then(own_area(1), iterations, mprotect(area)),
            Kind::Mmap => Box::new((0..iterations).flat_map(mmap(area))),
            Kind::ContextSwitch => context_switch(program, iterations),
        };
        let head_start = Rng::stream(self.seed, u64::from(program.0)).below(20_000);
        let begin = [Operation::Compute(head_start)].into_iter();
        Box::new(begin.chain(body).chain([Operation::End { iterations }]))
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
    Box::new([first].into_iter().chain((0..iterations).flat_map(turn)))
}

fn touch(area: AreaId, pages: core::ops::Range<u64>, access: Access) -> Operation {
    Operation::Touch { area, pages, access }
}

fn madvise(area: AreaId) -> impl FnMut(u64) -> [Operation; 3] {
    move |turn| {
        let page = turn % 256;
        let pages = page..page + 1;
        [
            touch(area, pages.clone(), Access::Write),
            Operation::Discard { area, pages: pages.clone() },
            touch(area, pages, Access::Read),
        ]
    }
}

fn page_fault(area: AreaId) -> impl FnMut(u64) -> [Operation; 2] {
    move |_| [touch(area, 0..64, Access::Write), Operation::Discard { area, pages: 0..64 }]
}

fn mprotect(area: AreaId) -> impl FnMut(u64) -> [Operation; 4] {
    move |_| {
        let protect = |permission| Operation::Protect { area, pages: 0..1, permission };
        [
            touch(area, 0..1, Access::Write),
            protect(Permission::Read),
            touch(area, 0..1, Access::Read),
            protect(Permission::ReadWrite),
        ]
    }
}

fn mmap(area: AreaId) -> impl FnMut(u64) -> [Operation; 3] {
    move |_| {
        [
            Operation::Map {
                area,
                pages: 16,
                permission: Permission::ReadWrite,
                mapping: Mapping::Anonymous,
            },
            touch(area, 0..16, Access::Write),
            Operation::Unmap { area, pages: 0..16 },
        ]
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
