//! Benchmarks, as generators of operations.

mod loops;
mod seed000;
mod seed001;

pub use loops::{Kind, Loop, Tasks};
pub use seed000::{MadviseMigrate, PthreadMmap, Touched};
pub use seed001::{ContextSwitches, ExitStorm};
