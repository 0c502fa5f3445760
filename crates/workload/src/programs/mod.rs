//! Benchmarks, as generators of operations.

mod loops;
mod seed000;

pub use loops::{Kind, Loop, Tasks};
pub use seed000::{MadviseMigrate, PthreadMmap, Touched};
