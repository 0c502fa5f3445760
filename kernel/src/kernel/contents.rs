//! What memory must hold: the cheap oracle.
//!
//! Each write is of a word that says which process wrote it, and at which page. So who reads what
//! another process has written, or what was written to another page, or what is in a frame that is
//! free, has used a translation that outlived its page; or the memory manager is wrong.
//!
//! Of an area that only one thread uses, as most are, all is [known](Known): what is read must be
//! what was written last, and zero where nothing was.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use shootdown_vm::PAGE_BYTES;

use crate::kernel::arch::{Arch, Architecture};
use crate::kernel::console::println;
use crate::kernel::scheduler::{self, ThreadId};

/// How many words were read that must not be there.
static WRONG: AtomicU64 = AtomicU64::new(0);

/// The first so many are printed.
const PRINTED_MAX: u64 = 8;

/// The word has bits for so many processes: then their numbers come again.
const PROCESS_BITS: u32 = 20;
/// Set in every word that is written: fresh memory holds 0.
const WRITTEN: u64 = 1 << 63;

/// What may be read in an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// Zeros, and what the process has written there.
    OwnWords,
    /// What anybody has written, wherever.
    AnyWords,
}

/// What is known of an area that nobody but its process writes to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    users: Users,
    /// The last word that was written to each page that holds one.
    words: BTreeMap<u64, u64>,
}

/// Which threads use an area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Users {
    #[default]
    Nobody,
    One(ThreadId),
    /// What one reads may be from before or after what another does at the same time.
    Several,
}

impl Known {
    /// Nothing, for ever.
    pub(crate) const fn nothing() -> Self {
        Self { users: Users::Several, words: BTreeMap::new() }
    }

    /// As a copy of the process has it, whose threads are others.
    pub(crate) fn copy(&self) -> Self {
        match self.users {
            Users::Several => Self::nothing(),
            Users::Nobody | Users::One(_) => {
                Self { users: Users::Nobody, words: self.words.clone() }
            }
        }
    }

    /// The calling thread uses the area: whether it is the only one.
    fn is_for_me(&mut self) -> bool {
        let Some(me) = scheduler::current() else { return false };
        match self.users {
            Users::Nobody => self.users = Users::One(me),
            Users::One(user) if user == me => {}
            Users::One(_) | Users::Several => *self = Self::nothing(),
        }
        self.users != Users::Several
    }

    /// The calling thread has written there.
    pub(crate) fn wrote(&mut self, address: u64, word: u64) {
        if self.is_for_me() {
            self.words.insert(address, word);
        }
    }

    /// The calling thread is about to give back what is there.
    pub(crate) fn discards(&mut self, range: &Range<u64>) {
        if self.is_for_me() {
            let kept = |address: &u64| !range.contains(address);
            self.words.retain(|address, _| kept(address));
        }
    }

    /// What the calling thread must read there, if that is known.
    pub(crate) fn expected(&mut self, address: u64) -> Option<u64> {
        self.is_for_me().then(|| self.words.get(&address).copied().unwrap_or(0))
    }
}

/// The words that a process writes, and those that it may read.
pub(crate) struct Words {
    /// Number of the process. Processes are numbered from 0 on, in the order of their creation.
    process: u32,
    /// Numbers of the processes whose words this process may read in its own memory: its own, and
    /// those of all processes that it is a copy of.
    lineage: Vec<u32>,
    /// Whether memory was moved, in this process or in one that it is a copy of. Words are then not
    /// always on the page that they name.
    has_moved: AtomicBool,
}

impl Words {
    /// The words of a process that is not a copy.
    pub(crate) fn new(process: u32) -> Self {
        Self { process, lineage: Vec::from([process]), has_moved: AtomicBool::new(false) }
    }

    /// The words of a copy of the process.
    pub(crate) fn copy(&self, process: u32) -> Self {
        let lineage = [self.lineage.as_slice(), &[process]].concat();
        Self { process, lineage, has_moved: AtomicBool::new(self.has_moved.load(Relaxed)) }
    }

    /// Notes that memory of the process is moved.
    pub(crate) fn move_some(&self) {
        self.has_moved.store(true, Relaxed);
    }

    /// The word that the process writes at an address.
    pub(crate) const fn at(&self, address: u64) -> u64 {
        WRITTEN | (address / PAGE_BYTES) << PROCESS_BITS | mark(self.process)
    }

    /// Compares a word that the process has read with `expected`, or, where that is not known, with
    /// all words that may be there.
    pub(crate) fn check(&self, address: u64, holds: Holds, expected: Option<u64>, found: u64) {
        let is_right = match expected {
            Some(expected) => found == expected,
            None => self.may_be_at(address, holds, found),
        };
        if !is_right && WRONG.fetch_add(1, Relaxed) < PRINTED_MAX {
            println!(
                "error wrong content: process {} read {found:#x} at {address:#x} on cpu {}; {}",
                self.process,
                Arch::cpu(),
                if expected.is_some() {
                    "that was not written last"
                } else {
                    "nobody wrote that here"
                },
            );
        }
    }

    fn may_be_at(&self, address: u64, holds: Holds, found: u64) -> bool {
        if found == 0 {
            return true;
        }
        let page = (found & !WRITTEN) >> PROCESS_BITS;
        if found & WRITTEN == 0 || page >= 1 << 36 {
            return false;
        }
        let writer = found & ((1 << PROCESS_BITS) - 1);
        let is_own = || self.lineage.iter().any(|&number| mark(number) == writer);
        match holds {
            Holds::AnyWords => true,
            Holds::OwnWords => {
                (page == address / PAGE_BYTES || self.has_moved.load(Relaxed)) && is_own()
            }
        }
    }
}

/// The bits of a word that tell its process.
const fn mark(process: u32) -> u64 {
    process as u64 & ((1 << PROCESS_BITS) - 1)
}

/// How many words were read that must not be there.
pub(crate) fn wrong() -> u64 {
    WRONG.load(Relaxed)
}
