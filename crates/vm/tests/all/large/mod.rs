//! Large pages: collapses, operations on all of a large page or on a part, and concurrent
//! operations.

mod collapse;
mod formats;
mod memory;
mod interruptions;
mod parts;
mod reclaim;
mod threads;
mod fixture;
