//! The interface to a model of the contents of memory, which a run consults about every word.
//!
//! The tests of this crate have the model (`tests/all/memory_model/model`).

use core::fmt;
use std::collections::BTreeMap;

use shootdown_program::interpreter::{Change, Ended, FileKey};

/// A process, by its number in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryId(pub usize);

/// A change in progress.
#[derive(Debug)]
#[must_use = "the change is in progress until it is ended or cancelled"]
pub struct UnderWay {
    /// The process whose memory changes.
    pub process: MemoryId,
    /// The model's number of the change.
    pub change: u64,
}

/// A model of the contents of all processes and files. Pages are numbered, and words are numbered
/// as they are written, from 1 on.
pub trait ContentsModel: fmt::Debug {
    /// Adds a process without memory.
    fn process(&mut self) -> MemoryId;

    /// Begins a change.
    fn begin(&mut self, process: MemoryId, change: Change) -> UnderWay;

    /// Ends a change. [`end_fork`](Self::end_fork) ends a fork that succeeded.
    fn end(&mut self, under_way: UnderWay, ended: Ended);

    /// Ends a fork. Returns the child.
    fn end_fork(&mut self, under_way: UnderWay) -> MemoryId;

    /// Records that a write faulted. The page may be copied from now on, until
    /// [`write_ends`](Self::write_ends).
    fn write_begins(&mut self, process: MemoryId, page: u64);

    /// Records that the faulted write succeeds, or is given up.
    fn write_ends(&mut self, process: MemoryId, page: u64);

    /// Records a write of a page.
    fn wrote(&mut self, process: MemoryId, page: u64, word: u64);

    /// Checks a read of a page.
    fn read(&mut self, process: MemoryId, page: u64, word: u64);

    /// Checks a process at its end. `pages` are the pages in its page tables, with their words.
    fn end_process(&mut self, process: MemoryId, pages: &BTreeMap<u64, u64>);

    /// Returns the pages of files that were used.
    fn file_pages(&self) -> Vec<(FileKey, u64)>;

    /// Checks the word of a page of a file at the end of the run.
    fn end_file(&mut self, file: FileKey, page: u64, word: u64);

    /// Returns the number of wrong words.
    fn wrong(&self) -> u64;

    /// Returns a description of each of the first wrong words.
    fn first(&self) -> Vec<String>;
}
