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
