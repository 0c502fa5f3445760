//! Stacks for coroutines, all in one mapping.
//!
//! One mapping per stack would exceed the kernel's limit on mappings at about 16,000 CPUs. The tops
//! are staggered, so that the frames of a thousand CPUs do not compete for one set of the host's
//! cache. An inaccessible guard page is below each stack.

#![expect(unsafe_code, reason = "maps memory, and implements `Stack`")]

use std::io;
use std::ptr;
use std::rc::Rc;

use corosensei::stack::{Stack, StackPointer};

/// Size of a stack, including its guard page. Debug builds use about 20 KiB.
const STACK_BYTES: usize = 128 << 10;
const GUARD_BYTES: usize = 4096;
/// Number of different offsets of stack tops, in cache lines.
const COLOURS: usize = 61;

/// The mapping.
#[derive(Debug)]
struct Mapping {
    base: *mut libc::c_void,
    bytes: usize,
}

/// Memory for a number of stacks. Memory that is never touched costs nothing.
#[derive(Debug)]
pub(crate) struct StackSlab {
    mapping: Rc<Mapping>,
    used: usize,
    capacity: usize,
    free: Vec<usize>,
}

/// One stack of a slab.
#[derive(Debug)]
pub(crate) struct SlabStack {
    mapping: Rc<Mapping>,
    index: usize,
}

impl StackSlab {
    /// Reserves memory for `capacity` stacks.
    ///
    /// # Errors
    ///
    /// If the host cannot map that amount of memory.
    pub(crate) fn new(capacity: usize) -> io::Result<Self> {
        let bytes = capacity.max(1) * STACK_BYTES;
        // SAFETY: creates a new private mapping, at an address that the kernel chooses.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = Rc::new(Mapping { base, bytes });
        Ok(Self { mapping, used: 0, capacity, free: Vec::new() })
    }

    /// Returns an unused stack; `None` if all are in use.
    ///
    /// # Errors
    ///
    /// If the host cannot protect its guard page.
    pub(crate) fn take(&mut self) -> io::Result<Option<SlabStack>> {
        let stack = |index| SlabStack { mapping: Rc::clone(&self.mapping), index };
        if let Some(index) = self.free.pop() {
            return Ok(Some(stack(index)));
        }
        if self.used == self.capacity {
            return Ok(None);
        }
        let stack = stack(self.used);
        // SAFETY: the page lies within our mapping, and no stack has used it.
        let failed =
            unsafe { libc::mprotect(stack.low() as *mut _, GUARD_BYTES, libc::PROT_NONE) } != 0;
        if failed {
            return Err(io::Error::last_os_error());
        }
        self.used += 1;
        Ok(Some(stack))
    }

    /// Makes a stack available again.
    pub(crate) fn give_back(&mut self, stack: &SlabStack) {
        self.free.push(stack.index);
    }
}

impl SlabStack {
    fn low(&self) -> usize {
        self.mapping.base as usize + self.index * STACK_BYTES
    }
}

// SAFETY: the memory from `limit` to `base` belongs to our mapping. No other stack overlaps it, and
// the reference count keeps it mapped while the stack exists. Its lowest page is a guard page.
unsafe impl Stack for SlabStack {
    fn base(&self) -> StackPointer {
        let top = self.low() + STACK_BYTES - self.index % COLOURS * 64;
        StackPointer::new(top).expect("a mapping is not at address 0")
    }
    fn limit(&self) -> StackPointer {
        StackPointer::new(self.low()).expect("a mapping is not at address 0")
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no stack in it exists any more.
        unsafe { libc::munmap(self.base, self.bytes) };
    }
}
