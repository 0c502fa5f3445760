//! For each frame of physical memory, the CPUs that may hold a translation to it or from it. A
//! store into a page table, or a frame that gets a new owner, concerns these CPUs alone.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of CPUs with a bit of their own. A bit of more CPUs is never cleared.
const BITS: usize = 63;
/// The bit of frames that are page tables.
const TABLE: u64 = 1 << 63;

const FRAME_SHIFT: u32 = 12;
/// Frames in one chunk, and chunks.
const CHUNK: usize = 4096;
const CHUNKS: usize = 1 << 17;
/// The first physical address without a word: 2 TiB.
pub(crate) const LIMIT: u64 = ((CHUNK * CHUNKS) as u64) << FRAME_SHIFT;

type Chunk = Box<[AtomicU64]>;

/// The words of all frames.
///
/// Each word is written and read with sequential consistency, because two CPUs each write one word
/// and read another: the CPU that fills an entry sets its bit and reads the page-table entry again;
/// the CPU that stores into the table stores and reads the bits. One of the two observes the other.
#[derive(Debug)]
pub struct Frames(Box<[OnceLock<Chunk>]>);

impl Default for Frames {
    fn default() -> Self {
        Self((0..CHUNKS).map(|_| OnceLock::new()).collect())
    }
}

impl Frames {
    fn word(&self, address: u64) -> Option<&AtomicU64> {
        let number = (address >> FRAME_SHIFT) as usize;
        let chunk = self.0.get(number / CHUNK)?;
        let chunk = chunk.get_or_init(|| (0..CHUNK).map(|_| AtomicU64::new(0)).collect());
        Some(&chunk[number % CHUNK])
    }

    /// Records that a CPU may hold a translation to the frames of a page, or from a table.
    pub fn hold(&self, cpu: usize, address: u64, bytes: u64) {
        let bit = 1 << (cpu % BITS);
        for address in (address..address + bytes).step_by(1 << FRAME_SHIFT) {
            if let Some(word) = self.word(address)
                && word.load(Ordering::SeqCst) & bit == 0
            {
                word.fetch_or(bit, Ordering::SeqCst);
            }
        }
    }

    /// Records that a CPU holds nothing any more. The caller has the lock of this CPU's TLB.
    pub fn release(&self, cpu: usize, address: u64, cpu_count: usize) {
        if cpu_count <= BITS
            && let Some(word) = self.word(address)
        {
            word.fetch_and(!(1 << cpu), Ordering::SeqCst);
        }
    }

    /// Records that the frame is a page table. Returns `true` if it was none.
    pub fn becomes_table(&self, address: u64) -> bool {
        let Some(word) = self.word(address) else { return false };
        word.load(Ordering::SeqCst) & TABLE == 0
            && word.fetch_or(TABLE, Ordering::SeqCst) & TABLE == 0
    }

    /// Records that the frame is an ordinary one again, unless a CPU holds something.
    pub fn is_no_table(&self, address: u64) {
        if let Some(word) = self.word(address) {
            // If a CPU has set its bit meanwhile, the frame stays a table.
            let _ = word.compare_exchange(TABLE, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Returns `true` if the frame was a page table when a CPU walked it last.
    pub fn is_table(&self, address: u64) -> bool {
        self.word(address).is_some_and(|word| word.load(Ordering::SeqCst) & TABLE != 0)
    }

    /// The CPUs below `cpu_count` that may hold a translation to the frame, or from it.
    pub fn holders(&self, address: u64, cpu_count: usize) -> impl Iterator<Item = usize> + use<> {
        let word = self.word(address).map_or(0, |word| word.load(Ordering::SeqCst));
        (0..cpu_count).filter(move |cpu| word >> (cpu % BITS) & 1 != 0)
    }
}
