//! Random numbers: xoshiro256**, seeded by splitmix64.
//!
//! The generator is our own because the streams of a library may change with its version. Results
//! must be the same bytes for the same seed in every version.

/// A stream of random numbers.
#[derive(Clone, Debug)]
#[must_use]
pub struct Rng([u64; 4]);

impl Rng {
    /// Creates the stream of a seed.
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        Self(core::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        }))
    }

    /// Creates the stream of the `index`-th part of an experiment with the given seed.
    pub fn stream(seed: u64, index: u64) -> Self {
        Self::new(seed ^ index.wrapping_mul(0xd134_2543_de82_ef95).rotate_left(17))
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        let state = &mut self.0;
        let result = state[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = state[1] << 17;
        state[2] ^= state[0];
        state[3] ^= state[1];
        state[1] ^= state[2];
        state[0] ^= state[3];
        state[2] ^= shifted;
        state[3] = state[3].rotate_left(45);
        result
    }

    /// A number below `bound`. The probabilities of two numbers differ by at most `bound` / 2⁶⁴.
    ///
    /// # Panics
    ///
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below 0");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected numbers are from the published reference implementations with the same seed.
    #[test]
    fn stream_matches_published_reference() {
        let mut rng = Rng([1, 2, 3, 4]);
        let first: [u64; 4] = core::array::from_fn(|_| rng.next_u64());
        assert_eq!(first, [11520, 0, 1_509_978_240, 1_215_971_899_390_074_240]);
    }

    #[test]
    fn streams_of_one_seed_differ() {
        let mut first: Vec<u64> = (0..100).map(|i| Rng::stream(5, i).next_u64()).collect();
        first.sort_unstable();
        first.dedup();
        assert_eq!(first.len(), 100);
    }
}
