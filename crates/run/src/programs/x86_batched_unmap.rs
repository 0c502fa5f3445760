//! The benchmark of the study of batched unmapping: readers of files that do not fit in memory.
//! (vm-scalability: `lru-file-mmap-read`.)

use shootdown_program::operation::{
    AreaId, FileId, Mapping, Operation, Permission, ProgramId, Steps, Workload,
};

use super::parts::{chunks, start_all, steps};

/// Processes that each map a file of their own, and read it from beginning to end.
///
/// `usemem --readonly` does this on each CPU, with files of ten times the memory together. Its
/// files are sparse, so that no process waits for a disk; here they are zeros. Every page that is
/// read replaces a page of another process, which runs at that moment, most likely on another CPU.
#[derive(Clone, Copy, Debug)]
pub struct MappedReaders {
    /// Number of processes.
    pub readers: u32,
    /// Length of each file, in pages.
    pub pages: u64,
    /// Time to read a page that is in memory, word by word.
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
        let read = chunks(pages).flat_map(move |chunk| {
            let compute = Operation::Compute(compute_ns * (chunk.end - chunk.start));
            [Operation::read(area, chunk), compute]
        });
        steps![[map], read, [Operation::End { iterations: pages }]]
    }
}
