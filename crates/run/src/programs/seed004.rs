//! The benchmark of seed 004: readers of files that memory does not hold. (vm-scalability:
//! `lru-file-mmap-read`.)

use shootdown_program::operation::{
    Access, AreaId, FileId, Mapping, Operation, Permission, ProgramId, Start, Steps, Workload,
};

/// So many pages are read between two looks at whether the timeslice is over.
const CHUNK: u64 = 16;

/// Processes that each map a file of their own, and read it from beginning to end.
///
/// As `usemem --readonly` does for each CPU, with files of ten times the memory together. They are
/// sparse there, so that no disk is waited for, and zeros here. Every page that is read takes the
/// place of another, whose reader runs at that moment, most likely on another CPU.
#[derive(Clone, Copy, Debug)]
pub struct MappedReaders {
    /// How many.
    pub readers: u32,
    /// How long each file is, in pages.
    pub pages: u64,
    /// How long it takes to read a page that is there, word by word.
    pub compute_ns: u64,
}

impl Workload for MappedReaders {
    fn name(&self) -> String {
        format!("lru-file-mmap-read-{}", self.readers)
    }

    fn processes(&self) -> Vec<Start> {
        vec![Start { program: ProgramId(0), cpu: None }]
    }

    fn steps(&self, program: ProgramId) -> Steps {
        let Self { readers, pages, compute_ns } = *self;
        if program == ProgramId(0) {
            let all = (1..=readers).map(ProgramId);
            let start = all.clone().map(Operation::Fork);
            let join = all.map(Operation::Join);
            return Box::new([Operation::Begin].into_iter().chain(start).chain(join));
        }
        let area = AreaId(0);
        let map = Operation::Map {
            area,
            pages,
            permission: Permission::Read,
            mapping: Mapping::SharedFile(FileId(program.0)),
        };
        let read = (0..pages).step_by(CHUNK as usize).flat_map(move |first| {
            let last = pages.min(first + CHUNK);
            let touch = Operation::Touch { area, pages: first..last, access: Access::Read };
            [touch, Operation::Compute(compute_ns * (last - first))]
        });
        let end = Operation::End { iterations: pages };
        Box::new([map].into_iter().chain(read).chain([end]))
    }
}
