//! All integration tests of the crate in one executable, so that the crate is instantiated and
//! linked only once.

mod deferred;
mod discard;
mod execute_loss;
mod extra_flushes;
mod fault_around;
mod flushes;
mod hint;
mod interleavings;
mod large;
mod memory;
mod model;
mod page_records;
mod placement;
mod platform;
mod quarantine;
mod races;
mod read_ahead;
mod reclaim;
mod remap;
mod replicas;
mod resize;
mod threads;
mod zero_page;
