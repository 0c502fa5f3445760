//! For each frame of physical memory, the CPUs that may hold a translation to it or from it. A
//! store into a page table, or a frame that gets a new owner, concerns these CPUs alone.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The largest number of CPUs.
pub const CPUS_MAX: usize = 512;
/// Number of CPUs with a bit of their own. A bit of more CPUs is never cleared.
const BITS: usize = 62;
/// The bit of frames that are page tables.
const TABLE: u64 = 1 << 63;
/// The bit of frames that have lost a mapping, and no new owner since.
const GONE: u64 = 1 << 62;

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
        if cpu_count <= BITS {
            self.clear(address, 1 << cpu);
        }
    }

    /// Sets a bit. Returns `true` if it was not set.
    fn set(&self, address: u64, bit: u64) -> bool {
        self.word(address).is_some_and(|word| {
            word.load(Ordering::SeqCst) & bit == 0
                && word.fetch_or(bit, Ordering::SeqCst) & bit == 0
        })
    }

    fn clear(&self, address: u64, bit: u64) {
        if let Some(word) = self.word(address) {
            word.fetch_and(!bit, Ordering::SeqCst);
        }
    }

    fn has(&self, address: u64, bits: u64) -> bool {
        self.word(address).is_some_and(|word| word.load(Ordering::SeqCst) & bits != 0)
    }

    /// Records that the frame is a page table. Returns `true` if it was none.
    pub fn becomes_table(&self, address: u64) -> bool {
        self.set(address, TABLE)
    }

    /// Records that the frame is an ordinary one again.
    pub fn is_no_table(&self, address: u64) {
        self.clear(address, TABLE);
    }

    /// Returns `true` if the frame was a page table when a CPU walked it last.
    pub fn is_table(&self, address: u64) -> bool {
        self.has(address, TABLE)
    }

    /// Records that the frame has lost a mapping. Returns `true` if it had not.
    pub(crate) fn becomes_gone(&self, address: u64) -> bool {
        self.set(address, GONE)
    }

    /// Records that the frame has a new owner.
    pub(crate) fn is_not_gone(&self, address: u64) {
        self.clear(address, GONE);
    }

    /// Returns `true` if the frame has lost a mapping, and no new owner since.
    pub(crate) fn is_gone(&self, address: u64) -> bool {
        self.has(address, GONE)
    }

    /// Returns `true` if the frame has lost a mapping, and is no page table.
    pub(crate) fn is_gone_page(&self, address: u64) -> bool {
        let word = self.word(address).map_or(0, |word| word.load(Ordering::SeqCst));
        word & (TABLE | GONE) == GONE
    }

    /// Returns `true` if a store into the frame is an event.
    pub(crate) fn is_observed(&self, address: u64) -> bool {
        self.has(address, TABLE | GONE)
    }

    /// The CPUs below `cpu_count` that may hold a translation to the frame, or from it.
    pub fn holders(&self, address: u64, cpu_count: usize) -> impl Iterator<Item = usize> + use<> {
        let word = self.word(address).map_or(0, |word| word.load(Ordering::SeqCst));
        (0..cpu_count).filter(move |cpu| word >> (cpu % BITS) & 1 != 0)
    }
}
