//! What an MMU that marks pages would do, where this one only refuses them: see the page-table
//! format, "Accessed and dirty pages".

#![expect(unsafe_code, reason = "walks page tables")]

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire};

use shootdown_vm::{Access, Format, Frame, Leaf, LoongArch64 as Tables, Marks, Protection};

use super::{csr, windows};

/// User addresses are below.
const USER_END: u64 = 1 << 47;

/// Whether the page tables that are loaded allow an access, as they are now. Marks the page if so:
/// the access is then to be tried again.
///
/// Interrupts have been masked since the access was refused. Who frees tables waits for this CPU's
/// answer, so those that are found stay.
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
        let held = entry.load(Acquire);
        if level > 0
            && let Some(next) = Tables::as_table(held)
        {
            (table, level) = (next, level - 1);
            continue;
        }
        let Some(leaf) = Tables::as_leaf_at(held, level) else {
            return false;
        };
        if !leaf.protection.contains(needed) {
            return false;
        }
        let marked = Tables::leaf_at(Leaf { marks: leaf.marks | marks, ..leaf }, level);
        // Else somebody has changed it: what there is now may allow less. No mark may come to an
        // entry that was taken away, for who took it has looked for marks.
        if marked == held || entry.compare_exchange(held, marked, AcqRel, Acquire).is_ok() {
            return true;
        }
    }
}

fn entry(table: Frame, index: usize) -> &'static AtomicU64 {
    // SAFETY: tables have 512 entries, all of which everyone accesses atomically, and stay for as
    // long as we look.
    unsafe { &*windows::memory::<AtomicU64>(table.address()).add(index) }
}
