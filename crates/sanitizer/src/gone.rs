//! Frames that a page table does not map any more, and what the kernel has stored into them since:
//! without a hook, the sign that a frame has a new owner.

use std::sync::{Mutex, PoisonError};

use hashbrown::HashMap;

const FRAME_BYTES: u64 = 4096;

/// For each frame with a store, one bit for each of its words.
#[derive(Debug, Default)]
pub(crate) struct Gone(Mutex<HashMap<u64, [u64; 8]>>);

impl Gone {
    fn with<R>(&self, act: impl FnOnce(&mut HashMap<u64, [u64; 8]>) -> R) -> R {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Forgets the stores into a frame: it has lost a mapping now, or has a new owner.
    pub(crate) fn forget(&self, frame: u64) {
        self.with(|frames| frames.remove(&frame));
    }

    /// The kernel stores into a frame. Returns `true` if every word of it has been stored.
    pub(crate) fn store(&self, address: u64, bytes: u64) -> bool {
        let first = address % FRAME_BYTES;
        let last = (first + bytes - 1).min(FRAME_BYTES - 1);
        self.with(|frames| {
            let words = frames.entry(address - first).or_default();
            (first / 8..=last / 8).for_each(|word| words[word as usize / 64] |= 1 << (word % 64));
            words.iter().all(|word| *word == u64::MAX)
        })
    }

    /// Returns `true` if the kernel has stored into the frame.
    pub(crate) fn is_stored(&self, frame: u64) -> bool {
        self.with(|frames| frames.contains_key(&frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_is_whole_with_its_last_word() {
        let gone = Gone::default();
        for word in (0..512).filter(|word| *word != 77) {
            assert!(!gone.store(0x5000 + word * 8, 8), "{word}");
        }
        assert!(!gone.is_stored(0x6000) && gone.is_stored(0x5000));
        // The last byte of one word and the first of the next.
        assert!(gone.store(0x5000 + 77 * 8 + 7, 2));
        gone.forget(0x5000);
        assert!(!gone.store(0x5ff8, 64) && !gone.is_stored(0x6000));
    }
}
