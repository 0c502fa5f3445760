//! A cell that the first CPU sets before there are others, and that all read for ever.

#![expect(unsafe_code, reason = "hands out what a pointer points to")]

use alloc::boxed::Box;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// The cell.
pub(crate) struct Once<T>(AtomicPtr<T>);

impl<T: Sync> Once<T> {
    /// An empty cell.
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Puts a value there, on the heap.
    pub(crate) fn set(&self, value: T) -> &'static T {
        self.publish(Box::leak(Box::new(value)))
    }

    /// Puts a value there that needs no heap.
    pub(crate) fn publish(&self, value: &'static T) -> &'static T {
        self.0.store(ptr::from_ref(value).cast_mut(), Ordering::Release);
        value
    }

    /// The value; `None` before it is set.
    pub(crate) fn find(&self) -> Option<&'static T> {
        // SAFETY: null, or what was published, which is shared for ever.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// The value.
    ///
    /// # Panics
    ///
    /// If it is not set: set-up is out of order.
    pub(crate) fn get(&self) -> &'static T {
        self.find().expect("it is made before the first thread")
    }
}
