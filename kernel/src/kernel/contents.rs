//! Checks the contents of memory: a cheap oracle for stale translations.
//!
//! A write stores a word that names the writing process and the page. A read is wrong if it finds a
//! word of another process, a word that was written to another page, or the first word of a free
//! frame. The cause is a translation that outlived its page, or a bug of the memory manager.
//!
//! Most areas are used by one thread only. The contents of such an area are [known](KnownContents):
//! a read must return the word that was written last, or zero if nothing was written.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use shootdown_vm::PAGE_BYTES;

use crate::kernel::arch::{Arch, Architecture};
use crate::kernel::console::println;
use crate::kernel::scheduler::{self, ThreadId};

/// Number of words that were read and must not be there.
static VIOLATIONS: AtomicU64 = AtomicU64::new(0);

/// Number of violations that are printed.
const PRINTED_MAX: u64 = 8;

/// Bits of a word for the number of the process. Numbers repeat after 2 to the power of this many
/// processes.
const PROCESS_BITS: u32 = 20;
/// Set in every word that a workload writes. Fresh memory holds 0.
const WRITTEN: u64 = 1 << 63;

/// The words that may be read in an area, besides zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowed {
    /// Words that the process has written at this page.
    OwnWords,
    /// Words of any process and any page.
    AnyWords,
    /// The word of the page of a stored file, to which no process writes.
    StoredFile {
        /// The file.
        file: u64,
        /// Difference between page numbers of the file and of the process.
        offset: u64,
    },
}

/// The word at the beginning of a page of a stored file.
pub(crate) const fn word_of_file(file: u64, page: u64) -> u64 {
    WRITTEN | page << PROCESS_BITS | process_bits(file as u32)
}

/// The contents of an area to which only its process writes, as far as they are known.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownContents {
    users: Users,
    /// The last word that was written to each page that holds one.
    words: BTreeMap<u64, u64>,
}

/// The threads that use an area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Users {
    #[default]
    Unused,
    One(ThreadId),
    /// A read of one thread may return the word from before or after a concurrent write.
    Several,
}

impl KnownContents {
    /// The contents of an area of which nothing will ever be known.
    pub(crate) const fn unknown() -> Self {
        Self { users: Users::Several, words: BTreeMap::new() }
    }

    /// Returns the contents of the area in a forked process, which has other threads.
    pub(crate) fn copy(&self) -> Self {
        match self.users {
            Users::Several => Self::unknown(),
            Users::Unused | Users::One(_) => {
                Self { users: Users::Unused, words: self.words.clone() }
            }
        }
    }

    /// Records that the calling thread uses the area. Returns `true` if it is the only user.
    fn record_user(&mut self) -> bool {
        let Some(me) = scheduler::current() else { return false };
        match self.users {
            Users::Unused => self.users = Users::One(me),
            Users::One(user) if user == me => {}
            Users::One(_) | Users::Several => *self = Self::unknown(),
        }
        self.users != Users::Several
    }

    /// Records that the calling thread has written `word` to `address`.
    pub(crate) fn record_write(&mut self, address: u64, word: u64) {
        if self.record_user() {
            self.words.insert(address, word);
        }
    }

    /// Records that the calling thread is about to discard the contents of `range`.
    pub(crate) fn record_discard(&mut self, range: &Range<u64>) {
        if self.record_user() {
            let kept = |address: &u64| !range.contains(address);
            self.words.retain(|address, _| kept(address));
        }
    }

    /// The word that the calling thread must read at `address`; `None` if it is not known.
    pub(crate) fn expected(&mut self, address: u64) -> Option<u64> {
        self.record_user().then(|| self.words.get(&address).copied().unwrap_or(0))
    }
}

/// The words that a process writes, and the words that it may read.
pub(crate) struct Words {
    /// Number of the process. Processes are numbered from 0 on, in the order of their creation.
    process: u32,
    /// Numbers of the processes whose words this process may read in its own memory: its own
    /// number, and those of its ancestors by fork.
    lineage: Vec<u32>,
    /// Set when memory was moved, in this process or in an ancestor before the fork. A word may
    /// then be on another page than the one that it names.
    has_moved: AtomicBool,
}

impl Words {
    /// The words of a process that was not forked.
    pub(crate) fn new(process: u32) -> Self {
        Self { process, lineage: Vec::from([process]), has_moved: AtomicBool::new(false) }
    }

    /// The words of a process that is forked from this one.
    pub(crate) fn copy(&self, process: u32) -> Self {
        let lineage = [self.lineage.as_slice(), &[process]].concat();
        Self { process, lineage, has_moved: AtomicBool::new(self.has_moved.load(Relaxed)) }
    }

    /// Records that memory of the process is moved.
    pub(crate) fn record_move(&self) {
        self.has_moved.store(true, Relaxed);
    }

    /// The word that the process writes to `address`.
    pub(crate) const fn at(&self, address: u64) -> u64 {
        WRITTEN | (address / PAGE_BYTES) << PROCESS_BITS | process_bits(self.process)
    }

    /// Compares the word `found` that the process has read with `expected`. If that is `None`,
    /// compares `found` with all words that are allowed.
    pub(crate) fn check(&self, address: u64, allowed: Allowed, expected: Option<u64>, found: u64) {
        let is_right = match expected {
            Some(expected) => found == expected,
            None => self.may_be_at(address, allowed, found),
        };
        if !is_right && VIOLATIONS.fetch_add(1, Relaxed) < PRINTED_MAX {
            println!(
                "error wrong content: process {} read {found:#x} at {address:#x} on cpu {}; {}",
                self.process,
                Arch::cpu(),
                if expected.is_some() {
                    "another word was written last"
                } else {
                    "no write put that word there"
                },
            );
        }
    }

    fn may_be_at(&self, address: u64, allowed: Allowed, found: u64) -> bool {
        if let Allowed::StoredFile { file, offset } = allowed {
            return found == word_of_file(file, (address / PAGE_BYTES).wrapping_add(offset));
        }
        if found == 0 {
            return true;
        }
        let page = (found & !WRITTEN) >> PROCESS_BITS;
        if found & WRITTEN == 0 || page >= 1 << 36 {
            return false;
        }
        let writer = found & ((1 << PROCESS_BITS) - 1);
        let is_own = || self.lineage.iter().any(|&number| process_bits(number) == writer);
        match allowed {
            Allowed::AnyWords | Allowed::StoredFile { .. } => true,
            Allowed::OwnWords => {
                (page == address / PAGE_BYTES || self.has_moved.load(Relaxed)) && is_own()
            }
        }
    }
}

/// The bits of a word that name its process.
const fn process_bits(process: u32) -> u64 {
    process as u64 & ((1 << PROCESS_BITS) - 1)
}

/// Number of words that were read and must not be there.
pub(crate) fn violations() -> u64 {
    VIOLATIONS.load(Relaxed)
}
