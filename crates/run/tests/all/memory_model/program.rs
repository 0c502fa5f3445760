//! Random programs of a few threads that access and change the same pages.

use std::fmt;

use shootdown_program::Workload;
use shootdown_program::operation::{
    Access, AreaId, Entry, FileId, Filling, Mapping, Operation, Permission, ProgramId, RawAddress,
    Start, Steps,
};
use shootdown_sim::Rng;

/// Number of operations of a program, without its setup.
const LENGTH: usize = 160;
/// Areas are small, so that threads meet. The files together do not fit in memory.
const AREA_PAGES: u64 = 10;
const AREAS: u64 = 4;
/// The first page of memory that is accessed by its raw address, and the first page of the areas.
const RAW_ADDRESS: [u64; 2] = [0x4000, 16];
const RAW_ADDRESS_PAGES: u64 = 16;
/// Number of small pages in a large page.
const LARGE: u64 = 512;
/// Number of large pages at [`RAW_ADDRESS`].
const BLOCKS: u64 = 2;
/// Pages around the beginning of the second large page, where threads meet as well.
const BORDER: u64 = RAW_ADDRESS[0] + LARGE - RAW_ADDRESS_PAGES / 2;
/// Number of nodes that pages are moved among.
pub(crate) const NODES: u64 = 2;
/// The process that reads a large file, so that memory is short.
const READER: ProgramId = ProgramId(50);
/// The program of the first process that is forked.
const CHILD: u32 = 100;

/// The sizes of pages that a program uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sizes {
    Small,
    /// Some operations make the memory at [`RAW_ADDRESS`] large.
    Large,
}

/// The way in which files are read from their device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    PageByPage,
    Ahead,
}

impl Sizes {
    /// Returns the length of the file that one process reads, and the number of times that it reads
    /// the file. Together with memory that cannot be reclaimed, the file exceeds the memory that is
    /// not left to large pages.
    const fn reader(self) -> (u64, u64) {
        match self {
            Self::Small => (160, 4),
            Self::Large => (384, 2),
        }
    }
}

/// A program: the steps of all threads, in one list from which any part can be removed.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Number of CPUs.
    pub(crate) cpus: usize,
    /// Factor by which interrupts are slower than on the machine.
    pub(crate) slowness: u64,
    pub(crate) sizes: Sizes,
    pub(crate) reading: Reading,
    steps: Vec<(ProgramId, Operation)>,
    /// Indexes of the steps that are performed.
    pub(crate) kept: Vec<usize>,
    processes: Vec<ProgramId>,
}

impl Program {
    pub(crate) fn new(seed: u64) -> Self {
        // Six seeds in a row cover each pair at least once.
        let reading = if seed.is_multiple_of(3) { Reading::Ahead } else { Reading::PageByPage };
        let sizes = if seed.is_multiple_of(2) { Sizes::Large } else { Sizes::Small };
        let mut generator =
            Generator { rng: Rng::new(seed), sizes, steps: Vec::new(), children: 0 };
        let cpus = 2 + generator.below(3) as usize;
        let slowness = 1 + generator.below(3) * 12;
        let processes = 1 + generator.below(3) as u32;
        let threads = generator.threads(processes);
        for _ in 0..LENGTH {
            let thread = threads[generator.below(threads.len() as u64) as usize];
            generator.step(thread, cpus as u64);
        }
        generator.read_much();
        let Generator { steps, .. } = generator;
        let processes = (0..processes).map(ProgramId).chain([READER]).collect();
        let kept = (0..steps.len()).collect();
        Self { cpus, slowness, sizes, reading, kept, steps, processes }
    }

    /// Leaves out the moves of pages, for a memory manager that cannot move them.
    pub(crate) fn without_moves(mut self) -> Self {
        let moves = |step: &Operation| matches!(step, Operation::MovePages { .. });
        self.kept.retain(|&index| !moves(&self.steps[index].1));
        self
    }
}

impl Workload for Program {
    fn name(&self) -> String {
        "random".to_owned()
    }
    fn processes(&self) -> Vec<Start> {
        self.processes.iter().map(|&program| Start { program, cpu: None }).collect()
    }
    fn steps(&self, program: ProgramId) -> Steps {
        let kept = self.kept.iter().map(|&index| &self.steps[index]);
        let own: Vec<_> = kept.filter(|(of, _)| *of == program).map(|(_, step)| step).collect();
        Box::new(own.into_iter().cloned().collect::<Vec<_>>().into_iter())
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpus, slowness, sizes, reading, processes, .. } = self;
        writeln!(f, "{cpus} CPUs, interrupts {slowness} times as slow; begins with {processes:?}")?;
        writeln!(f, "pages {sizes:?}; files read {reading:?}")?;
        for &index in &self.kept {
            let (thread, operation) = &self.steps[index];
            writeln!(f, "{index:4}  thread {:3}: {operation:?}", thread.0)?;
        }
        Ok(())
    }
}

struct Generator {
    rng: Rng,
    sizes: Sizes,
    steps: Vec<(ProgramId, Operation)>,
    children: u32,
}

impl Generator {
    fn below(&mut self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    /// Adds processes with their areas and threads. Returns the threads, at most four.
    fn threads(&mut self, processes: u32) -> Vec<ProgramId> {
        let mut threads: Vec<_> = (0..processes).map(ProgramId).collect();
        for process in threads.clone() {
            for area in 0..AREAS {
                let map = self.map(area);
                self.steps.push((process, map));
            }
        }
        for thread in processes..2.max(processes) + self.below(5 - u64::from(processes)) as u32 {
            let process = ProgramId(self.below(u64::from(processes)) as u32);
            self.steps.push((process, Operation::Spawn(ProgramId(thread))));
            threads.push(ProgramId(thread));
        }
        threads.truncate(4);
        threads
    }

    fn map(&mut self, area: u64) -> Operation {
        let mapping = match area {
            0 => Mapping::Anonymous,
            1 => Mapping::PrivateFile(FileId(0)),
            2 => Mapping::SharedFile(FileId(0)),
            _ => Mapping::PrivateFile(FileId(1)),
        };
        let (area, permission) = (AreaId(area as u32), Permission::ReadWrite);
        Operation::Map { area, pages: AREA_PAGES, permission, mapping }
    }

    fn step(&mut self, thread: ProgramId, cpus: u64) {
        let step = match self.below(100) {
            0..26 => self.touch(),
            26..46 => self.touch_raw(),
            46..66 => self.change_raw(),
            66..80 => self.change(),
            80..83 => return self.use_again(thread),
            83..87 => Operation::Compute(self.below(8) * self.below(2000)),
            87..90 => Operation::Migrate(self.below(cpus) as usize),
            90..92 => Operation::Yield,
            92..94 => Operation::Sleep(self.below(4000)),
            94..97 if self.sizes == Sizes::Large => return self.make_large(thread),
            _ if self.children < 3 => return self.fork(thread, cpus),
            _ => self.touch(),
        };
        self.steps.push((thread, step));
    }

    /// Forks a child, which performs operations like its parent's.
    fn fork(&mut self, thread: ProgramId, cpus: u64) {
        let child = ProgramId(CHILD + self.children);
        self.children += 1;
        self.steps.push((thread, Operation::Fork(child)));
        for _ in 0..10 {
            self.step(child, cpus);
        }
    }

    fn touch(&mut self) -> Operation {
        let (area, access) = (AreaId(self.below(AREAS) as u32), self.access());
        let pages = self.range(0, AREA_PAGES, 3);
        Operation::Touch { area, pages, access }
    }

    /// Uses a page for as long as other CPUs need to change many pages.
    fn use_again(&mut self, thread: ProgramId) {
        let page = self.addresses(1).start;
        for _ in 0..16 {
            let touch = RawAddress::Fault { page, access: self.access(), entry: Entry::Absent };
            let compute = Operation::Compute(self.below(8000));
            self.steps.extend([Operation::RawAddress(touch), compute].map(|step| (thread, step)));
        }
    }

    fn change(&mut self) -> Operation {
        let (number, pages) = (self.below(AREAS), self.range(0, AREA_PAGES, 6));
        let area = AreaId(number as u32);
        match self.below(14) {
            10.. => {
                let (pages, node) = (0..AREA_PAGES, self.below(NODES) as usize);
                Operation::MovePages { area, pages, node }
            }
            0..3 => Operation::Discard { area, pages },
            3..5 => Operation::Unmap { area, pages },
            5..7 => Operation::Protect { area, pages, permission: Permission::ReadWrite },
            7 => Operation::Protect { area, pages, permission: Permission::Read },
            8 => Operation::Protect { area, pages, permission: Permission::None },
            _ => self.map(number),
        }
    }

    fn touch_raw(&mut self) -> Operation {
        let (page, access) = (self.addresses(1).start, self.access());
        Operation::RawAddress(RawAddress::Fault { page, access, entry: Entry::Absent })
    }

    /// Writes some pages of a block, waits so that other threads may use them, and makes the block
    /// a large page.
    fn make_large(&mut self, thread: ProgramId) {
        let (pages, wait_ns) = (self.block(), self.below(20) * 1000);
        let (permission, mapping) = (Permission::ReadWrite, Mapping::Anonymous);
        let raw = Operation::RawAddress;
        let map = RawAddress::Map {
            pages: pages.clone(),
            permission,
            mapping,
            filling: Filling::OnDemand,
        };
        let written = (0..8).map(|page| pages.start + page).chain([pages.end - 3]);
        let write = |page| RawAddress::Fault { page, access: Access::Write, entry: Entry::Absent };
        let begin = [map].into_iter().chain(written.map(write)).map(raw);
        let end = [Operation::Compute(wait_ns), raw(RawAddress::Collapse(pages.clone()))];
        self.steps.extend(begin.chain(end).map(|step| (thread, step)));
    }

    fn change_block(&mut self) -> RawAddress {
        let (pages, permission) = (self.block(), Permission::ReadWrite);
        match self.below(12) {
            0..6 => RawAddress::Collapse(pages),
            6 => RawAddress::Unmap(pages),
            7 => RawAddress::Discard(pages),
            8 => RawAddress::Protect { pages, permission: Permission::Read },
            9 => RawAddress::Protect { pages, permission },
            10 => RawAddress::Move { from: pages, to: self.block() },
            _ => RawAddress::MovePages { pages, node: self.below(NODES) as usize },
        }
    }

    fn block(&mut self) -> std::ops::Range<u64> {
        let start = RAW_ADDRESS[0] + self.below(BLOCKS) * LARGE;
        start..start + LARGE
    }

    fn change_raw(&mut self) -> Operation {
        if self.sizes == Sizes::Large && self.below(4) == 0 {
            return Operation::RawAddress(self.change_block());
        }
        if self.below(8) == 0 {
            let (pages, node) = (self.addresses(RAW_ADDRESS_PAGES), self.below(NODES) as usize);
            return Operation::RawAddress(RawAddress::MovePages { pages, node });
        }
        let pages = self.addresses(6);
        let filling = Filling::OnDemand;
        let mapping = match self.below(4) {
            0 => Mapping::PrivateFile(FileId(2)),
            1 => Mapping::SharedFile(FileId(2)),
            _ => Mapping::Anonymous,
        };
        let permission = Permission::ReadWrite;
        Operation::RawAddress(match self.below(12) {
            0..2 => RawAddress::Map { pages, permission, mapping, filling },
            2 => RawAddress::Unmap(pages),
            3..5 => RawAddress::Protect { pages, permission },
            5 => RawAddress::Protect { pages, permission: Permission::Read },
            6..8 => RawAddress::Discard(pages),
            8..10 => RawAddress::Offer(pages),
            _ => RawAddress::Move { to: self.target(&pages), from: pages },
        })
    }

    /// Returns the destination of a move, in most cases of the same length, sometimes in place.
    fn target(&mut self, from: &std::ops::Range<u64>) -> std::ops::Range<u64> {
        let start = if self.below(4) == 0 { from.start } else { self.addresses(1).start };
        let length = from.end - from.start;
        start..start + if self.below(3) == 0 { 1 + self.below(6) } else { length }
    }

    fn access(&mut self) -> Access {
        if self.below(2) == 0 { Access::Read } else { Access::Write }
    }

    fn addresses(&mut self, length: u64) -> std::ops::Range<u64> {
        // One in five ranges is in an area.
        let first = match self.below(10) {
            0..2 => RAW_ADDRESS[1],
            2..5 if self.sizes == Sizes::Large => BORDER,
            _ => RAW_ADDRESS[0],
        };
        self.range(first, RAW_ADDRESS_PAGES, length)
    }

    fn range(&mut self, first: u64, pages: u64, length: u64) -> std::ops::Range<u64> {
        let start = self.below(pages);
        let end = (start + 1 + self.below(length)).min(pages);
        first + start..first + end
    }

    /// Adds a process that reads a large file repeatedly, and writes some of its pages.
    fn read_much(&mut self) {
        let area = AreaId(9);
        let mapping = Mapping::SharedFile(FileId(9));
        let ((pages, laps), permission) = (self.sizes.reader(), Permission::ReadWrite);
        self.steps.push((READER, Operation::Map { area, pages, permission, mapping }));
        for start in (0..laps).flat_map(|_| (0..pages).step_by(8)) {
            let access = if start % 32 == 0 { Access::Write } else { Access::Read };
            self.steps.push((READER, Operation::Touch { area, pages: start..start + 8, access }));
        }
    }
}
