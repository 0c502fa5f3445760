//! What memory must hold: a model that knows what was asked for, and nothing of how it is done.
//!
//! The oracle of the simulated machine finds translations that are used when they are dead. This
//! looks at the bytes instead, and so finds what no translation shows: a write that is lost, a copy
//! that was made too early, a page written out before the last write to it, the wrong page read in
//! again. It has no page tables, no frames and no flushes; it could be wrong about memory, but not
//! in the same way as the memory manager.
//!
//! # What may be read
//!
//! A place is a page of a process. What it *shows* is a page of a shared file, or a page of its
//! own; that begins as zero or as a page of a file, which it follows until it is written.
//!
//! - Reads and writes happen at one moment. What is written is read from then on, by all, and
//!   nothing else is: across copies on write, reclaim, migration, changes of protection, and moves
//!   to other CPUs, none of which the model is told of.
//! - What changes contents (`munmap`, a new mapping, `MADV_DONTNEED`, `mremap`) takes from when it
//!   *begins* to when it *ends*. Meanwhile a place may have two pages, of before and after, and
//!   each CPU uses one of them: reads find anything that either may hold, and a write goes to one
//!   of them, so that it replaces nothing. When it ends, all that was there before it began is gone
//!   for good, and what was written meanwhile may be there or not.
//! - After that there is one page again. The first read tells which of several possible values it
//!   holds, and the next must find the same.
//! - A fork's child holds, in each page, something that the parent's page held between its
//!   beginning and its end.
//! - A page that was offered (`MADV_FREE`) holds what it held, until it is found to be zero; a
//!   write after the offer keeps it.
//! - A shared file's page is one page, whatever is done to mappings of it: a write to it is never
//!   lost, not even one through a mapping that is just being removed.
//! - Who writes to a private page of a file has it copied some time before. Until the write, others
//!   may find the file's contents of any moment since its fault began.
//!
//! # How it goes wrong, for example
//!
//! ```text
//!   CPU 0                             CPU 1                         the model
//!   writes 7 (through its TLB)                                      {7}
//!                                     munmap, mmap, no flush        {0}
//!   writes 8 (to the freed page)                                    {8}
//!                                     reads 0                       wrong
//! ```
//!
//! # What it does not see
//!
//! A page is one word, as the simulated machine holds no more. Stores take effect in order, at
//! once, for every CPU (sequential consistency): so does the simulated machine, whose store buffers
//! cost time and hide nothing. An access that is refused where it should be allowed, or the other
//! way round, is not its concern, unless it succeeds where nothing is mapped. Whether a write was
//! lost that was made while something was under way at the same place, it cannot tell, and a page
//! of a file is looked at in the end only if somebody has used it. So it errs by silence: what it
//! reports is wrong.

mod files;
mod layers;
mod place;
mod process;
#[cfg(test)]
mod tests;

use core::fmt;
use std::collections::BTreeMap;

use shootdown_program::interpreter::{Change, Ended, FileKey, Shown};

use files::Files;
use process::Memory;

/// Whether what memory holds is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contents {
    /// It is not.
    #[default]
    Unchecked,
    /// Every word that is read is compared with what may be there, and all that is left at the end
    /// of a process, and of the run. Runs take about three times as long; and some simulated time
    /// after the end of what is measured, to look at files.
    Checked,
}

/// Something that memory must not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongContent {
    /// How it was found.
    pub found_by: FoundBy,
    /// The process, in the order in which they were made; none where a file is stored.
    pub process: Option<usize>,
    /// The page: of the process, or of the file.
    pub page: u64,
    /// What was found; nothing if the page was lost.
    pub found: Option<u64>,
    /// What may be there. Values are numbered as they are written, from 1 on.
    pub expected: Vec<u64>,
}

/// How a wrong content was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundBy {
    /// A thread has read it.
    Read,
    /// A thread has written it, where nothing is mapped.
    Write,
    /// It was there when the process ended.
    EndOfProcess,
    /// It was in a file when the run ended.
    EndOfRun,
}

/// How many are kept as they are found.
const FIRST_MAX: usize = 16;

/// When something happened: the steps of the model are numbered.
pub(crate) type Moment = u64;

/// A process, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryId(usize);

/// A change that is under way.
#[derive(Debug)]
#[must_use = "it is under way until it is ended or cancelled"]
pub(crate) struct UnderWay {
    process: usize,
    change: u64,
}

/// The contents of all processes and files.
#[derive(Debug, Default)]
pub(crate) struct Model {
    now: Moment,
    processes: Vec<Memory>,
    files: Files,
    wrong: u64,
    first: Vec<WrongContent>,
}

impl Model {
    /// A process without memory.
    pub(crate) fn process(&mut self) -> MemoryId {
        self.add(Memory::default())
    }

    fn add(&mut self, memory: Memory) -> MemoryId {
        self.processes.push(memory);
        MemoryId(self.processes.len() - 1)
    }

    /// Something begins to change.
    pub(crate) fn begin(&mut self, process: MemoryId, change: Change) -> UnderWay {
        let now = self.tick();
        UnderWay { process: process.0, change: self.processes[process.0].begin(change, now) }
    }

    /// A change ends. A fork that succeeds ends by [`end_fork`](Self::end_fork).
    pub(crate) fn end(&mut self, under_way: UnderWay, ended: Ended) {
        let memory = &mut self.processes[under_way.process];
        match ended {
            Ended::Failed => return memory.cancel(under_way.change),
            Ended::At(range) => memory.place(under_way.change, range),
            Ended::Done => {}
        }
        self.now += 1;
        memory.end(under_way.change, self.now);
    }

    /// A fork is done. Returns the child.
    pub(crate) fn end_fork(&mut self, under_way: UnderWay) -> MemoryId {
        let now = self.tick();
        let child = self.processes[under_way.process].end_fork(under_way.change, now);
        self.add(child)
    }

    /// A write was refused for now: the page may be copied from now on.
    pub(crate) fn write_begins(&mut self, process: MemoryId, page: u64) {
        let now = self.tick();
        self.processes[process.0].write_begins(page, now);
    }

    /// The same write happens, or is given up.
    pub(crate) fn write_ends(&mut self, process: MemoryId, page: u64) {
        self.processes[process.0].write_ends(page);
    }

    /// A page is written at this moment.
    pub(crate) fn wrote(&mut self, process: MemoryId, page: u64, value: u64) {
        let now = self.tick();
        if !self.processes[process.0].write(&mut self.files, page, value, now) {
            self.report(FoundBy::Write, Some(process), page, Some(value), Vec::new());
        }
    }

    /// A page is read at this moment.
    pub(crate) fn read(&mut self, process: MemoryId, page: u64, value: u64) {
        let now = self.tick();
        if let Err(expected) = self.processes[process.0].read(&mut self.files, page, value, now) {
            self.report(FoundBy::Read, Some(process), page, Some(value), expected);
        }
    }

    /// A process is at its end; its page tables hold pages with these contents.
    pub(crate) fn end_process(&mut self, process: MemoryId, pages: &BTreeMap<u64, u64>) {
        let now = self.tick();
        let memory = core::mem::take(&mut self.processes[process.0]);
        for (&page, &value) in pages {
            let expected = memory.values(&self.files, page, now);
            if !expected.contains(&value) {
                self.report(FoundBy::EndOfProcess, Some(process), page, Some(value), expected);
            }
        }
        for page in memory.written().filter(|page| !pages.contains_key(page)) {
            if !memory.may_be_absent(page, now) {
                let expected = memory.values(&self.files, page, now);
                self.report(FoundBy::EndOfProcess, Some(process), page, None, expected);
            }
        }
    }

    /// The pages of files that were used.
    pub(crate) fn file_pages(&self) -> Vec<(FileKey, u64)> {
        self.files.used().collect()
    }

    /// What a page of a file holds at the end.
    pub(crate) fn end_file(&mut self, file: FileKey, page: u64, value: u64) {
        let expected = self.files.now(file, page);
        if !expected.contains(&value) {
            self.report(FoundBy::EndOfRun, None, page, Some(value), expected);
        }
    }

    /// How much was wrong.
    pub(crate) const fn wrong(&self) -> u64 {
        self.wrong
    }

    /// The first of it.
    pub(crate) fn first(&self) -> &[WrongContent] {
        &self.first
    }

    fn report(
        &mut self,
        found_by: FoundBy,
        process: Option<MemoryId>,
        page: u64,
        found: Option<u64>,
        expected: Vec<u64>,
    ) {
        self.wrong += 1;
        if self.first.len() < FIRST_MAX {
            let process = process.map(|process| process.0);
            self.first.push(WrongContent { found_by, process, page, found, expected });
        }
    }

    fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }
}

impl fmt::Display for WrongContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.process {
            Some(process) => write!(f, "process {process}, page {:#x}: ", self.page)?,
            None => write!(f, "a file's page {}: ", self.page)?,
        }
        match self.found {
            Some(found) => write!(f, "{found} was found")?,
            None => f.write_str("no page was found")?,
        }
        let when = match self.found_by {
            FoundBy::Read => "by a read",
            FoundBy::Write => "by a write",
            FoundBy::EndOfProcess => "at the end of the process",
            FoundBy::EndOfRun => "at the end of the run",
        };
        write!(f, " {when}, where one of {:?} may be", self.expected)
    }
}
