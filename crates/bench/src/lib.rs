//! The engine's hot paths, each as a function to be counted, and how many instructions it may take.
//!
//! They are counted in two places: on the host, under callgrind (`benches/hot_paths.rs`), and on a
//! machine that boots (`shootdown boot --paths`), where the emulator counts. Both run what is here
//! on the state that is made here, so whatever differs is the compiler's or the counter's doing.
//!
//! In reading order: [`Plain`], hardware that does nothing; [`Harness`], a kernel around it;
//! [`System`], an engine in a state from which paths begin; [`Path`] and the paths.

#![no_std]

extern crate alloc;

mod harness;
mod paths;
mod plain;
mod system;

pub use harness::{Counted, Harness};
pub use paths::{
    Answer, EnterLazy, FlushAlone, FlushBatchAlone, LeaveLazy, MoveBatch, Path, Stage,
    SwitchCurrentTag, SwitchNewTag, TakeOneMore, Visitor, visit_all,
};
pub use plain::Plain;
pub use system::{Roots, System};
