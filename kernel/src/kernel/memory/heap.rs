//! The kernel's heap: pieces whose sizes are powers of two, those that are free in a list for each
//! size. Nothing is ever joined or split, so that each call takes a few instructions, always.

#![expect(unsafe_code, reason = "an allocator: lists through memory that is free")]

use core::alloc::{GlobalAlloc, Layout};
use core::ops::Range;
use core::ptr;

use crate::kernel::arch::{Arch, Architecture};
use crate::kernel::sync::{Mutex, masked};

#[global_allocator]
static HEAP: KernelHeap = KernelHeap(Mutex::new(Heap::EMPTY));

/// Locked with interrupts masked: the scheduler allocates with its own lock held, which the handler
/// of the timer takes, too. Were that to interrupt who allocates, each would wait for the other.
struct KernelHeap(Mutex<Heap>);

struct Heap {
    /// By size, from 16 bytes on.
    free: [*mut Piece; SIZES],
    /// What was never used.
    fresh: Range<usize>,
}

/// A piece that is free: the next one of its size.
struct Piece(*mut Self);

const SIZE_MIN_LOG: u32 = 4;
const SIZES: usize = 32;
/// Larger pieces are aligned to this.
const ALIGN_MAX: usize = 4096;

// SAFETY: the pieces are memory that is nobody else's.
unsafe impl Send for Heap {}

/// Gives it memory, which is nobody else's.
pub(super) fn set_up(memory: Range<u64>) {
    let mut heap = HEAP.0.lock();
    let seen = |address| Arch::phys_to_virt::<u8>(address) as usize;
    heap.fresh = seen(memory.start)..seen(memory.end);
}

impl Heap {
    const EMPTY: Self = Self { free: [ptr::null_mut(); SIZES], fresh: 0..0 };

    fn take(&mut self, size_log: u32) -> *mut u8 {
        let list = &mut self.free[(size_log - SIZE_MIN_LOG) as usize];
        if !list.is_null() {
            let piece = *list;
            // SAFETY: what is in the list is free, and was written by `give_back`.
            *list = unsafe { (*piece).0 };
            return piece.cast();
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

    fn give_back(&mut self, piece: *mut Piece, size_log: u32) {
        let list = &mut self.free[(size_log - SIZE_MIN_LOG) as usize];
        // SAFETY: its owner has no use for it any more, and it has room for this.
        unsafe { piece.write(Piece(*list)) };
        *list = piece;
    }
}

/// Which size a piece must have; `None` if there are none of that kind.
fn size_log(layout: Layout) -> Option<u32> {
    let size = layout.size().max(layout.align()).max(1 << SIZE_MIN_LOG);
    let log = size.checked_next_power_of_two()?.trailing_zeros();
    let is_known = layout.align() <= ALIGN_MAX && ((log - SIZE_MIN_LOG) as usize) < SIZES;
    is_known.then_some(log)
}

// SAFETY: pieces are aligned to their size, or to `ALIGN_MAX` if that is less, and nobody has two.
unsafe impl GlobalAlloc for KernelHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        size_log(layout).map_or(ptr::null_mut(), |log| masked(|| self.0.lock().take(log)))
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        if let Some(log) = size_log(layout) {
            masked(|| self.0.lock().give_back(piece.cast(), log));
        }
    }
}
