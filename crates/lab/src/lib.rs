//! What the `shootdown` command is made of that others can use, too: designs by name, and running
//! a workload under one.

mod design;

pub use design::{Design, UnknownDesign};
