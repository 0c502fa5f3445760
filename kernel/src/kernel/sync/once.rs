//! A cell that the first CPU sets before it starts other CPUs, and that all CPUs can then read.

#![expect(unsafe_code, reason = "dereferences a pointer that it has stored")]

use alloc::boxed::Box;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// A cell that holds a reference once it is set.
pub(crate) struct Once<T>(AtomicPtr<T>);

impl<T: Sync> Once<T> {
    /// An empty cell.
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Moves `value` to the heap and sets the cell.
    pub(crate) fn set(&self, value: T) -> &'static T {
        self.publish(Box::leak(Box::new(value)))
    }

    /// Sets the cell. Needs no heap.
    pub(crate) fn publish(&self, value: &'static T) -> &'static T {
        self.0.store(ptr::from_ref(value).cast_mut(), Ordering::Release);
        value
    }

    /// The value; `None` if the cell is not set.
    pub(crate) fn find(&self) -> Option<&'static T> {
        // SAFETY: the pointer is null, or was made from a shared reference that lives for ever.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// The value.
    ///
    /// # Panics
    ///
    /// If the cell is not set: the set-up is out of order.
    pub(crate) fn get(&self) -> &'static T {
        self.find().expect("the cell is set before its first use")
    }
}
