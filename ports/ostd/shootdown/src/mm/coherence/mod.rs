//! TLB coherence by the shootdown engine: where the engine meets this framework.
//!
//! [`machine`] is the framework's half of the engine's machine, and [`processor`] the other half.
//! [`activation`] is what a CPU declares about user memory: which space it uses, and when it uses
//! none. [`table`] is a user page table together with the engine's space, from its first flush to
//! its end.

mod activation;
mod machine;
mod processor;
mod table;

pub(super) use activation::activate;
pub(crate) use activation::{
    after_post_schedule, deactivate, enter_halt, leave_halt, use_user_memory,
    use_user_memory_masked,
};
#[cfg(target_arch = "riscv64")]
pub(crate) use machine::forget_refused;
pub(super) use machine::{FlushPending, engine, flush_kernel, wait};
pub(crate) use machine::{handle_flush_ipi, init, online, reload_current_root};
pub(crate) use table::CoherentTable;
pub(super) use table::Unmapped;
