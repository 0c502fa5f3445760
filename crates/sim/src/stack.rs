//! Stacks for coroutines: all in one mapping.
//!
//! A mapping per stack would meet the kernel's limit on mappings at some 16,000 CPUs. The tops are
//! staggered, so that the frames of a thousand CPUs do not compete for the same set of the host's
//! cache. Below each stack lies a page that cannot be touched.

#![expect(unsafe_code, reason = "maps memory, and implements `Stack`")]

use std::io;
use std::ptr;
use std::rc::Rc;

use corosensei::stack::{Stack, StackPointer};

/// What a stack has room for, its guard page included. Debug builds use some 20 KiB.
const STACK_BYTES: usize = 128 << 10;
const GUARD_BYTES: usize = 4096;
/// Tops are up to so many cache lines apart from where they would be.
const COLOURS: usize = 61;

/// The mapping.
#[derive(Debug)]
struct Mapping {
    base: *mut libc::c_void,
    bytes: usize,
}

/// Room for so many stacks. Memory that is never touched costs nothing.
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
    /// Room for `capacity` stacks.
    ///
    /// # Errors
    ///
    /// If the host will not map as much.
    pub(crate) fn new(capacity: usize) -> io::Result<Self> {
        let bytes = capacity.max(1) * STACK_BYTES;
        // SAFETY: a new private mapping, wherever there is room.
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

    /// A stack that nobody uses; `None` if all are in use.
    ///
    /// # Errors
    ///
    /// If the host will not protect its guard page.
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

    /// Takes a stack back.
    pub(crate) fn give_back(&mut self, stack: &SlabStack) {
        self.free.push(stack.index);
    }
}

impl SlabStack {
    fn low(&self) -> usize {
        self.mapping.base as usize + self.index * STACK_BYTES
    }
}

// SAFETY: from `limit` to `base` is memory of our mapping that no other stack overlaps, which
// lives as long as the stack does (by the reference count); its lowest page is a guard page.
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
        // SAFETY: it is ours, and the last stack in it is gone.
        unsafe { libc::munmap(self.base, self.bytes) };
    }
}
