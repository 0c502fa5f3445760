//! Operations on an address space, one per file.

mod advise;
mod collapse;
mod cow;
mod discard;
mod exit;
mod fault;
mod fault_around;
mod fault_large;
mod folio;
mod fork;
mod free_discarded;
mod hint;
pub(crate) mod large;
mod map;
mod protect;
mod read_ahead;
mod remap;
mod replicate;
mod unmap;
pub(crate) mod zero_page;

pub use advise::Advice;
pub use map::Place;
pub use remap::Moves;
