//! What is written once, by the first CPU before there are others, and read for ever.

#![expect(unsafe_code, reason = "hands out what a pointer points to")]

use alloc::boxed::Box;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// A place for it.
pub(crate) struct Once<T>(AtomicPtr<T>);

impl<T: Sync> Once<T> {
    /// Nothing yet.
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Puts it there, for ever.
    pub(crate) fn set(&self, value: T) -> &'static T {
        let value = Box::leak(Box::new(value));
        self.0.store(ptr::from_mut(value), Ordering::Release);
        value
    }

    /// What is there; `None` before it was put there.
    pub(crate) fn find(&self) -> Option<&'static T> {
        // SAFETY: it came from a box that was leaked, and is shared from then on.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// What is there.
    ///
    /// # Panics
    ///
    /// If nothing is: set-up is out of order.
    pub(crate) fn get(&self) -> &'static T {
        self.find().expect("it is made before the first thread")
    }
}
