//! All integration tests of the crate in one executable, so that the crate is instantiated and
//! linked once.

mod arc_asid_range;
mod arm64_skip_broadcast;
mod bound;
mod causes;
mod eevdf;
mod encoded;
mod exhausted;
mod folios;
mod heap;
mod hostile;
mod large;
mod latr;
mod memory_model;
mod operations;
mod powerpc_shoot_lazies;
mod pressure;
mod process_starts;
mod programs;
mod replay;
mod replay_times;
mod statements;
mod text;
mod waits;
mod x86_batched_unmap;
