//! All integration tests of the crate in one executable, so that the crate is instantiated and
//! linked once.

mod broadcasts;
mod causes;
mod classes;
mod description;
mod large;
mod locks;
mod machine;
mod polls;
