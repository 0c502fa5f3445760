//! Marks pages as accessed and dirty. An MMU with hardware marking would do this; this one only
//! refuses the access. See the page-table format, "Accessed and dirty pages".

#![expect(unsafe_code, reason = "walks page tables")]

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire};

use shootdown_vm::{Access, Format, Frame, Leaf, LoongArch64 as Tables, Marks, Protection};

use super::{csr, windows};

/// The end of user addresses.
const USER_END: u64 = 1 << 47;

/// Returns `true` if the loaded page tables now allow an access. In that case, marks the page, and
/// the access can be tried again.
///
/// Call this with interrupts masked since the access was refused: a CPU that frees tables waits for
/// this CPU's answer, so the tables that the walk finds stay allocated.
pub(super) fn allows(address: u64, access: Access) -> bool {
    if address >= USER_END {
        return false;
    }
    let (needed, marks) = match access {
        Access::Read => (Protection::READ, Marks::ACCESSED),
        Access::Write => (Protection::WRITE, Marks::ACCESSED | Marks::DIRTY),
        Access::Execute => (Protection::EXECUTE, Marks::ACCESSED),
    };
    let mut table = Frame(csr::read::<{ csr::PGDL }>() >> 12);
    let mut level = Tables::LEVELS - 1;
    loop {
        let entry = entry(table, Tables::index(address, level));
        let current = entry.load(Acquire);
        if level > 0
            && let Some(next) = Tables::as_table(current)
        {
            (table, level) = (next, level - 1);
            continue;
        }
        let Some(leaf) = Tables::as_leaf_at(current, level) else {
            return false;
        };
        if !leaf.protection.contains(needed) {
            return false;
        }
        let marked = Tables::leaf_at(Leaf { marks: leaf.marks | marks, ..leaf }, level);
        // If another CPU has changed the entry, the loop looks again, because the new entry may
        // allow less. A removed entry must not be marked: the CPU that removed it has already read
        // its marks.
        if marked == current || entry.compare_exchange(current, marked, AcqRel, Acquire).is_ok() {
            return true;
        }
    }
}

fn entry(table: Frame, index: usize) -> &'static AtomicU64 {
    // SAFETY: tables have 512 entries, which all CPUs access atomically, and stay allocated for the
    // duration of the walk: see `allows`.
    unsafe { &*windows::memory::<AtomicU64>(table.address()).add(index) }
}
