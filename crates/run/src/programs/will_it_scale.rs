//! Cases of will-it-scale that map memory. Each task has memory of its own. The sources assert that
//! a task reads the words that it wrote, or that they are gone; here,
//! [`Contents::Checked`](crate::Contents) checks this.

use crate::programs::Tasks;
use shootdown_program::operation::{
    AreaId, FileId, Mapping, Operation, Permission, ProgramId, Steps, Workload,
};

use super::parts::{discard_page, start_all, steps};

/// The operations that a task repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Case {
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
    pub const ALL: [Self; 6] = [
        Self::TlbFlush1,
        Self::TlbFlush2,
        Self::TlbFlush3,
        Self::PageFault1,
        Self::PageFault2,
        Self::PageFault3,
    ];

    /// Returns the name of the case.
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

/// Tasks that repeat the same operations.
#[derive(Clone, Copy, Debug)]
pub struct WillItScale {
    /// The operations of each task.
    pub case: Case,
    /// The relation of the tasks.
    pub tasks: Tasks,
    /// Number of tasks.
    pub count: u32,
    /// Number of pages that each task maps at a time: 32 768 in will-it-scale, and 256 for
    /// [`Case::TlbFlush2`].
    pub pages: u64,
    /// Number of times that each task maps the pages.
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
                Box::new((0..pages).flat_map(move |page| discard_page(area, page)))
            } else {
                Box::new((0..pages).map(move |page| Operation::write(area, page..page + 1)))
            };
            [map].into_iter().chain(work).chain([Operation::unmap(area, 0..pages)])
        };
        let work = (0..rounds).flat_map(move |_| round());
        steps![work, [Operation::End { iterations: rounds * pages }]]
    }
}
