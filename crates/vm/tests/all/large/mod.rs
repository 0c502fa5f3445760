//! Large pages: collapses, operations on all of a large page or on a part, and concurrent
//! operations.

mod collapse;
mod first_write;
pub(crate) mod fixture;
mod folios;
mod formats;
mod interruptions;
mod memory;
mod parts;
mod reclaim;
mod threads;
