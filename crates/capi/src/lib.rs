//! The C interface of [`shootdown`], TLB coherence as a library.
//!
//! A kernel in C links a static library made of this crate, and includes `include/shootdown.h`,
//! which is generated from this source. The chapter "Embedding in C" of the book has a complete
//! example and the commands.
//!
//! # Linked symbols, not function pointers
//!
//! The kernel defines the functions that the engine calls, as symbols of fixed names: those that
//! start with `shootdown_os_` (the kernel's part) and with `shootdown_mmu_` (the processor's part,
//! which the library has itself with the feature `processor`). A table of function pointers would
//! do the same with less for the linker to check. Symbols are better for a kernel, for four
//! reasons:
//!
//! - A kernel has one machine. The choice at run time that a table allows has no use.
//! - The engine calls these functions on its hot paths: at each flush, once for each CPU in the
//!   mask. A direct call needs no load of a pointer, and no protection against mispredicted
//!   indirect branches. With link-time optimisation across the languages, the compiler inlines it.
//! - A missing function is an error of the linker, not a jump to address 0.
//! - There is no table that must be initialised before the first call, or that an attacker can
//!   overwrite.
//!
//! Properties of the machine that are known only at run time, such as its number of tags, are
//! *values* ([`Config`]), so that reading them calls nothing.
//!
//! Functions that few kernels have are asked for by the features `away`, `broadcast` and `trace`.
//! Other kernels do not define them, and no flush calls them.
//!
//! # Storage
//!
//! The kernel allocates everything: `struct shootdown_cpu` for each CPU, `struct shootdown_space`
//! in its own structure of an address space, `struct shootdown_pending` on the stack. They are
//! opaque arrays of the right size and alignment, which C can define statically. The header has the
//! sizes for each number of CPUs; [`shootdown_init`] checks that header and
//! library agree.
//!
//! # Rust's guarantees
//!
//! The engine's types keep a Rust program from misusing it. C has no such types, so each function
//! here states as its contract what the Rust interface enforces. The library checks what can be
//! checked, in all builds ([`Machine::CHECKS`](shootdown::Machine::CHECKS)), and reports a defect
//! by `shootdown_os_panic`. It cannot check memory that was never initialised.

#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::pedantic)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::doc_markdown,
    clippy::module_name_repetitions,
    clippy::must_use_candidate,
    reason = "the comments become those of a C header; numbers of CPUs and pages are small"
)]

// In reading order, which is that of the header.
mod config;
#[doc(hidden)]
pub mod storage;
pub mod os;
mod machine;
mod engine;
mod extent;
mod cpu;
mod space;
mod flush;
mod gather;
mod batch;
#[cfg(feature = "reuse")]
mod reuse;
mod tag;
#[cfg(feature = "processor")]
mod errata;
#[cfg(feature = "processor")]
mod processor;
mod crash;
mod trace;
mod secondary;
mod vcpu;
#[cfg(all(feature = "processor", target_arch = "x86_64"))]
mod kvm;
mod lazy;
#[cfg(feature = "isolation")]
mod user_mode;
mod stats;
mod text;
#[cfg(feature = "panic-handler")]
mod panic;

pub use batch::{
    SHOOTDOWN_BATCH_ADDED, SHOOTDOWN_BATCH_FULL, SHOOTDOWN_BATCH_HAS_SPACE,
    shootdown_batch_add_space, shootdown_batch_init, shootdown_batch_poll, shootdown_batch_send,
    shootdown_batch_unmapped, shootdown_batch_wait, shootdown_flush_if_batched,
    shootdown_is_batched,
};
pub use config::{
    BroadcastConfig, Config, NotifyCosts, SHOOTDOWN_AARCH64_FIQ, SHOOTDOWN_AARCH64_MIXED_CORES,
    SHOOTDOWN_DUTY_BREAK_EXECUTABLE, SHOOTDOWN_DUTY_IGNORE_LATE_MARKS,
    SHOOTDOWN_DUTY_NO_DIRTY_MARKS, SHOOTDOWN_NEVER_BROADCAST, SHOOTDOWN_REACH_EVERYONE,
    SHOOTDOWN_REACH_NOBODY, SHOOTDOWN_REACH_TARGETS, SHOOTDOWN_RISCV64_KERNEL_LOADS,
    SHOOTDOWN_RISCV64_NO_FIRMWARE, SHOOTDOWN_RISCV64_SATP_ENDS_WALKS, SHOOTDOWN_RISCV64_SVINVAL,
    SHOOTDOWN_TAGS_ASSIGNED, SHOOTDOWN_TAGS_GLOBAL, SHOOTDOWN_TAGS_PER_CPU, SHOOTDOWN_TAGS_RENAMED,
    SHOOTDOWN_X86_64_GLOBAL_KERNEL, SHOOTDOWN_X86_64_KERNEL_SETS_CR4,
};
pub use cpu::{
    LoadedRoot, shootdown_begin_walk, shootdown_cpu_init, shootdown_end_walk, shootdown_enter_lazy,
    shootdown_handle_flush_ipi, shootdown_leave_space, shootdown_loaded,
    shootdown_nmi_may_touch_user, shootdown_offline, shootdown_online, shootdown_resume,
    shootdown_resume_loaded, shootdown_switch,
};
pub use crash::{
    shootdown_complete_broadcasts, shootdown_describe_unanswered, shootdown_disconnect,
};
pub use engine::shootdown_init;
pub use extent::{
    ExtentWord, shootdown_freeing_tables, shootdown_long_range, shootdown_page, shootdown_pages,
    shootdown_range, shootdown_whole,
};
pub use flush::{
    shootdown_flush, shootdown_flush_and_wait, shootdown_flush_for_resize, shootdown_flush_kernel,
    shootdown_join, shootdown_pending_init, shootdown_poll, shootdown_poll_or_wake, shootdown_wait,
};
pub use gather::{
    HorizonNumbers, shootdown_extents_add, shootdown_extents_init, shootdown_flush_gathered,
    shootdown_flush_kernel_gathered, shootdown_flush_tables_and_wait, shootdown_flush_walkers,
    shootdown_horizon, shootdown_tables_are_clear,
};
#[cfg(all(feature = "processor", target_arch = "x86_64"))]
pub use kvm::{
    shootdown_kvm_can_defer_flushes, shootdown_kvm_defer_flush, shootdown_kvm_init,
    shootdown_kvm_msr_value,
};
pub use lazy::{
    shootdown_lazy_caught_up, shootdown_lazy_entered_kernel, shootdown_lazy_init,
    shootdown_lazy_interrupted, shootdown_lazy_returned_to_user, shootdown_lazy_switched,
};
#[cfg(feature = "processor")]
pub use processor::{
    shootdown_acknowledge_ipi, shootdown_duties, shootdown_forget_refused,
    shootdown_publish_kernel, shootdown_send_ipi,
};
#[cfg(feature = "reuse")]
pub use reuse::{
    shootdown_unflushed_add_space, shootdown_unflushed_defer, shootdown_unflushed_init,
    shootdown_unflushed_is_due, shootdown_unflushed_reuse, shootdown_unflushed_unmapped,
};
#[cfg(feature = "devices")]
pub use secondary::{shootdown_attach_device, shootdown_detach_device};
pub use secondary::{
    shootdown_primary_change_end, shootdown_primary_change_start, shootdown_primary_changes_init,
    shootdown_secondary_fault_begin, shootdown_secondary_fault_may_install,
};
pub use space::{
    shootdown_for_each_user, shootdown_reap, shootdown_retire, shootdown_space_assign_tag,
    shootdown_space_id, shootdown_space_init, shootdown_space_root, shootdown_space_set_root,
    shootdown_trim_cpumask,
};
pub use stats::{CpuCounts, SpaceCounts, shootdown_cpu_stats, shootdown_space_stats};
pub use storage::{
    BatchStorage, CpuStorage, ExtentsStorage, FaultStorage, LazyPredictorStorage, PendingStorage,
    PrimaryChangesStorage, SentBatchStorage, SpaceStorage, StealTimeStorage, UnflushedStorage,
    VcpuStorage,
};
pub use tag::{shootdown_pin_tag, shootdown_unpin_tag};
pub use trace::{
    FlushEvent, SHOOTDOWN_CAUSE_ADVISE, SHOOTDOWN_CAUSE_COLLAPSE, SHOOTDOWN_CAUSE_COPY_ON_WRITE,
    SHOOTDOWN_CAUSE_EXIT, SHOOTDOWN_CAUSE_FORK, SHOOTDOWN_CAUSE_KERNEL, SHOOTDOWN_CAUSE_MIGRATE,
    SHOOTDOWN_CAUSE_MOVE, SHOOTDOWN_CAUSE_PROTECT, SHOOTDOWN_CAUSE_RECLAIM, SHOOTDOWN_CAUSE_SPLIT,
    SHOOTDOWN_CAUSE_UNMAP, SHOOTDOWN_CAUSE_UNNAMED, SHOOTDOWN_CAUSE_WALKERS,
    SHOOTDOWN_CAUSE_WRITE_BACK, WaitEvent, shootdown_because,
};
#[cfg(feature = "isolation")]
pub use user_mode::{shootdown_enter_kernel, shootdown_enter_user};
pub use vcpu::{
    shootdown_vcpu_defer_flush, shootdown_vcpu_init, shootdown_vcpu_resume, shootdown_vcpu_stop,
};
