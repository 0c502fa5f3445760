//! The kernel's heap: blocks whose sizes are powers of two, with a list of the free blocks of each
//! size. Blocks are never merged or split, so each call takes a small, bounded number of
//! instructions.

#![expect(unsafe_code, reason = "an allocator: keeps lists in free memory")]

use core::alloc::{GlobalAlloc, Layout};
use core::ops::Range;
use core::ptr;

use crate::kernel::arch::{Arch, Architecture};
use crate::kernel::sync::{Mutex, masked};

#[global_allocator]
static HEAP: KernelHeap = KernelHeap(Mutex::new(Heap::EMPTY));

/// The heap. It is locked with interrupts masked: the scheduler allocates while it holds its own
/// lock, which the timer's handler also takes. If that handler could interrupt an allocation, two
/// CPUs could each wait for the lock that the other holds.
struct KernelHeap(Mutex<Heap>);

struct Heap {
    /// Lists of free blocks, by size: 16 bytes, 32 bytes and so on.
    free: [*mut Block; SIZES],
    /// Memory that has never been used.
    fresh: Range<usize>,
}

/// A free block, which holds the next free block of its size.
struct Block(*mut Self);

const SIZE_MIN_LOG: u32 = 4;
const SIZES: usize = 32;
/// Alignment of larger blocks.
const ALIGN_MAX: usize = 4096;

// SAFETY: only the heap uses the memory of free blocks.
unsafe impl Send for Heap {}

/// Gives the heap its memory, which nothing else may use.
pub(super) fn set_up(memory: Range<u64>) {
    let mut heap = HEAP.0.lock();
    let address = |physical| Arch::phys_to_virt::<u8>(physical) as usize;
    heap.fresh = address(memory.start)..address(memory.end);
}

impl Heap {
    const EMPTY: Self = Self { free: [ptr::null_mut(); SIZES], fresh: 0..0 };

    fn allocate(&mut self, size_log: u32) -> *mut u8 {
        let list = &mut self.free[(size_log - SIZE_MIN_LOG) as usize];
        if !list.is_null() {
            let block = *list;
            // SAFETY: blocks in the list are free, and `free` has written them.
            *list = unsafe { (*block).0 };
            return block.cast();
        }
        let size = 1_usize << size_log;
        let start = self.fresh.start.next_multiple_of(size.min(ALIGN_MAX));
        match start.checked_add(size) {
            Some(end) if end <= self.fresh.end => {
                self.fresh.start = end;
                ptr::with_exposed_provenance_mut(start)
            }
            _ => ptr::null_mut(),
        }
    }

    fn free(&mut self, block: *mut Block, size_log: u32) {
        let list = &mut self.free[(size_log - SIZE_MIN_LOG) as usize];
        // SAFETY: the block has no owner any more, and has room for a pointer.
        unsafe { block.write(Block(*list)) };
        *list = block;
    }
}

/// The base-2 logarithm of a block's size for this layout; `None` if there are no such blocks.
fn size_log(layout: Layout) -> Option<u32> {
    let size = layout.size().max(layout.align()).max(1 << SIZE_MIN_LOG);
    let log = size.checked_next_power_of_two()?.trailing_zeros();
    let is_known = layout.align() <= ALIGN_MAX && ((log - SIZE_MIN_LOG) as usize) < SIZES;
    is_known.then_some(log)
}

// SAFETY: blocks are aligned to their size or to `ALIGN_MAX`, whichever is less, and do not
// overlap.
unsafe impl GlobalAlloc for KernelHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        size_log(layout).map_or(ptr::null_mut(), |log| masked(|| self.0.lock().allocate(log)))
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if let Some(log) = size_log(layout) {
            masked(|| self.0.lock().free(block.cast(), log));
        }
    }
}
