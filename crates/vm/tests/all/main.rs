//! All integration tests of the crate in one executable, so that the crate is instantiated and
//! linked once.

mod as_linux;
mod fault_around;
mod first_read;
mod flushes;
mod held;
mod interleavings;
mod large;
mod memory;
mod model;
mod parked;
mod platform;
mod races;
mod read_ahead;
mod reclaim;
mod remap;
mod resize;
mod threads;
