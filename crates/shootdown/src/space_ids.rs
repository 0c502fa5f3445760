//! The ids of spaces. A CPU takes a block of them at once, so that CPUs that start processes do not
//! all write one word.

use core::sync::atomic::Ordering::Relaxed;

use crate::ids::SpaceId;
use crate::memory::Word;

/// Number of ids in a block. A CPU that starts a process every 20 µs, with two spaces each, takes a
/// block every 640 µs. If 512 CPUs do so, the shared word is written every 1.3 µs: the time of nine
/// transfers of its line on the simulated `xeon-2s`.
const BLOCK: u64 = 64;

/// Returns an id that no other call returns. `blocks` is the number of blocks that CPUs have taken,
/// and `last` the last id that this CPU has given to a space: a multiple of [`BLOCK`] if it needs
/// another block.
///
/// The thread may be moved during the call, and then changes a word of the CPU that it has left, or
/// be interrupted by a handler that makes a space. So each id is taken by an exchange, which
/// succeeds once for each value of `last`: the word holds no value twice.
pub(crate) fn next_id<W: Word>(blocks: &W, last: &W) -> SpaceId {
    // Relaxed: ids must differ, and order nothing.
    let mut id = last.load(Relaxed);
    while id % BLOCK != 0 {
        // Relaxed: the same. Without the comparison, two threads would take one id.
        match last.compare_exchange(id, id + 1, Relaxed, Relaxed) {
            Ok(_) => return SpaceId(id + 1),
            Err(found) => id = found,
        }
    }
    // Relaxed: the same.
    let first = blocks.fetch_add(1, Relaxed) * BLOCK + 1;
    // Relaxed: the same. If another thread has given the CPU a block by now, the rest of this block
    // is not used.
    let _ = last.compare_exchange(id, first, Relaxed, Relaxed);
    SpaceId(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;
    use loom::sync::atomic::AtomicU64 as LoomWord;
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::vec::Vec;

    crate::word_by_atomic!(LoomWord, |value| Self::new(value), |this| this);

    #[test]
    fn cpu_takes_another_block_after_64_ids() {
        let (blocks, first, second) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let ids = |last, count| (0..count).map(|_| next_id(&blocks, last).0).collect::<Vec<_>>();
        assert_eq!(ids(&first, 63), (1..64).collect::<Vec<_>>());
        assert_eq!(ids(&second, 1), [65]);
        assert_eq!(ids(&first, 3), [64, 129, 130], "the last id of the block, and the next block");
        assert_eq!(ids(&second, 64)[62..], [128, 193]);
        assert_eq!(blocks.load(Relaxed), 4);
    }

    /// Two threads on one CPU, one of which was moved away or interrupted, and a thread on another
    /// CPU. `given` is the number of ids that the first CPU has given before.
    fn ids_differ(given: u64) {
        loom::model(move || {
            let words = Arc::new([0, 0, 0].map(LoomWord::new));
            let mut ids: BTreeSet<_> = (0..given).map(|_| next_id(&words[0], &words[1])).collect();
            let take_two =
                |words: &[LoomWord; 3], cpu: usize| [0; 2].map(|_| next_id(&words[0], &words[cpu]));
            let threads = [1, 2].map(|cpu| {
                let words = Arc::clone(&words);
                loom::thread::spawn(move || take_two(&words, cpu))
            });
            ids.extend(take_two(&words, 1));
            for thread in threads {
                ids.extend(thread.join().unwrap());
            }
            assert_eq!(ids.len() as u64, given + 6);
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri cannot run loom")]
    fn ids_differ_on_one_cpu() {
        ids_differ(1);
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri cannot run loom")]
    fn ids_differ_at_the_end_of_a_block() {
        ids_differ(BLOCK - 1);
        ids_differ(BLOCK);
    }
}
