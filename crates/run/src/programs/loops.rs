//! Loops like those of will-it-scale: each task repeats a few operations, as a thread of one
//! process or as a process of its own.

use shootdown_program::operation::{AreaId, Operation, Permission, ProgramId, Steps, Workload};

use super::parts::{discard_page, head_start, start_all, steps};

/// The operations that a task repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Writes a page of its own, discards it with `madvise`, and reads it (`tlb_flush2`).
    Madvise,
    /// Maps 16 pages, writes them, and unmaps them.
    Mmap,
    /// Writes a page, makes it read-only, reads it, and makes it writable.
    Mprotect,
    /// Writes 64 fresh pages, and discards them in one call (`page_fault1`).
    PageFault,
    /// Passes a token to its partner, and waits until it returns (`context_switch1`).
    ContextSwitch,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 5] =
        [Self::Madvise, Self::Mmap, Self::Mprotect, Self::PageFault, Self::ContextSwitch];

    /// Returns the name of the kind.
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

/// The relation of the tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tasks {
    /// Threads of one process.
    Threads,
    /// Processes with one thread each.
    Processes,
}

impl Tasks {
    /// Returns the name of the relation.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Processes => "processes",
        }
    }

    /// Returns the operation that starts a task.
    pub(super) const fn start(self, task: ProgramId) -> Operation {
        match self {
            Self::Threads => Operation::Spawn(task),
            Self::Processes => Operation::Fork(task),
        }
    }
}

/// Tasks that repeat the same operations.
#[derive(Clone, Copy, Debug)]
pub struct Loop {
    /// The operations of each task.
    pub kind: Kind,
    /// The relation of the tasks.
    pub tasks: Tasks,
    /// Number of tasks; even for [`Kind::ContextSwitch`].
    pub count: u32,
    /// Number of times that each task repeats the operations.
    pub iterations: u64,
    /// Seed of the delay of up to 20 µs after which each task begins. Which tasks collide depends
    /// on such delays, and a comparison must not depend on one choice of them.
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
        let (area, iterations) = (AreaId(program.0), self.iterations);
        let turns = 0..iterations;
        let body: Steps = match self.kind {
            Kind::Madvise => {
                let turn = move |turn| discard_page(area, turn % 256);
                steps![[Operation::map_own(area, 256)], turns.flat_map(turn)]
            }
            Kind::PageFault => {
                let turn =
                    move |_| [Operation::write(area, 0..64), Operation::discard(area, 0..64)];
                steps![[Operation::map_own(area, 64)], turns.flat_map(turn)]
            }
            Kind::Mprotect => {
                let protect = move |permission| Operation::protect(area, 0..1, permission);
                let turn = move |_| {
                    [
                        Operation::write(area, 0..1),
                        protect(Permission::Read),
                        Operation::read(area, 0..1),
                        protect(Permission::ReadWrite),
                    ]
                };
                steps![[Operation::map_own(area, 1)], turns.flat_map(turn)]
            }
            Kind::Mmap => Box::new(turns.flat_map(move |_| {
                let map = Operation::map_own(area, 16);
                [map, Operation::write(area, 0..16), Operation::unmap(area, 0..16)]
            })),
            Kind::ContextSwitch => {
                // The odd thread of each pair begins.
                let begins = program.0 % 2 == 1;
                let partner = ProgramId(if begins { program.0 + 1 } else { program.0 - 1 });
                Box::new(turns.flat_map(move |_| {
                    let (wake, block) = (Operation::Wake(partner), Operation::Block);
                    if begins { [wake, block] } else { [block, wake] }
                }))
            }
        };
        steps![head_start(self.seed, program), body, [Operation::End { iterations }]]
    }
}
