//! The benchmark of the study of batched unmapping: readers of files that memory does not hold.
//! (vm-scalability: `lru-file-mmap-read`.)

use shootdown_program::operation::{
    AreaId, FileId, Mapping, Operation, Permission, ProgramId, Steps, Workload,
};

use super::parts::{start_all, steps};

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

    fn steps(&self, program: ProgramId) -> Steps {
        let Self { readers, pages, compute_ns } = *self;
        if program == ProgramId(0) {
            return start_all((1..=readers).map(ProgramId), Operation::Fork);
        }
        let area = AreaId(0);
        let file = Mapping::SharedFile(FileId(program.0));
        let map = Operation::map(area, pages, Permission::Read, file);
        let read = (0..pages).step_by(CHUNK as usize).flat_map(move |first| {
            let last = pages.min(first + CHUNK);
            let touch = Operation::read(area, first..last);
            [touch, Operation::Compute(compute_ns * (last - first))]
        });
        steps![[map], read, [Operation::End { iterations: pages }]]
    }
}
