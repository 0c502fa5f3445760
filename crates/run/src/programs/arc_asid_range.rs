//! The workloads of the study of ARC's ASIDs: `ls` on an ARC at 80 MHz, and the rows of LMbench
//! that concern memory.
//!
//! A page of the model stands for one page of that machine, which has 8 KiB. The operations of
//! LMbench are those of its source (`lat_proc.c`, `lat_mmap.c`, `lat_pagefault.c`, `lat_sig.c`).
//! The sizes of the programs are not published: they are busybox and uClibc of that time, built for
//! ARC, with assumed sizes.

use shootdown_sim::Rng;

use shootdown_program::operation::{
    AreaId, FileId, Mapping, Operation, Permission, ProgramId, Start, Steps, Workload,
};

use super::linked::{HEAP, Linker, OWN, Object, Program, fork, write_after_fork, write_stack};
use super::parts::{measured, on_cpu_0, steps};

/// Assumed: 800 KiB, of which a simple command uses 160 KiB.
const BUSYBOX: Object =
    Object { text_pages: 100, used_pages: 20, data_pages: 2, zero_pages: 2, ..SMALL };
/// Assumed: 24 KiB.
const LDSO: Object = Object { text_pages: 3, used_pages: 3, zero_pages: 0, ..SMALL };
/// Assumed: 384 KiB.
const LIBC: Object = Object { text_pages: 48, used_pages: 12, data_pages: 2, ..SMALL };
/// `libm`, `libcrypt`, or a program that prints a greeting. Assumed: 64 KiB.
const SMALL: Object = Object {
    text_pages: 8,
    used_pages: 2,
    data_pages: 1,
    sealed_pages: 0,
    read_first_pages: 1,
    zero_pages: 1,
};

/// A shell and its commands, which are one file.
const LINKED: [Object; 5] = [BUSYBOX, LDSO, LIBC, SMALL, SMALL];
const SHELL: Program =
    Program { file: 0, objects: &LINKED, linker: Linker::Uclibc, heap_pages: 12 };
const HELLO: Program =
    Program { file: 100, objects: &[SMALL, LDSO, LIBC], linker: Linker::Uclibc, heap_pages: 2 };
/// A program of LMbench.
const BENCH: Program = Program { file: 200, heap_pages: 6, ..HELLO };

/// Numbers of pages of its stack and of its heap that a process writes after it has forked, and
/// that its child writes. Under Linux 6.18 on x86-64, with `fork` and `exit` in a loop, the parent
/// writes 4 pages and the child 13.
const PARENT_WRITES: [u64; 2] = [2, 2];
const CHILD_WRITES: [u64; 2] = [4, 6];

/// Forks, continues, and waits for the child.
fn fork_and_wait(child: ProgramId) -> impl Iterator<Item = Operation> {
    fork(child, PARENT_WRITES).chain([Operation::SystemCall, Operation::Join(child)])
}

/// `ls`, started from a shell repeatedly: the shell forks, the child executes `ls`, which lists a
/// directory and exits, and the shell waits for the child. An iteration is one `ls`.
#[derive(Clone, Copy, Debug)]
pub struct Ls {
    /// Number of commands.
    pub commands: u64,
    /// Number of libraries that `ls` is linked with, 3 at most. The study's "5 or 7" flushes fit
    /// one and three libraries, because the linker unmaps one page with the header of each.
    pub libraries: u32,
}

impl Ls {
    /// Number of libraries that exist.
    pub const LIBRARIES_MAX: u32 = LINKED.len() as u32 - 2;

    fn program(&self) -> Program {
        let libraries = self.libraries.min(Self::LIBRARIES_MAX) as usize;
        Program { objects: &LINKED[..2 + libraries], ..SHELL }
    }
}

impl Workload for Ls {
    fn name(&self) -> String {
        format!("ls-{}", self.libraries)
    }

    fn processes(&self) -> Vec<Start> {
        on_cpu_0()
    }

    fn steps(&self, program: ProgramId) -> Steps {
        let Self { commands, .. } = *self;
        if program == ProgramId(0) {
            let command = |_| fork_and_wait(ProgramId(1));
            // The first command is not measured: it brings the files into memory.
            let begin = self.program().begin().into_iter().chain(command(0));
            return measured(begin, (0..commands).flat_map(command), commands);
        }
        // `opendir`, `getdents` into a buffer, `stat` of each entry, `write` of all entries.
        let list = [Operation::SystemCall, Operation::SystemCall, Operation::write(HEAP, 12..16)];
        let stat = (0..16).map(|_| Operation::SystemCall);
        let exec = write_after_fork(CHILD_WRITES).chain(self.program().exec());
        steps![exec, list, stat, [Operation::SystemCall]]
    }
}

/// The process that [`LatProc`] creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProcessKind {
    /// A copy that exits (`lat_proc fork`).
    Fork,
    /// A copy that executes another program, which prints a greeting (`lat_proc exec`).
    Exec,
    /// A copy that executes a shell, which starts that program (`lat_proc shell`).
    Shell,
}

/// `lat_proc`: creates a process, and waits for it. An iteration is one process.
#[derive(Clone, Copy, Debug)]
pub struct LatProc {
    /// The process that is created.
    pub kind: ProcessKind,
    /// Number of processes.
    pub iterations: u64,
    /// Time that the kernel and the programs compute for each process, without the costs of memory.
    /// The time is unknown. Fit it to the published time *before* the change.
    pub compute_ns: u64,
}

impl Workload for LatProc {
    fn name(&self) -> String {
        let kind = match self.kind {
            ProcessKind::Fork => "fork",
            ProcessKind::Exec => "exec",
            ProcessKind::Shell => "sh",
        };
        format!("lat-proc-{kind}")
    }

    fn processes(&self) -> Vec<Start> {
        on_cpu_0()
    }

    fn steps(&self, program: ProgramId) -> Steps {
        let Self { kind, iterations, compute_ns } = *self;
        let (child, grandchild) = (ProgramId(1), ProgramId(2));
        let hello = || HELLO.exec().into_iter().chain([Operation::SystemCall]);
        let forked = write_after_fork(CHILD_WRITES);
        match (program.0, kind) {
            (0, _) => {
                let turn = move |_| {
                    let compute = Operation::Compute(compute_ns);
                    fork_and_wait(child).chain([compute])
                };
                let begin = BENCH.begin().into_iter().chain(turn(0));
                measured(begin, (0..iterations).flat_map(turn), iterations)
            }
            (1, ProcessKind::Fork) => Box::new(forked),
            (1, ProcessKind::Shell) => steps![forked, SHELL.exec(), fork_and_wait(grandchild)],
            _ => steps![forked, hello()],
        }
    }
}

const FILE: FileId = FileId(1000);
const AREA: AreaId = AreaId(OWN);

/// `lat_mmap`: maps a file, writes a byte in every 16 KiB of its first tenth, and unmaps the file.
/// An iteration is one such sequence.
#[derive(Clone, Copy, Debug)]
pub struct LatMmap {
    /// Size of the file. LMbench reports the largest size for which the machine has room. Of the
    /// powers of two, only 16 MiB fits the times *before* the change: with 32 MiB, a page would
    /// take less time than a page fault, and with 8 MiB, three times as long.
    pub file_bytes: u64,
    /// Size of a page of the machine. A page of the model stands for one such page.
    pub page_bytes: u64,
    /// Number of iterations.
    pub iterations: u64,
}

impl LatMmap {
    /// The benchmark on the machine of the study.
    #[must_use]
    pub const fn published(iterations: u64) -> Self {
        Self { file_bytes: 16 << 20, page_bytes: 8192, iterations }
    }

    /// Returns the number of pages that an iteration writes.
    #[must_use]
    pub const fn pages_written(&self) -> u64 {
        (self.file_bytes / 10).div_ceil(Self::STRIDE_BYTES)
    }

    const STRIDE_BYTES: u64 = 16 << 10;
}

impl Workload for LatMmap {
    fn name(&self) -> String {
        "lat-mmap".to_owned()
    }

    fn processes(&self) -> Vec<Start> {
        on_cpu_0()
    }

    fn steps(&self, _program: ProgramId) -> Steps {
        let Self { file_bytes, page_bytes, iterations } = *self;
        let (pages, stride) = (file_bytes / page_bytes, Self::STRIDE_BYTES / page_bytes);
        let written = self.pages_written();
        let turn = move |_| {
            let write = (0..written).map(move |index| {
                let page = index * stride;
                Operation::write(AREA, page..page + 1)
            });
            let map = Operation::map(AREA, pages, Permission::ReadWrite, Mapping::SharedFile(FILE));
            [map].into_iter().chain(write).chain([Operation::unmap(AREA, 0..pages)])
        };
        let begin = BENCH.begin().into_iter().chain(turn(0));
        measured(begin, (0..iterations).flat_map(turn), iterations)
    }
}

/// The pages that [`LatPagefault`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PagesRead {
    /// Every page.
    All,
    /// No page. LMbench subtracts the time of this run.
    None,
}

/// `lat_pagefault`: reads a byte of every page of a file in random order, unmaps the file, and maps
/// it again. LMbench subtracts the time of the same number of rounds without reads, and divides by
/// the number of pages. An iteration is therefore a page, with or without a read.
#[derive(Clone, Copy, Debug)]
pub struct LatPagefault {
    /// The pages that are read.
    pub read: PagesRead,
    /// Size of the file, in pages.
    pub pages: u64,
    /// Number of times that the file is mapped.
    pub rounds: u64,
    /// Seed of the order of pages.
    pub seed: u64,
}

impl LatPagefault {
    /// Returns each page once, in random order.
    fn order(&self) -> Vec<u64> {
        let mut order: Vec<_> = (0..self.pages).collect();
        let mut rng = Rng::new(self.seed);
        for left in (2..=order.len()).rev() {
            order.swap(left - 1, rng.below(left as u64) as usize);
        }
        order
    }
}

impl Workload for LatPagefault {
    fn name(&self) -> String {
        "lat-pagefault".to_owned()
    }

    fn processes(&self) -> Vec<Start> {
        on_cpu_0()
    }

    fn steps(&self, _program: ProgramId) -> Steps {
        let Self { read, pages, rounds, .. } = *self;
        let order = self.order();
        let map = move || Operation::map(AREA, pages, Permission::Read, Mapping::SharedFile(FILE));
        let read_all = move || {
            let order = order.clone().into_iter();
            order.map(|page| Operation::read(AREA, page..page + 1))
        };
        let again = move || {
            // The system call is `msync(MS_INVALIDATE)`.
            [Operation::unmap(AREA, 0..pages), map(), Operation::SystemCall]
        };
        let begin = BENCH.begin().into_iter().chain([map()]).chain(read_all()).chain(again());
        let turns = (0..rounds).flat_map(move |_| {
            let reads = (read == PagesRead::All).then(&read_all);
            reads.into_iter().flatten().chain(again())
        });
        measured(begin, turns, pages * rounds)
    }
}

/// `lat_sig prot`: writes to a page that permits only reads, and handles the signal. The handler
/// returns to the write. An iteration is one such fault.
///
/// The benchmark changes no translation, so that a design can affect it only through the entries
/// that it has left in the TLB. LMbench reports the time less that of a signal that a process sends
/// to itself. The study lists that time as well: the reported 1.59 µs come on top of 31.6 µs before
/// the change, and 6.91 µs on top of 24.2 µs after it. The fault with its signal therefore took
/// 33.2 µs before, and 31.1 µs after: the row got worse because the time that is subtracted
/// improved.
#[derive(Clone, Copy, Debug)]
pub struct LatProt {
    /// Number of faults.
    pub iterations: u64,
    /// Time that the kernel and the handler compute for a signal, without the fault and the return.
    /// The time is unknown. Fit it to the published time *before* the change.
    pub signal_ns: u64,
}

impl Workload for LatProt {
    fn name(&self) -> String {
        "lat-prot".to_owned()
    }

    fn processes(&self) -> Vec<Start> {
        on_cpu_0()
    }

    fn steps(&self, _program: ProgramId) -> Steps {
        let Self { iterations, signal_ns } = *self;
        let turn = move |_| {
            let fault = [Operation::Segfault { area: AREA, page: 0 }];
            fault.into_iter().chain(write_stack(1)).chain([Operation::Compute(signal_ns)])
        };
        let map = Operation::map(AREA, 1, Permission::Read, Mapping::SharedFile(FILE));
        let begin = BENCH.begin().into_iter().chain([map]).chain(turn(0));
        measured(begin, (0..iterations).flat_map(turn), iterations)
    }
}
