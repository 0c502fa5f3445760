//! The three workloads of the study of arm64's broadcasts. A shell starts each once for each CPU,
//! or 256 times, and waits for it. The shell is measured along with them, as `perf stat` did.
//!
//! Nothing is bound to a CPU. Numbers of pages that programs use, and that are copied after a fork,
//! were seen on another machine: see `linked`. The study's had pages of 64 KiB, as kernels of its
//! author's distribution did at the time, or of 4 KiB; it does not say.

use shootdown_program::operation::{
    AreaId, FileId, Mapping, Operation, Permission, ProgramId, Steps, Workload,
};

use super::parts::steps;

use super::linked::{HEAP, Linker, OWN, Object, Program, write_stack};
use super::page_heap::{self, PageHeap, Request};

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
/// `sort`, or something else of its size.
const TOOL: Object = Object {
    text_pages: 25,
    used_pages: 10,
    data_pages: 4,
    sealed_pages: 1,
    read_first_pages: 2,
    zero_pages: 1,
};
/// A library of another's: `libpthread`, `libstdc++`.
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

/// So many pages of its stack and of its heap does `bash` write after it has forked, and so many
/// does the child before `exec`: 20 and 21, as seen.
const PARENT_WRITES: [u64; 2] = [4, 16];
const CHILD_WRITES: [u64; 2] = [4, 17];

fn write_after_fork([stack, heap]: [u64; 2]) -> impl Iterator<Item = Operation> {
    write_stack(stack).chain([Operation::write(HEAP, 0..heap)])
}

fn fork(child: ProgramId) -> impl Iterator<Item = Operation> {
    [Operation::Fork(child)].into_iter().chain(write_after_fork(PARENT_WRITES))
}

/// A shell that starts children in the background, and waits for all.
fn shell(children: impl Iterator<Item = ProgramId> + Clone + 'static, iterations: u64) -> Steps {
    let join = children.clone().map(Operation::Join);
    let children = children.flat_map(fork);
    steps![BASH.begin(), [Operation::Begin], children, join, [Operation::End { iterations }]]
}

/// `for-each-cpu.sh mprotect-threaded 10000`: processes that each change the protection of a page
/// back and forth, and have a second thread, which sleeps. An iteration is there and back.
///
/// The source is not published. Whether the page is written in each iteration was decided before
/// anything was run: it is not, but once before the first, for else there would be nothing to
/// protect. Its name says that it calls `mprotect`; a write would add a page fault, of which nobody
/// else is told. Linux flushes at both calls, for the page is there both times.
#[derive(Clone, Copy, Debug)]
pub struct MprotectThreaded {
    /// How many processes.
    pub copies: u32,
    /// How often each does it.
    pub iterations: u64,
}

impl MprotectThreaded {
    /// As published: one for each of 32 CPUs.
    #[must_use]
    pub const fn published() -> Self {
        Self { copies: 32, iterations: 10_000 }
    }
}

impl Workload for MprotectThreaded {
    fn name(&self) -> String {
        format!("mprotect-threaded-{}", self.copies)
    }

    fn steps(&self, program: ProgramId) -> Steps {
        const STACK: AreaId = AreaId(OWN);
        const PAGE: AreaId = AreaId(OWN + 1);
        /// `pthread_create`: 8 MiB and a guard.
        const STACK_PAGES: u64 = 1 + (8 << 20) / 4096;
        let ProgramId(number) = program;
        if number == 0 {
            let copies = (0..self.copies).map(|copy| ProgramId(1 + 2 * copy));
            return shell(copies, u64::from(self.copies) * self.iterations);
        }
        let last = STACK_PAGES - 1..STACK_PAGES;
        if number.is_multiple_of(2) {
            return Box::new([Operation::write(STACK, last), Operation::Block].into_iter());
        }
        let sleeper = ProgramId(number + 1);
        let begin = write_after_fork(CHILD_WRITES).chain(MPROTECT.exec()).chain([
            Operation::map(STACK, STACK_PAGES, Permission::None, Mapping::Anonymous),
            Operation::protect(STACK, 1..STACK_PAGES, Permission::ReadWrite),
            Operation::write(STACK, last),
            Operation::Spawn(sleeper),
            Operation::map_own(PAGE, 1),
            Operation::write(PAGE, 0..1),
        ]);
        let turns = (0..self.iterations).flat_map(move |_| {
            [Permission::Read, Permission::ReadWrite]
                .map(|permission| Operation::protect(PAGE, 0..1, permission))
        });
        // `exit` would end the other thread, which takes as long.
        steps![begin, turns, [Operation::Wake(sleeper), Operation::Join(sleeper)]]
    }
}

/// `for-each-cpu.sh tcmalloc_large_heap_fragmentation_unittest`, as it was from 2014 to 2020: three
/// times, all sizes from 100 to 500 MiB in steps of 20,000 bytes are allocated, freed at once, and
/// the size of the heap is asked for. An iteration is one of them; there are 62,916 in each
/// process.
///
/// What the heap asks of the kernel for that is what its own algorithm says, which is done again
/// here: in every second iteration, on average, it returns some 350 MiB. The memory that is
/// allocated is never touched, nor, therefore, are there pages to take back: what is written is the
/// map of the heap's pages, 16 KiB for 16 MiB.
#[derive(Clone, Copy, Debug)]
pub struct TcmallocLargeHeap {
    /// How many processes.
    pub copies: u32,
    /// Only each so-many-th size is tried, for a short run: 1 is as published. All but the start
    /// and the end of a process then takes so many times less: what is computed, and how often
    /// spans are returned.
    pub every: u64,
    /// What an iteration computes, most of which is to add up 88 size classes for the heap's size.
    /// Not known, and to be fitted to the time *before* the change.
    pub compute_ns: u64,
}

/// The room that the heap grows into: the test asserts that it does not take more.
const HEAP_BYTES: u64 = 1 << 30;
/// Of the heap's map of pages, one piece for so many of the heap's pages.
const LEAF_PAGES: u64 = 2048;
const LEAF_BYTES: u64 = LEAF_PAGES * 8;
const MIB: u64 = 1 << 20;

impl TcmallocLargeHeap {
    /// How many sizes each process tries.
    #[must_use]
    pub const fn iterations(&self) -> u64 {
        3 * (400 * MIB).div_ceil(self.step_bytes())
    }

    const fn step_bytes(&self) -> u64 {
        20_000 * self.every
    }

    /// What one process does between `main` and its end.
    fn heap(&self) -> Vec<Operation> {
        const ROOM: AreaId = AreaId(OWN);
        const LEAVES: AreaId = AreaId(OWN + 1);
        let pages = |bytes: u64| bytes / 4096;
        // Growing is no flush, and here no new area: what is there may be used from then on.
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
/// It has one thread, for its input is small: `sort` takes more from 128 Ki lines on.
#[derive(Clone, Copy, Debug)]
pub struct SortCompute {
    /// How many shells.
    pub shells: u32,
    /// How often each sorts.
    pub sorts: u64,
    /// What one `sort` computes, with what the kernel computes to fork, start and end it, besides
    /// what memory costs. Not known, and to be fitted to the time *before* the change.
    pub compute_ns: u64,
}

impl SortCompute {
    /// As published, but for what is computed.
    #[must_use]
    pub const fn published(compute_ns: u64) -> Self {
        Self { shells: 256, sorts: 32, compute_ns }
    }

    /// From `main` to the end.
    fn sort(compute_ns: u64) -> impl Iterator<Item = Operation> {
        /// One for each category of the locale, and one of all characters.
        const LOCALE_FILES: u32 = 13;
        const LOCALE: FileId = FileId(1000);
        const BUFFER: AreaId = AreaId(OWN + LOCALE_FILES);
        /// Mapped, and used for 118 KB of input and an entry for each line, at the other end.
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
        // One child after the other has the same number.
        let child = ProgramId(number + 1);
        let turn = move |_| fork(child).chain([Operation::Join(child)]);
        steps![forked, (0..sorts).flat_map(turn)]
    }
}
