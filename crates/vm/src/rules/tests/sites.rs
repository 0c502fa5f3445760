//! The places in the code that obey a rule, and the one that is broken.

use alloc::collections::BTreeSet;
use core::cell::{Cell, RefCell};
use core::panic::Location;
use core::sync::atomic::Ordering;

use super::machine::Promise;
use crate::rules::Rule;

/// A place that obeys a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Site {
    pub(super) rule: Rule,
    pub(super) file: &'static str,
    line: u32,
    column: u32,
}

/// The one thing that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    Nothing,
    /// A place has this ordering, which is weaker than its rule.
    Site(Site, Ordering),
    /// The platform breaks a promise.
    Platform(Promise),
}

std::thread_local! {
    // All threads of loom are on one thread of the machine.
    static BROKEN: Cell<Broken> = const { Cell::new(Broken::Nothing) };
    static REACHED: RefCell<BTreeSet<Site>> = const { RefCell::new(BTreeSet::new()) };
}

/// Returns a weaker ordering if the caller's place is broken.
#[track_caller]
pub(crate) fn weakened(rule: Rule) -> Option<Ordering> {
    let place = Location::caller();
    let site = Site { rule, file: place.file(), line: place.line(), column: place.column() };
    REACHED.with_borrow_mut(|reached| reached.insert(site));
    match BROKEN.get() {
        Broken::Site(broken, ordering) if broken == site => Some(ordering),
        _ => None,
    }
}

/// Returns `true` if the platform breaks `promise`.
pub(super) fn is_broken(promise: Promise) -> bool {
    BROKEN.get() == Broken::Platform(promise)
}

/// Breaks one thing until the next call.
pub(super) fn set_broken(broken: Broken) {
    BROKEN.set(broken);
}

/// Every place that this thread has reached.
pub(super) fn reached() -> BTreeSet<Site> {
    REACHED.with_borrow(Clone::clone)
}
