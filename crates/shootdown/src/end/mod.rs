//! The end of pages, of spaces, and of CPUs that stop.

pub(crate) mod gather;
pub(crate) mod parked;
pub(crate) mod reclaim;
pub(crate) mod retire;
pub(crate) mod dead_spaces;
pub(crate) mod disconnect;
pub(crate) mod lazy_entry;
