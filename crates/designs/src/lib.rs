//! Ways to keep TLBs coherent, one short file each, behind the seam that the memory manager drives
//! ([`shootdown_vm::Coherence`]): same workload, same machine, same oracle.
//!
//! | design | what it is |
//! |---|---|
//! | [`naive`] | interrupt everyone and wait |
//! | [`linux::v4_12`] | Linux before seed 000; and, of reclaim, before seed 004 |
//! | [`linux::v4_12::batched`] | the same with seed 004 |
//! | [`linux::v4_12::latr`] | the same, and nobody is told of an `munmap`: LATR, as it is safe |
//! | [`linux::v4_14`] | Linux with seed 000, as first merged |
//! | [`linux::v7_0`] | Linux today, on x86 without INVLPGB |
//! | [`linux::v7_0::invlpgb`] | the same with INVLPGB |
//! | [`linux::lifetime`] | the same with lazy CPUs counted, shot at exit, or with hazard pointers |
//! | [`linux::arm64`] | Linux on arm64, whose hardware broadcasts; and with seed 003 |
//! | [`linux::riscv`] | Linux on RISC-V, whose firmware tells others |
//! | [`linux::arc`] | Linux on ARC, where to flush is to rename; before and after seed 002 |
//! | [`engine`] | Shootdown |
//!
//! The Linux designs follow Linux's functions, and say where they do not. Their shared words cost
//! what ours cost, by the cache lines that Linux has them in.

#[macro_use]
mod unused;
mod design;
pub mod engine;
pub mod linux;
pub mod naive;
mod registry;

pub use design::{Design, Purpose};
pub use engine::Engine;
pub use linux::LinuxRule;
pub use linux::arc::Arc;
pub use linux::arm64::Arm64;
pub use linux::lifetime::ExitFlush;
pub use linux::riscv::Riscv;
pub use linux::v4_12::Linux412;
pub use linux::v4_12::latr::{Latr, LatrRule};
pub use linux::v4_14::Linux414;
pub use linux::v7_0::Linux70;
pub use naive::Naive;
pub use registry::{UnknownDesign, designs_for, registry};
