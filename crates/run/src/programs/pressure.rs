//! Memory that is short, or in the wrong place: copies on write for which others have to give up
//! pages, and pages that move between nodes while they are used.

use shootdown_sim::Rng;

use shootdown_program::operation::{
    Access, AreaId, FileId, Mapping, Operation, Permission, ProgramId, Start, Steps, Workload,
};

use super::parts::steps;

/// So many pages are used between two looks at whether the timeslice is over.
const CHUNK: u64 = 16;

fn touch_all(area: AreaId, pages: u64, access: Access) -> impl Iterator<Item = Operation> {
    (0..pages).step_by(CHUNK as usize).map(move |first| Operation::Touch {
        area,
        pages: first..pages.min(first + CHUNK),
        access,
    })
}

/// mmtests' `wptlbflush`: a process writes 511 pages and forks children, each of which writes all
/// of them, starts threads that do, too, and ends; then the first reads what it had written. Beside
/// them another process reads a file, for whose pages there is only the memory that is left.
///
/// A copy that some CPU did not learn of shows as a wrong word, in the parent or in a child.
#[derive(Clone, Copy, Debug)]
pub struct CopyOnWrite {
    /// Children at a time; each starts half as many threads.
    pub children: u32,
    /// How often they are forked: 50 000 times.
    pub rounds: u64,
    /// 511.
    pub pages: u64,
    /// How long the file is.
    pub file_pages: u64,
}

impl CopyOnWrite {
    const PARENT: ProgramId = ProgramId(1);
    const READER: ProgramId = ProgramId(2);
    const CHILDREN: u32 = 3;

    /// The process that is the `index`th child, whose threads come after it.
    fn child(&self, index: u32) -> ProgramId {
        ProgramId(Self::CHILDREN + index * (1 + self.children / 2))
    }

    fn parent(self) -> impl Iterator<Item = Operation> {
        let Self { children, rounds, pages, .. } = self;
        let area = AreaId(0);
        let round = move |_| {
            let all = (0..children).map(move |index| self.child(index));
            let fork = all.clone().map(Operation::Fork);
            let join = all.map(Operation::Join);
            let verify = touch_all(area, pages, Access::Read);
            touch_all(area, pages, Access::Write).chain(fork).chain(join).chain(verify)
        };
        [Operation::map_own(area, pages), Operation::Begin]
            .into_iter()
            .chain((0..rounds).flat_map(round))
            .chain([Operation::End { iterations: rounds }])
    }

    fn child_or_thread(self, program: ProgramId) -> Steps {
        let writes = touch_all(AreaId(0), self.pages, Access::Write);
        let threads = self.children / 2;
        if !(program.0 - Self::CHILDREN).is_multiple_of(1 + threads) {
            return Box::new(writes);
        }
        let all = (1..=threads).map(move |thread| ProgramId(program.0 + thread));
        let spawn = all.clone().map(Operation::Spawn);
        steps![writes, spawn, all.map(Operation::Join)]
    }
}

impl Workload for CopyOnWrite {
    fn name(&self) -> String {
        format!("copy-on-write-{}", self.children)
    }

    fn processes(&self) -> Vec<Start> {
        [Self::PARENT, Self::READER].map(|program| Start { program, cpu: None }).into()
    }

    fn steps(&self, program: ProgramId) -> Steps {
        let file = AreaId(1);
        match program {
            Self::PARENT => Box::new(self.parent()),
            Self::READER => {
                let (pages, mapping) = (self.file_pages, Mapping::SharedFile(FileId(0)));
                let map = Operation::map(file, pages, Permission::ReadWrite, mapping);
                steps![[map], touch_all(file, pages, Access::Read)]
            }
            _ => self.child_or_thread(program),
        }
    }
}

/// Threads that write to memory of their process while another moves it from node to node
/// (`move_pages`, or what Linux does of itself as *automatic NUMA balancing*).
///
/// Each of the threads ends what is measured, as does the process that moves: where the threads go
/// on for longer, [`Outcome::time`](crate::Outcome) is theirs, and [`time_range`] is how much
/// sooner the moves were done.
///
/// [`time_range`]: crate::Outcome::time_range
#[derive(Clone, Copy, Debug)]
pub struct PageMigration {
    /// How many write.
    pub threads: u32,
    /// How many pages each of them has.
    pub pages: u64,
    /// How often all are moved.
    pub rounds: u64,
    /// Among so many nodes.
    pub nodes: usize,
    /// How often each thread writes to all of its pages.
    pub laps: u64,
    /// How long a thread computes for each page that it writes.
    pub compute_ns: u64,
    /// How long a thread sleeps after it has written to all of its pages; 0 for not at all.
    pub sleep_ns: u64,
    /// As of [`Loop`](super::Loop): decides for how long each thread computes first.
    pub seed: u64,
}

impl PageMigration {
    const MOVER: ProgramId = ProgramId(0);
}

impl Workload for PageMigration {
    fn name(&self) -> String {
        let sleeping = if self.sleep_ns == 0 { "" } else { "-sleeping" };
        format!("page-migration-{}{sleeping}", self.threads)
    }

    fn processes(&self) -> Vec<Start> {
        vec![Start { program: Self::MOVER, cpu: None }]
    }

    fn steps(&self, program: ProgramId) -> Steps {
        let Self { threads, pages, rounds, nodes, laps, compute_ns, sleep_ns, seed } = *self;
        let all = (1..=threads).map(ProgramId);
        if program == Self::MOVER {
            let area = |writer: ProgramId| AreaId(writer.0);
            let maps = all.clone().map(move |writer| Operation::map_own(area(writer), pages));
            let fill =
                all.clone().flat_map(move |writer| touch_all(area(writer), pages, Access::Write));
            let spawn = all.clone().map(Operation::Spawn);
            let moves = {
                let all = all.clone();
                (0..rounds).flat_map(move |round| {
                    let node = (round as usize + 1) % nodes;
                    all.clone().map(move |writer| Operation::MovePages {
                        area: area(writer),
                        pages: 0..pages,
                        node,
                    })
                })
            };
            let end = Operation::End { iterations: rounds * pages * u64::from(threads) };
            let join = all.map(Operation::Join);
            return steps![maps, fill, spawn, [Operation::Begin], moves, [end], join];
        }
        let area = AreaId(program.0);
        let lap = move |_| {
            touch_all(area, pages, Access::Write)
                .flat_map(move |touch| [touch, Operation::Compute(CHUNK * compute_ns)])
                .chain((sleep_ns != 0).then_some(Operation::Sleep(sleep_ns)))
        };
        let head_start = Rng::stream(seed, u64::from(program.0)).below(20_000);
        let laps = (0..laps).flat_map(lap);
        steps![[Operation::Compute(head_start)], laps, [Operation::End { iterations: 0 }]]
    }
}
