//! Call stacks of the Linux kernel's requests to flush TLBs.
//!
//! In reading order: [`stack`] defines samples and their stacks. `events` receives samples and
//! mappings from the kernel. `modules` opens the mapped files, `processes` knows where they are
//! mapped, `jit_code` reads code that belongs to no file, and `unwind` follows user stacks.
//! [`Sampler`] does this in a thread. `kernel`, `perf_map` and `names` find the names of functions,
//! also in `debug_files`, for [`Symbols`].

#![warn(missing_docs)]

mod debug_files;
mod events;
mod jit_code;
mod kernel;
mod kernel_thread;
mod modules;
mod names;
mod perf_map;
mod processes;
mod sampler;
pub mod stack;
mod symbols;
mod unwind;

pub use events::{Options, Unwinding};
pub use kernel::KernelNames;
pub use sampler::Sampler;
pub use stack::{Sample, StackId};
pub use symbols::Symbols;
