//! What memory must hold: the cheap oracle.
//!
//! Each write is of a word that says which process wrote it, and at which page. So who reads what
//! another process has written, or what was written to another page, or what is in a frame that is
//! free, has used a translation that outlived its page; or the memory manager is wrong.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use shootdown_vm::PAGE_BYTES;

use crate::arch::{Arch, Architecture};
use crate::console::println;
use crate::process::{Holds, Process};

/// How many words were read that must not be there.
static WRONG: AtomicU64 = AtomicU64::new(0);

/// The first so many are printed.
const PRINTED_MAX: u64 = 8;

/// The word has bits for so many processes: then their numbers come again.
const PROCESS_BITS: u32 = 20;

/// What a process writes at an address.
pub(crate) const fn word(process: &Process, address: u64) -> u64 {
    // Never 0, which is what fresh memory holds.
    1 << 63 | (address / PAGE_BYTES) << PROCESS_BITS | mark(process.number)
}

const fn mark(number: u32) -> u64 {
    number as u64 & ((1 << PROCESS_BITS) - 1)
}

/// Looks at what a process has read.
pub(crate) fn check(process: &Process, address: u64, holds: Holds, found: u64) {
    if may_be_there(process, address, holds, found) {
        return;
    }
    if WRONG.fetch_add(1, Relaxed) < PRINTED_MAX {
        println!(
            "error wrong content: process {} read {found:#x} at {address:#x}, cpu={}",
            process.number,
            Arch::cpu(),
        );
    }
}

fn may_be_there(process: &Process, address: u64, holds: Holds, found: u64) -> bool {
    if found == 0 {
        return true;
    }
    let (written, writer) = (found & !(1 << 63), found & ((1 << PROCESS_BITS) - 1));
    if found >> 63 == 0 || written >> PROCESS_BITS >= 1 << 36 {
        return false;
    }
    let is_own = process.lineage.iter().any(|&number| mark(number) == writer);
    let is_here = written >> PROCESS_BITS == address / PAGE_BYTES;
    match holds {
        Holds::AnyWords => true,
        Holds::OwnWords => is_own && (is_here || process.has_moved.load(Relaxed)),
    }
}

/// How many words were read that must not be there.
pub(crate) fn wrong() -> u64 {
    WRONG.load(Relaxed)
}
