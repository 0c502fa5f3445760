//! The host's heap, which can be changed, and watched, for the runs of one thread.

#![expect(unsafe_code, reason = "an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

use shootdown_sim::is_cached;

/// The heap that a thread of the host uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heap {
    /// The system's.
    Usual,
    /// The system's. Each block that is freed is checked.
    Checked,
    /// No memory is used again, and the addresses differ from those of other heaps.
    Fresh,
}

thread_local! {
    static HEAP: Cell<Heap> = const { Cell::new(Heap::Usual) };
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    /// Size of the first block that was freed while a simulated CPU had it in its cache.
    static FREED_CACHED: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Calls `f` with this heap. Returns also the size of the first block that was freed while it was
/// in a simulated cache, if the heap is checked.
pub(crate) fn with_heap<R>(heap: Heap, f: impl FnOnce() -> R) -> (R, Option<usize>) {
    HEAP.set(heap);
    let result = f();
    HEAP.set(Heap::Usual);
    (result, FREED_CACHED.take())
}

struct Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

// SAFETY: each call is forwarded to the system's allocator, or frees nothing.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if HEAP.get() == Heap::Fresh {
            let number = ALLOCATIONS.replace(ALLOCATIONS.get() + 1);
            let gap = Layout::array::<u64>(1 + number % 7).expect("some bytes");
            // SAFETY: the size is not 0.
            black_box(unsafe { System.alloc(gap) });
        }
        // SAFETY: the caller guarantees the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match HEAP.get() {
            Heap::Usual => {}
            Heap::Checked => {
                let start = block.addr();
                if FREED_CACHED.get().is_none() && is_cached(start..start + layout.size()) {
                    FREED_CACHED.set(Some(layout.size()));
                }
            }
            Heap::Fresh => return,
        }
        // SAFETY: the caller guarantees the contract.
        unsafe { System.dealloc(block, layout) }
    }
}
