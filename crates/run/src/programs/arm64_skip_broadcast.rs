//! The three workloads of the study of arm64's broadcasts. A shell starts each program once per
//! CPU, or 256 times, and waits for all. The measurement includes the shell, as with `perf stat` in
//! the study.
//!
//! No thread is bound to a CPU. The numbers of pages that programs use, and that are copied after a
//! fork, were observed on another machine: see `linked`. The study's machine had pages of 64 KiB,
//! as kernels of its author's distribution did at the time, or of 4 KiB; the study does not state
//! which.

use shootdown_program::operation::{
    AreaId, FileId, Mapping, Operation, Permission, ProgramId, Steps, Workload,
};

use super::linked::{Linker, OWN, Object, Program, fork, write_after_fork};
use super::page_heap::{self, PageHeap, Request};
use super::parts::{measured, steps};

/// `libc.so.6`.
const LIBC: Object = Object {
    text_pages: 476,
    used_pages: 16,
    data_pages: 6,
    sealed_pages: 4,
    read_first_pages: 1,
    zero_pages: 13,
};
/// `ld-linux.so`.
const LDSO: Object = Object {
    text_pages: 50,
    used_pages: 6,
    data_pages: 4,
    sealed_pages: 2,
    read_first_pages: 1,
    zero_pages: 0,
};
/// `sort`, or another tool of its size.
const TOOL: Object = Object {
    text_pages: 25,
    used_pages: 10,
    data_pages: 4,
    sealed_pages: 1,
    read_first_pages: 2,
    zero_pages: 1,
};
/// A library of the C++ or the C runtime, such as `libpthread` or `libstdc++`.
const LIBRARY: Object = Object { zero_pages: 1, ..TOOL };

const BASH: Program = Program {
    file: 0,
    objects: &[Object { text_pages: 280, used_pages: 40, ..TOOL }, LDSO, LIBC],
    linker: Linker::Glibc,
    heap_pages: 40,
};
const SORT: Program =
    Program { file: 100, objects: &[TOOL, LDSO, LIBC], linker: Linker::Glibc, heap_pages: 12 };
const MPROTECT: Program = Program {
    file: 200,
    objects: &[TOOL, LDSO, LIBC, LIBRARY],
    linker: Linker::Glibc,
    heap_pages: 2,
};
const TCMALLOC: Program = Program {
    file: 300,
    objects: &[TOOL, LDSO, LIBC, LIBRARY, LIBRARY, LIBRARY, LIBRARY, LIBRARY],
    linker: Linker::Glibc,
    heap_pages: 12,
};

/// Numbers of pages of its stack and of its heap that `bash` writes after it has forked, and that
/// its child writes before `exec`: 20 and 21, as observed.
const PARENT_WRITES: [u64; 2] = [4, 16];
const CHILD_WRITES: [u64; 2] = [4, 17];

/// A shell that starts children in the background, and waits for all of them.
fn shell(children: impl Iterator<Item = ProgramId> + Clone + 'static, iterations: u64) -> Steps {
    let join = children.clone().map(Operation::Join);
    let children = children.flat_map(|child| fork(child, PARENT_WRITES));
    measured(BASH.begin(), children.chain(join), iterations)
}

/// Computes, if that takes any time.
fn compute(ns: u64) -> Option<Operation> {
    (ns != 0).then_some(Operation::Compute(ns))
}

/// `for-each-cpu.sh mprotect-threaded 10000`: processes that each change the protection of a page
/// back and forth, and have a second thread, which sleeps. An iteration is both changes.
///
/// The source is not published. It was decided before the first run that the page is written once,
/// before the first iteration. Without any write there would be nothing to protect. The other
/// possibility is a write in each iteration, between the calls ([`Writes`]). Linux flushes in both
/// calls, because the page is present both times.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct MprotectThreaded {
    /// Number of processes.
    pub copies: u32,
    /// Number of iterations of each process.
    pub iterations: u64,
    /// The iterations that write the page.
    pub writes: Writes,
    /// Time that the shell computes before it starts each process.
    pub fork_compute_ns: u64,
    /// Time that each process computes before `main`.
    pub start_compute_ns: u64,
}

/// The iterations that write the page whose protection changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// The page is written once, before the first iteration.
    Once,
    /// The page is written in each iteration, when it may be written again.
    Always,
}

impl MprotectThreaded {
    /// Processes whose start costs only the work on their memory.
    pub const fn new(copies: u32, iterations: u64) -> Self {
        let writes = Writes::Once;
        Self { copies, iterations, writes, fork_compute_ns: 0, start_compute_ns: 0 }
    }

    /// The published benchmark: one process for each of 32 CPUs.
    pub const fn published() -> Self {
        Self::new(32, 10_000)
    }
}

impl Workload for MprotectThreaded {
    fn name(&self) -> String {
        format!("mprotect-threaded-{}", self.copies)
    }

    fn steps(&self, program: ProgramId) -> Steps {
        const STACK: AreaId = AreaId(OWN);
        const PAGE: AreaId = AreaId(OWN + 1);
        /// The stack of `pthread_create`: 8 MiB and a guard page.
        const STACK_PAGES: u64 = 1 + (8 << 20) / 4096;
        let ProgramId(number) = program;
        if number == 0 {
            let copies = (0..self.copies).map(|copy| ProgramId(1 + 2 * copy));
            let fork_compute_ns = self.fork_compute_ns;
            let start =
                move |copy| compute(fork_compute_ns).into_iter().chain(fork(copy, PARENT_WRITES));
            let join = copies.clone().map(Operation::Join);
            let iterations = u64::from(self.copies) * self.iterations;
            return measured(BASH.begin(), copies.flat_map(start).chain(join), iterations);
        }
        let last = STACK_PAGES - 1..STACK_PAGES;
        if number.is_multiple_of(2) {
            return Box::new([Operation::write(STACK, last), Operation::Block].into_iter());
        }
        let sleeper = ProgramId(number + 1);
        let exec = write_after_fork(CHILD_WRITES).chain(MPROTECT.exec());
        let begin = exec.chain(compute(self.start_compute_ns)).chain([
            Operation::map(STACK, STACK_PAGES, Permission::None, Mapping::Anonymous),
            Operation::protect(STACK, 1..STACK_PAGES, Permission::ReadWrite),
            Operation::write(STACK, last),
            Operation::Spawn(sleeper),
            Operation::map_own(PAGE, 1),
            Operation::write(PAGE, 0..1),
        ]);
        let writes = self.writes;
        let turns = (0..self.iterations).flat_map(move |_| {
            let protect = [Permission::Read, Permission::ReadWrite]
                .map(|permission| Operation::protect(PAGE, 0..1, permission));
            let write = (writes == Writes::Always).then(|| Operation::write(PAGE, 0..1));
            protect.into_iter().chain(write)
        });
        // `exit` would end the other thread, which takes the same time.
        steps![begin, turns, [Operation::Wake(sleeper), Operation::Join(sleeper)]]
    }
}

/// `for-each-cpu.sh tcmalloc_large_heap_fragmentation_unittest`, as it was from 2014 to 2020. Three
/// times, the test allocates all sizes from 100 to 500 MiB in steps of 20,000 bytes, frees each
/// allocation, and queries the size of the heap. An iteration is one size; each process has 62,916.
///
/// The heap's system calls follow from its own algorithm, which this workload repeats: in every
/// second iteration, on average, the heap returns some 350 MiB. The allocated memory is never
/// touched, so that the kernel has no pages to free. The heap writes only its map of pages, 16 KiB
/// for 16 MiB.
#[derive(Clone, Copy, Debug)]
pub struct TcmallocLargeHeap {
    /// Number of processes.
    pub copies: u32,
    /// Only one size in this number is tried, for a short run; 1 is the published benchmark. All
    /// work except the start and the end of a process is divided by this number: the computing
    /// time, and the number of spans that are returned.
    pub every: u64,
    /// Time that an iteration computes, mostly to add up 88 size classes for the heap's size. The
    /// time is unknown. Fit it to the published time *before* the change.
    pub compute_ns: u64,
}

/// The room that the heap grows into. The test asserts that the heap does not exceed it.
const HEAP_BYTES: u64 = 1 << 30;
/// Number of the heap's pages that a leaf of the heap's map describes.
const LEAF_PAGES: u64 = 2048;
const LEAF_BYTES: u64 = LEAF_PAGES * 8;
const MIB: u64 = 1 << 20;

impl TcmallocLargeHeap {
    /// Returns the number of sizes that each process tries.
    #[must_use]
    pub const fn iterations(&self) -> u64 {
        3 * (400 * MIB).div_ceil(self.step_bytes())
    }

    const fn step_bytes(&self) -> u64 {
        20_000 * self.every
    }

    /// Returns the steps of a process between `main` and its end.
    fn heap(&self) -> Vec<Operation> {
        const ROOM: AreaId = AreaId(OWN);
        const LEAVES: AreaId = AreaId(OWN + 1);
        let pages = |bytes: u64| bytes / 4096;
        // `sbrk` does not flush. Here it makes a part of an existing area accessible.
        let leaves = HEAP_BYTES / page_heap::PAGE_BYTES / LEAF_PAGES + 1;
        let mut steps = vec![
            Operation::map(ROOM, pages(HEAP_BYTES), Permission::None, Mapping::Anonymous),
            Operation::map_own(LEAVES, pages(leaves * LEAF_BYTES)),
        ];
        let mut heap = PageHeap::new();
        let (mut leaves, mut quiet) = (0, 0);
        let sizes = (100 * MIB..500 * MIB).step_by(self.step_bytes() as usize);
        for bytes in (0..3).flat_map(|_| sizes.clone()) {
            let span = heap.allocate(bytes.div_ceil(page_heap::PAGE_BYTES));
            heap.free(span);
            let requests = heap.take_requests();
            if !requests.is_empty() {
                steps.push(Operation::Compute(quiet * self.compute_ns));
                quiet = 0;
            }
            for request in requests {
                let in_pages = |it: core::ops::Range<u64>| {
                    pages(it.start * page_heap::PAGE_BYTES)..pages(it.end * page_heap::PAGE_BYTES)
                };
                match request {
                    Request::Grow(grown) => {
                        let needed = (grown.end + 1).div_ceil(LEAF_PAGES);
                        let new = pages(leaves * LEAF_BYTES)..pages(needed * LEAF_BYTES);
                        let grown = in_pages(grown);
                        let grow = Operation::protect(ROOM, grown, Permission::ReadWrite);
                        steps.extend([grow, Operation::write(LEAVES, new)]);
                        leaves = needed;
                    }
                    Request::Return(span) => {
                        steps.push(Operation::discard(ROOM, in_pages(span)));
                    }
                }
            }
            quiet += 1;
        }
        steps.push(Operation::Compute(quiet * self.compute_ns));
        steps
    }
}

impl Workload for TcmallocLargeHeap {
    fn name(&self) -> String {
        format!("tcmalloc-large-heap-{}", self.copies)
    }

    fn steps(&self, program: ProgramId) -> Steps {
        if program == ProgramId(0) {
            let copies = (1..=self.copies).map(ProgramId);
            return shell(copies, u64::from(self.copies) * self.iterations());
        }
        steps![write_after_fork(CHILD_WRITES), TCMALLOC.exec(), self.heap()]
    }
}

/// `sort-compute`: shells in the background that each run `sort </usr/bin/sort >/dev/null` 32
/// times, one after the other. An iteration is one `sort`.
///
/// `sort` has one thread, because its input is small: it starts more threads from 128 Ki lines on.
#[derive(Clone, Copy, Debug)]
pub struct SortCompute {
    /// Number of shells.
    pub shells: u32,
    /// Number of sorts of each shell.
    pub sorts: u64,
    /// Time that one `sort` computes, with the kernel's time to fork, start and end it, and without
    /// the costs of memory. The time is unknown. Fit it to the published time *before* the change.
    pub compute_ns: u64,
}

impl SortCompute {
    /// The published benchmark, except for the computing time.
    #[must_use]
    pub const fn published(compute_ns: u64) -> Self {
        Self { shells: 256, sorts: 32, compute_ns }
    }

    /// Returns the steps from `main` to the end.
    fn sort(compute_ns: u64) -> impl Iterator<Item = Operation> {
        /// One file for each category of the locale, and one of all characters.
        const LOCALE_FILES: u32 = 13;
        const LOCALE: FileId = FileId(1000);
        const BUFFER: AreaId = AreaId(OWN + LOCALE_FILES);
        /// The buffer is mapped as a whole. `sort` uses its beginning for 118 KB of input, and its
        /// end for an entry of each line.
        const BUFFER_PAGES: u64 = 1880;
        const INPUT_PAGES: u64 = 29;
        const LINES_PAGES: u64 = 4;
        const OUTPUTS: u32 = 30;
        let locale = (0..LOCALE_FILES).flat_map(|index| {
            let (area, file) = (AreaId(OWN + index), FileId(LOCALE.0 + index));
            [
                Operation::SystemCall,
                Operation::map(area, 1, Permission::Read, Mapping::PrivateFile(file)),
                Operation::read(area, 0..1),
            ]
        });
        let read = [
            Operation::map_own(BUFFER, BUFFER_PAGES),
            Operation::SystemCall,
            Operation::write(BUFFER, 0..INPUT_PAGES),
            Operation::write(BUFFER, BUFFER_PAGES - LINES_PAGES..BUFFER_PAGES),
            Operation::Compute(compute_ns),
        ];
        locale.chain(read).chain((0..OUTPUTS).map(|_| Operation::SystemCall))
    }
}

impl Workload for SortCompute {
    fn name(&self) -> String {
        format!("sort-compute-{}", self.shells)
    }

    fn steps(&self, program: ProgramId) -> Steps {
        let ProgramId(number) = program;
        let Self { shells, sorts, compute_ns } = *self;
        if number == 0 {
            let all = (0..shells).map(|shell| ProgramId(1 + 2 * shell));
            return shell(all, u64::from(shells) * sorts);
        }
        let forked = write_after_fork(CHILD_WRITES);
        if number.is_multiple_of(2) {
            return steps![forked, SORT.exec(), Self::sort(compute_ns)];
        }
        // The children exist one after the other, and have the same number.
        let child = ProgramId(number + 1);
        let turn = move |_| fork(child, PARENT_WRITES).chain([Operation::Join(child)]);
        steps![forked, (0..sorts).flat_map(turn)]
    }
}
