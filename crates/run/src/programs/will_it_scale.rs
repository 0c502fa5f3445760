//! Cases of will-it-scale that map memory, as its sources have them. Each task has memory of its
//! own; that what it reads is what it wrote, or that it is gone, is for
//! [`Contents::Checked`](crate::Contents) to see, where the sources assert it.

use crate::programs::Tasks;
use shootdown_program::operation::{
    Access, AreaId, FileId, Mapping, Operation, Permission, ProgramId, Start, Steps, Workload,
};

/// What a task does over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Case {
    /// Writes a page of a privately mapped file, discards it, and reads the file's again.
    TlbFlush1,
    /// The same with memory of its own: zeros come back. (128 times less of it at a time.)
    TlbFlush2,
    /// The same with a shared file: what was written comes back.
    TlbFlush3,
    /// Maps memory of its own, writes all of it, and unmaps it.
    PageFault1,
    /// The same with a private file.
    PageFault2,
    /// The same with a shared file.
    PageFault3,
}

impl Case {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::TlbFlush1,
        Self::TlbFlush2,
        Self::TlbFlush3,
        Self::PageFault1,
        Self::PageFault2,
        Self::PageFault3,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
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

/// A number of tasks in a loop.
#[derive(Clone, Copy, Debug)]
pub struct WillItScale {
    /// What each does.
    pub case: Case,
    /// What they are.
    pub tasks: Tasks,
    /// How many there are.
    pub count: u32,
    /// How many pages each maps at a time: 32 768, and 256 for [`Case::TlbFlush2`].
    pub pages: u64,
    /// How often.
    pub rounds: u64,
}

impl Workload for WillItScale {
    fn name(&self) -> String {
        format!("{}-{}-{}", self.case.name(), self.count, self.tasks.name())
    }

    fn processes(&self) -> Vec<Start> {
        vec![Start { program: ProgramId(0), cpu: None }]
    }

    fn steps(&self, program: ProgramId) -> Steps {
        let Self { case, tasks, count, pages, rounds } = *self;
        if program == ProgramId(0) {
            let all = (1..=count).map(ProgramId);
            let start = all.clone().map(move |task| tasks.start(task));
            let join = all.map(Operation::Join);
            return Box::new([Operation::Begin].into_iter().chain(start).chain(join));
        }
        let area = AreaId(program.0);
        let touch = move |pages, access| Operation::Touch { area, pages, access };
        let round = move || {
            let map = Operation::Map {
                area,
                pages,
                permission: Permission::ReadWrite,
                mapping: case.mapping(FileId(program.0)),
            };
            let work: Steps = if case.flushes_each_page() {
                Box::new((0..pages).flat_map(move |page| {
                    let page = page..page + 1;
                    let discard = Operation::Discard { area, pages: page.clone() };
                    [touch(page.clone(), Access::Write), discard, touch(page, Access::Read)]
                }))
            } else {
                Box::new((0..pages).map(move |page| touch(page..page + 1, Access::Write)))
            };
            [map].into_iter().chain(work).chain([Operation::Unmap { area, pages: 0..pages }])
        };
        let work = (0..rounds).flat_map(move |_| round());
        Box::new(work.chain([Operation::End { iterations: rounds * pages }]))
    }
}
