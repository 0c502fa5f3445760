//! The workloads of the study of ARC's ASIDs: `ls` on an ARC at 80 MHz, and the rows of LMbench
//! that concern memory.
//!
//! A page stands for one of that machine's, which has 8 KiB. What LMbench does is in its source
//! (`lat_proc.c`, `lat_mmap.c`, `lat_pagefault.c`, `lat_sig.c`). What the programs consist of is
//! not published: busybox and uClibc of that time, built for ARC, with sizes that are assumed.

use shootdown_sim::Rng;

use shootdown_program::operation::{
    AreaId, FileId, Mapping, Operation, Permission, ProgramId, Start, Steps, Workload,
};

use super::parts::steps;

use super::linked::{HEAP, Linker, OWN, Object, Program, write_stack};

/// Assumed: 800 KiB, of which a simple command uses 160.
const BUSYBOX: Object = Object {
    text_pages: 100,
    used_pages: 20,
    data_pages: 2,
    sealed_pages: 0,
    read_first_pages: 1,
    zero_pages: 2,
};
/// Assumed: 24 KiB.
const LDSO: Object = Object { text_pages: 3, used_pages: 3, zero_pages: 0, ..SMALL };
/// Assumed: 384 KiB.
const LIBC: Object = Object { text_pages: 48, used_pages: 12, data_pages: 2, ..SMALL };
/// `libm`, `libcrypt`, or a program that says hello; assumed: 64 KiB.
const SMALL: Object = Object {
    text_pages: 8,
    used_pages: 2,
    data_pages: 1,
    sealed_pages: 0,
    read_first_pages: 1,
    zero_pages: 1,
};

/// A shell and its commands, which are the same file.
const LINKED: [Object; 5] = [BUSYBOX, LDSO, LIBC, SMALL, SMALL];
const SHELL: Program =
    Program { file: 0, objects: &LINKED, linker: Linker::Uclibc, heap_pages: 12 };
const HELLO: Program =
    Program { file: 100, objects: &[SMALL, LDSO, LIBC], linker: Linker::Uclibc, heap_pages: 2 };
/// A program of LMbench.
const BENCH: Program = Program { file: 200, heap_pages: 6, ..HELLO };

/// So many pages of its stack and of its heap does a process write after it has forked; both were
/// seen under Linux 6.18 on x86-64, for `fork` and `exit` in a loop: 4 by who forks, 13 by the
/// child.
const PARENT_WRITES: [u64; 2] = [2, 2];
const CHILD_WRITES: [u64; 2] = [4, 6];

fn write_after_fork([stack, heap]: [u64; 2]) -> impl Iterator<Item = Operation> {
    write_stack(stack).chain([Operation::write(HEAP, 0..heap)])
}

/// Forks, goes on, and waits for the child.
fn fork_and_wait(child: ProgramId) -> impl Iterator<Item = Operation> {
    let wait = [Operation::SystemCall, Operation::Join(child)];
    [Operation::Fork(child)].into_iter().chain(write_after_fork(PARENT_WRITES)).chain(wait)
}

fn one_process() -> Vec<Start> {
    vec![Start { program: ProgramId(0), cpu: Some(0) }]
}

/// `ls`, started from a shell, again and again: the shell forks, the child becomes `ls`, which
/// lists a directory and exits, and the shell waits for it. An iteration is one `ls`.
#[derive(Clone, Copy, Debug)]
pub struct Ls {
    /// How often.
    pub commands: u64,
    /// With how many libraries `ls` is linked, 3 at most. The seed's "5 or 7" fits one and three,
    /// for the linker unmaps one page with the header of each.
    pub libraries: u32,
}

impl Ls {
    /// The libraries that there are.
    pub const LIBRARIES_MAX: u32 = LINKED.len() as u32 - 2;

    fn program(&self) -> Program {
        let libraries = self.libraries.min(Self::LIBRARIES_MAX) as usize;
        Program { objects: &LINKED[..2 + libraries], ..SHELL }
    }

    /// How many times one command unmaps pages that are there.
    #[must_use]
    pub fn unmaps_per_command(&self) -> u64 {
        self.program().unmaps()
    }
}

impl Workload for Ls {
    fn name(&self) -> String {
        format!("ls-{}", self.libraries)
    }

    fn processes(&self) -> Vec<Start> {
        one_process()
    }

    fn steps(&self, program: ProgramId) -> Steps {
        let Self { commands, .. } = *self;
        if program == ProgramId(0) {
            let command = |_| fork_and_wait(ProgramId(1));
            // Once before the clock starts: files are in memory then.
            let begin = self.program().begin().into_iter().chain(command(0));
            let measured = (0..commands).flat_map(command);
            let end = Operation::End { iterations: commands };
            return steps![begin, [Operation::Begin], measured, [end]];
        }
        // `opendir`, `getdents` into a buffer, `stat` of each, `write` of all.
        let list = [Operation::SystemCall, Operation::SystemCall, Operation::write(HEAP, 12..16)];
        let stat = (0..16).map(|_| Operation::SystemCall);
        let exec = write_after_fork(CHILD_WRITES).chain(self.program().exec());
        steps![exec, list, stat, [Operation::SystemCall]]
    }
}

/// What is made and waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProcessKind {
    /// A copy that exits (`lat_proc fork`).
    Fork,
    /// A copy that becomes another program, which says hello (`lat_proc exec`).
    Exec,
    /// A copy that becomes a shell, which starts that program (`lat_proc shell`).
    Shell,
}

/// `lat_proc`: makes a process, and waits for it. An iteration is one of them.
#[derive(Clone, Copy, Debug)]
pub struct LatProc {
    /// What is made.
    pub kind: ProcessKind,
    /// How often.
    pub iterations: u64,
    /// What the kernel and the programs compute for each, besides what memory costs. Not known, and
    /// to be fitted to the time *before* the change.
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
        one_process()
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
                let begin = BENCH.begin().into_iter().chain(turn(0)).chain([Operation::Begin]);
                let measured = (0..iterations).flat_map(turn);
                steps![begin, measured, [Operation::End { iterations }]]
            }
            (1, ProcessKind::Fork) => Box::new(forked),
            (1, ProcessKind::Shell) => steps![forked, SHELL.exec(), fork_and_wait(grandchild)],
            _ => steps![forked, hello()],
        }
    }
}

const FILE: FileId = FileId(1000);
const AREA: AreaId = AreaId(OWN);

/// `lat_mmap`: maps a file, writes a byte in every 16 KiB of its first tenth, and unmaps it. An
/// iteration is all of that.
#[derive(Clone, Copy, Debug)]
pub struct LatMmap {
    /// The size of the file. LMbench reports the largest that there was room for. Of the powers of
    /// two, only 16 MiB fits the times *before* the change: with 32, a page would take less than a
    /// page fault does, with 8, three times as long.
    pub file_bytes: u64,
    /// The size of a page of the machine, for which pages of the model stand.
    pub page_bytes: u64,
    /// How often.
    pub iterations: u64,
}

impl LatMmap {
    /// On the machine of the seed.
    #[must_use]
    pub const fn published(iterations: u64) -> Self {
        Self { file_bytes: 16 << 20, page_bytes: 8192, iterations }
    }

    /// How many pages are written in an iteration.
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
        one_process()
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
        let begin = BENCH.begin().into_iter().chain(turn(0)).chain([Operation::Begin]);
        let measured = (0..iterations).flat_map(turn);
        steps![begin, measured, [Operation::End { iterations }]]
    }
}

/// Which of two runs it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PagesRead {
    /// That in which every page is read.
    All,
    /// That in which none is, whose time LMbench subtracts.
    None,
}

/// `lat_pagefault`: reads a byte of every page of a file in random order, unmaps it and maps it
/// again. LMbench subtracts the time of as many rounds without the reading, and divides by the
/// number of pages; so an iteration is a page, read or not.
#[derive(Clone, Copy, Debug)]
pub struct LatPagefault {
    /// Which of the two runs.
    pub read: PagesRead,
    /// The size of the file, in pages.
    pub pages: u64,
    /// How often it is mapped.
    pub rounds: u64,
    /// The order depends on this.
    pub seed: u64,
}

impl LatPagefault {
    /// The pages, each once, in random order.
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
        one_process()
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
            // `msync(MS_INVALIDATE)` at the end.
            [Operation::unmap(AREA, 0..pages), map(), Operation::SystemCall]
        };
        let begin = BENCH.begin().into_iter().chain([map()]).chain(read_all()).chain(again());
        let measured = (0..rounds).flat_map(move |_| {
            let reads = (read == PagesRead::All).then(&read_all);
            reads.into_iter().flatten().chain(again())
        });
        let end = Operation::End { iterations: pages * rounds };
        steps![begin, [Operation::Begin], measured, [end]]
    }
}

/// `lat_sig prot`: writes to a page that may only be read, and handles the signal; the handler
/// returns to the write. An iteration is one such fault.
///
/// No translation is changed, so no design can make a difference but by what it has left in the
/// TLB. LMbench reports the time less that of a signal that a process sends to itself, which the
/// seed lists, too: 1.59 µs more than 31.6 before, and 6.91 more than 24.2 after. The fault with
/// its signal took 33.2 µs before, and 31.1 after: the row got worse because what is subtracted got
/// better.
#[derive(Clone, Copy, Debug)]
pub struct LatProt {
    /// How often.
    pub iterations: u64,
    /// What the kernel and the handler compute for a signal, besides the fault and the return. Not
    /// known, and to be fitted to the time *before* the change.
    pub signal_ns: u64,
}

impl Workload for LatProt {
    fn name(&self) -> String {
        "lat-prot".to_owned()
    }

    fn processes(&self) -> Vec<Start> {
        one_process()
    }

    fn steps(&self, _program: ProgramId) -> Steps {
        let Self { iterations, signal_ns } = *self;
        let turn = move |_| {
            let fault = [Operation::Segfault { area: AREA, page: 0 }];
            fault.into_iter().chain(write_stack(1)).chain([Operation::Compute(signal_ns)])
        };
        let map = Operation::map(AREA, 1, Permission::Read, Mapping::SharedFile(FILE));
        let begin = BENCH.begin().into_iter().chain([map]).chain(turn(0));
        let measured = (0..iterations).flat_map(turn);
        let end = Operation::End { iterations };
        steps![begin, [Operation::Begin], measured, [end]]
    }
}
