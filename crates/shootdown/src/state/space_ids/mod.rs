//! The ids of spaces. A CPU takes a block of them at once, so that CPUs that start processes do not
//! all write one word.

use core::sync::atomic::Ordering::Relaxed;

use crate::base::ids::SpaceId;
use crate::base::memory::Word;

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
mod tests;
