//! A model of the contents of memory, which depends on the operations of a workload and not on
//! their implementation.
//!
//! The oracle of the simulated machine detects uses of dead translations. This model checks the
//! words in memory instead, and so detects errors that no translation shows: a lost write, a copy
//! that was made too early, a page that was written out before the last write to it, or the wrong
//! page that is read in again. The model has no page tables, no frames and no flushes. It may be
//! wrong about memory, but not in the same way as the memory manager.
//!
//! # The values that a read may find
//!
//! A place is a page of a process. It *shows* a page of a shared file, or a private page. A private
//! page begins as zero or as a page of a file, and follows the file until the private page is
//! written.
//!
//! - Reads and writes are instantaneous. All later reads find the written word and no other, across
//!   copies on write, reclaim, migration, changes of protection, and moves to other CPUs. The model
//!   does not observe these.
//! - A change of contents (`munmap`, a new mapping, `MADV_DONTNEED`, `mremap`) lasts from its
//!   *beginning* to its *end*. During the change, a place may have two pages, the old and the new
//!   one, and each CPU uses one of them. Reads find any word that either page may hold. A write
//!   goes to one of the pages, so that it replaces no possible word. At the end of the change, all
//!   words from before its beginning are gone, and words that were written during it may remain or
//!   not.
//! - After the change, the place has one page again. The first read shows which of the possible
//!   words the page holds, and the next read must find the same word.
//! - A fork's child has, in each page, a word that the parent's page had between the beginning and
//!   the end of the fork.
//! - A page that was offered (`MADV_FREE`) holds its word until it is found to be zero. A write
//!   after the offer keeps the page.
//! - A page of a shared file is one page, whatever happens to mappings of it. A write to it is
//!   never lost, even if it goes through a mapping that is being removed.
//! - The pages of a file that is truncated hold their words or zeros until the end of the change,
//!   and then zeros, or words that were written during it.
//! - A write to a private page of a file needs a copy of the file's page, made between the fault
//!   and the write. Until the write, other threads may find the file's word of any time since the
//!   fault began.
//!
//! # An example of an error
//!
//! ```text
//!   CPU 0                             CPU 1                         the model
//!   writes 7 (through its TLB)                                      {7}
//!                                     munmap, mmap, no flush        {0}
//!   writes 8 (to the freed page)                                    {8}
//!                                     reads 0                       wrong
//! ```
//!
//! # Limits
//!
//! A page is one word, because the simulated machine stores no more. Stores take effect in order
//! and immediately, for every CPU (sequential consistency). The simulated machine does the same:
//! its store buffers cost time, but do not delay stores. The model does not check whether an access
//! is refused or allowed correctly, except that an access must not succeed where nothing is mapped.
//! It cannot detect the loss of a write that was made during a change of the same place. At the
//! end, it checks only those pages of files that were used. The model therefore misses some errors,
//! but every error that it reports is real.

mod files;
mod layers;
mod place;
mod process;
mod tests;

use core::fmt;
use std::collections::BTreeMap;

use shootdown_program::interpreter::{Change, Ended, FileKey, Shown};
use shootdown_run::{ContentsModel, MemoryId, UnderWay};

use files::Files;
use process::ProcessModel;

/// A wrong word in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WrongContent {
    /// The check that found the word.
    found_by: FoundBy,
    /// The process, numbered in the order of creation; `None` in a file.
    process: Option<usize>,
    /// The page of the process, or of the file.
    page: u64,
    /// The word; `None` if the page was lost.
    found: Option<u64>,
    /// The words that are possible there. Words are numbered as they are written, from 1 on.
    expected: Vec<u64>,
}

/// The check that found a wrong word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FoundBy {
    /// A thread read the word.
    Read,
    /// A thread wrote the word where nothing is mapped.
    Write,
    /// The word was in a page when its process ended.
    EndOfProcess,
    /// The word was in a file when the run ended.
    EndOfRun,
}

/// Largest number of wrong words that are kept.
const FIRST_MAX: usize = 16;

/// The logical time of the model: the number of steps so far.
type Tick = u64;

/// Creates a model, for [`Settings::contents`](shootdown_run::Settings::contents).
pub(crate) fn checked() -> Box<dyn ContentsModel> {
    Box::new(Model::default())
}

/// The contents of all processes and files.
#[derive(Debug, Default)]
struct Model {
    now: Tick,
    processes: Vec<ProcessModel>,
    files: Files,
    wrong: u64,
    first: Vec<WrongContent>,
}

impl ContentsModel for Model {
    fn process(&mut self) -> MemoryId {
        self.add(ProcessModel::default())
    }

    fn begin(&mut self, process: MemoryId, change: Change) -> UnderWay {
        let now = self.tick();
        if let Change::Truncate { file, first } = change {
            self.files.begin_truncation(file, first, now);
        }
        UnderWay { process, change: self.processes[process.0].begin(change, now) }
    }

    fn end(&mut self, under_way: UnderWay, ended: Ended) {
        let memory = &mut self.processes[under_way.process.0];
        match ended {
            Ended::Failed => return memory.cancel(under_way.change),
            Ended::At(range) => memory.place(under_way.change, range),
            Ended::Done => {}
        }
        self.now += 1;
        memory.end(&mut self.files, under_way.change, self.now);
    }

    fn end_fork(&mut self, under_way: UnderWay) -> MemoryId {
        let now = self.tick();
        let child = self.processes[under_way.process.0].end_fork(under_way.change, now);
        self.add(child)
    }

    fn write_begins(&mut self, process: MemoryId, page: u64) {
        let now = self.tick();
        self.processes[process.0].write_begins(page, now);
    }

    fn write_ends(&mut self, process: MemoryId, page: u64) {
        self.processes[process.0].write_ends(page);
    }

    fn wrote(&mut self, process: MemoryId, page: u64, value: u64) {
        let now = self.tick();
        if !self.processes[process.0].write(&mut self.files, page, value, now) {
            self.report(FoundBy::Write, Some(process), page, Some(value), Vec::new());
        }
    }

    fn read(&mut self, process: MemoryId, page: u64, value: u64) {
        let now = self.tick();
        if let Err(expected) = self.processes[process.0].read(&mut self.files, page, value, now) {
            self.report(FoundBy::Read, Some(process), page, Some(value), expected);
        }
    }

    fn end_process(&mut self, process: MemoryId, pages: &BTreeMap<u64, u64>) {
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

    fn file_pages(&self) -> Vec<(FileKey, u64)> {
        self.files.used().collect()
    }

    fn end_file(&mut self, file: FileKey, page: u64, value: u64) {
        let expected = self.files.now(file, page);
        if !expected.contains(&value) {
            self.report(FoundBy::EndOfRun, None, page, Some(value), expected);
        }
    }

    fn wrong(&self) -> u64 {
        self.wrong
    }

    fn first(&self) -> Vec<String> {
        self.first.iter().map(ToString::to_string).collect()
    }
}

impl Model {
    fn add(&mut self, memory: ProcessModel) -> MemoryId {
        self.processes.push(memory);
        MemoryId(self.processes.len() - 1)
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

    fn tick(&mut self) -> Tick {
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
