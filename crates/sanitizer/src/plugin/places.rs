//! Where a CPU executes a block. QEMU translates a block of a physical page once, and executes it
//! at each address at which the page is mapped: the address of the translation is not the program
//! counter of every execution.

use std::sync::atomic::{AtomicU64, Ordering};

/// Pages that are remembered.
const PAGES: usize = 256;
/// A page that no block has.
const NOTHING: u64 = u64::MAX;

/// For the pages of a CPU's blocks, the distance of the program counter from the address of the
/// translation, until the CPU loads other tables. Only the CPU's own thread uses it.
#[derive(Debug)]
pub(super) struct Places {
    pages: Box<[(AtomicU64, AtomicU64); PAGES]>,
    /// The distance in the CPU's last block.
    last: AtomicU64,
}

impl Default for Places {
    fn default() -> Self {
        let pages = std::array::from_fn(|_| (AtomicU64::new(NOTHING), AtomicU64::new(0)));
        Self { pages: Box::new(pages), last: AtomicU64::new(0) }
    }
}

impl Places {
    /// The program counter of a block that was translated at `pc`. The first time, `read` reads it.
    pub(super) fn at(&self, pc: u64, read: impl FnOnce() -> Option<u64>) -> u64 {
        let page = pc >> 12;
        let (known, distance) = &self.pages[page as usize % PAGES];
        if known.load(Ordering::Relaxed) != page {
            let found = read().filter(|found| found % 4096 == pc % 4096).unwrap_or(pc);
            distance.store(found.wrapping_sub(pc), Ordering::Relaxed);
            known.store(page, Ordering::Relaxed);
        }
        let distance = distance.load(Ordering::Relaxed);
        self.last.store(distance, Ordering::Relaxed);
        pc.wrapping_add(distance)
    }

    /// The program counter of an instruction in the last block.
    pub(super) fn within(&self, pc: u64) -> u64 {
        pc.wrapping_add(self.last.load(Ordering::Relaxed))
    }

    /// Forgets all pages: other tables are loaded.
    pub(super) fn clear(&self) {
        for (page, _) in self.pages.iter() {
            page.store(NOTHING, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_block_has_the_counter_of_each_space() {
        let places = Places::default();
        assert_eq!(places.at(0x1234, || Some(0x7f_0000_1234)), 0x7f_0000_1234);
        assert_eq!(places.at(0x1300, || unreachable!()), 0x7f_0000_1300);
        assert_eq!(places.within(0x1310), 0x7f_0000_1310);
        places.clear();
        assert_eq!(places.at(0x1234, || Some(0x55_0000_1234)), 0x55_0000_1234);
        places.clear();
        assert_eq!(places.at(0x1234, || None), 0x1234);
    }
}
