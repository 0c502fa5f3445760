//! Work that is not complete when its operation changes the page tables: flushes in flight, unmaps
//! whose flush is deferred, and page tables that a CPU may still walk.

mod free;
pub(crate) mod in_flight;
mod quarantine;
pub(crate) mod ranges;
pub(crate) mod tables;
pub(crate) mod unmaps;
