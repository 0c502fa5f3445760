//! Cases of will-it-scale that map memory, as its sources have them. Each task has memory of its
//! own; that what it reads is what it wrote, or that it is gone, is for
//! [`Contents::Checked`](crate::Contents) to see, where the sources assert it.

use crate::programs::Tasks;
use shootdown_program::operation::{
    AreaId, FileId, Mapping, Operation, Permission, ProgramId, Steps, Workload,
};

use super::parts::{start_all, steps};

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

    fn steps(&self, program: ProgramId) -> Steps {
        let Self { case, tasks, count, pages, rounds } = *self;
        if program == ProgramId(0) {
            return start_all((1..=count).map(ProgramId), move |task| tasks.start(task));
        }
        let area = AreaId(program.0);
        let round = move || {
            let mapping = case.mapping(FileId(program.0));
            let map = Operation::map(area, pages, Permission::ReadWrite, mapping);
            let work: Steps = if case.flushes_each_page() {
                Box::new((0..pages).flat_map(move |page| {
                    let page = page..page + 1;
                    let discard = Operation::discard(area, page.clone());
                    [Operation::write(area, page.clone()), discard, Operation::read(area, page)]
                }))
            } else {
                Box::new((0..pages).map(move |page| Operation::write(area, page..page + 1)))
            };
            [map].into_iter().chain(work).chain([Operation::unmap(area, 0..pages)])
        };
        let work = (0..rounds).flat_map(move |_| round());
        steps![work, [Operation::End { iterations: rounds * pages }]]
    }
}
