//! Hashes of states, by which the search recognises a visited state.

use std::hash::{Hash, Hasher};

/// Adds a value to a hash.
pub(crate) const fn mix(hash: u64, value: u64) -> u64 {
    // The sum keeps a hash of zeros from being zero.
    finish((hash.rotate_left(23) ^ value).wrapping_add(0x9e37_79b9_7f4a_7c15))
}

pub(crate) const fn finish(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// Returns the hash of a value.
pub(crate) fn hash_of(value: &impl Hash) -> u64 {
    let mut mixer = Mixer(0);
    value.hash(&mut mixer);
    mixer.0
}

struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = mix(self.0, u64::from_le_bytes(word));
        }
    }
}

/// Hasher for keys that are hashes already.
#[derive(Default)]
pub(crate) struct Ready(u64);

impl Hasher for Ready {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are hashes");
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}
