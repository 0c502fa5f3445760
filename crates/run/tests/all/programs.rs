//! Programs of other suites that map memory: cases of will-it-scale, and mmtests' `wptlbflush`. The
//! sources assert that a task reads the words that it wrote, or that they are gone; here,
//! the [model](crate::memory_model::model) of contents checks this.

use shootdown_program::operation::{
    Access, AreaId, FileId, Mapping, Operation, Permission, ProgramId, Start, Steps, Workload,
};
use shootdown_run::programs::Tasks;

/// Touches pages in chunks, between which a time slice may end.
fn touch_all(area: AreaId, pages: u64, access: Access) -> impl Iterator<Item = Operation> {
    const CHUNK: u64 = 16;
    (0..pages).step_by(CHUNK as usize).map(move |first| {
        let pages = first..pages.min(first + CHUNK);
        Operation::Touch { area, pages, access }
    })
}

/// Writes a page, discards it, and reads it again.
fn discard_page(area: AreaId, page: u64) -> [Operation; 3] {
    let page = page..page + 1;
    [
        Operation::write(area, page.clone()),
        Operation::discard(area, page.clone()),
        Operation::read(area, page),
    ]
}

/// The operations that a task repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Case {
    /// Writes a page of a privately mapped file, discards it, and reads the file's page.
    TlbFlush1,
    /// Writes an anonymous page, discards it, and reads zeros. Each task has 128 times less memory
    /// at a time than in the other cases.
    TlbFlush2,
    /// Writes a page of a shared file, discards it, and reads the written word.
    TlbFlush3,
    /// Maps anonymous memory, writes all of it, and unmaps it.
    PageFault1,
    /// Maps a private file, writes all of its pages, and unmaps it.
    PageFault2,
    /// Maps a shared file, writes all of its pages, and unmaps it.
    PageFault3,
}

impl Case {
    /// All cases.
    pub(crate) const ALL: [Self; 6] = [
        Self::TlbFlush1,
        Self::TlbFlush2,
        Self::TlbFlush3,
        Self::PageFault1,
        Self::PageFault2,
        Self::PageFault3,
    ];

    /// Returns the name of the case.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::TlbFlush1 => "tlb-flush1",
            Self::TlbFlush2 => "tlb-flush2",
            Self::TlbFlush3 => "tlb-flush3",
            Self::PageFault1 => "page-fault1",
            Self::PageFault2 => "page-fault2",
            Self::PageFault3 => "page-fault3",
        }
    }

    const fn mapping(self, file: FileId) -> Mapping {
        match self {
            Self::TlbFlush2 | Self::PageFault1 => Mapping::Anonymous,
            Self::TlbFlush1 | Self::PageFault2 => Mapping::PrivateFile(file),
            Self::TlbFlush3 | Self::PageFault3 => Mapping::SharedFile(file),
        }
    }

    const fn flushes_each_page(self) -> bool {
        matches!(self, Self::TlbFlush1 | Self::TlbFlush2 | Self::TlbFlush3)
    }
}

/// Tasks that repeat the same operations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WillItScale {
    /// The operations of each task.
    pub(crate) case: Case,
    /// The relation of the tasks.
    pub(crate) tasks: Tasks,
    /// Number of tasks.
    pub(crate) count: u32,
    /// Number of pages that each task maps at a time: 32 768 in will-it-scale, and 256 for
    /// [`Case::TlbFlush2`].
    pub(crate) pages: u64,
    /// Number of times that each task maps the pages.
    pub(crate) rounds: u64,
}

impl Workload for WillItScale {
    fn name(&self) -> String {
        format!("{}-{}-{}", self.case.name(), self.count, self.tasks.name())
    }

    fn steps(&self, program: ProgramId) -> Steps {
        let Self { case, tasks, count, pages, rounds } = *self;
        if program == ProgramId(0) {
            let all = (1..=count).map(ProgramId);
            let start = all.clone().map(move |task| match tasks {
                Tasks::Threads => Operation::Spawn(task),
                Tasks::Processes => Operation::Fork(task),
            });
            let join = all.map(Operation::Join);
            return Box::new([Operation::Begin].into_iter().chain(start).chain(join));
        }
        let area = AreaId(program.0);
        let round = move || {
            let mapping = case.mapping(FileId(program.0));
            let map = Operation::map(area, pages, Permission::ReadWrite, mapping);
            let work: Steps = if case.flushes_each_page() {
                Box::new((0..pages).flat_map(move |page| discard_page(area, page)))
            } else {
                Box::new((0..pages).map(move |page| Operation::write(area, page..page + 1)))
            };
            [map].into_iter().chain(work).chain([Operation::unmap(area, 0..pages)])
        };
        let work = (0..rounds).flat_map(move |_| round());
        Box::new(work.chain([Operation::End { iterations: rounds * pages }]))
    }
}

/// mmtests' `wptlbflush`: a process writes 511 pages and forks children. Each child writes all
/// pages, starts threads that also write them, and ends. Then the parent reads the words that it
/// wrote. Another process reads a file at the same time, and has only the remaining memory for its
/// pages.
///
/// A copy without a flush on some CPU shows as a wrong word, in the parent or in a child.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyOnWrite {
    /// Number of children at a time. Each starts half as many threads.
    pub(crate) children: u32,
    /// Number of times that the children are forked. `wptlbflush` does so 50 000 times.
    pub(crate) rounds: u64,
    /// Number of pages; 511 in `wptlbflush`.
    pub(crate) pages: u64,
    /// Length of the file, in pages.
    pub(crate) file_pages: u64,
}

impl CopyOnWrite {
    const PARENT: ProgramId = ProgramId(1);
    const READER: ProgramId = ProgramId(2);
    const CHILDREN: u32 = 3;

    /// Returns the program of the child with an index. The child's threads have the next numbers.
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
        Box::new(writes.chain(spawn).chain(all.map(Operation::Join)))
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
                Box::new([map].into_iter().chain(touch_all(file, pages, Access::Read)))
            }
            _ => self.child_or_thread(program),
        }
    }
}
