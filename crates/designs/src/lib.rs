//! Designs that keep TLBs coherent, one short file each, behind the interface that the memory
//! manager calls ([`shootdown_vm::Coherence`]). All run the same workload on the same machine under
//! the same oracle.
//!
//! | design | description |
//! |---|---|
//! | [`naive`] | interrupt all CPUs and wait |
//! | [`linux::v4_12`] | Linux without TLB generations and without batched reclaim |
//! | [`linux::v4_12::batched`] | Linux 4.12 with batched reclaim |
//! | [`linux::v4_12::latr`] | Linux 4.12 whose `munmap` interrupts no CPU: LATR, in its safe form |
//! | [`linux::v4_12::abis`] | Linux 4.12 that reads accessed bits: ABIS |
//! | [`linux::v4_14`] | Linux with TLB generations, as first merged |
//! | [`linux::v7_0::v6_12`] | Linux 6.12, whose CPUs leave the mask when they switch |
//! | [`linux::v7_0`] | Linux today, on x86 without INVLPGB |
//! | [`linux::v7_0::v7_3`] | Linux 7.3, whose flushes wait preemptibly |
//! | [`linux::v7_0::invlpgb`] | Linux today, on x86 with INVLPGB |
//! | [`linux::lifetime`] | Linux today with counted or shot lazy CPUs, or with hazard pointers |
//! | [`linux::arm64`] | Linux on arm64, whose hardware broadcasts, and a variant that skips some |
//! | [`linux::riscv`] | Linux on RISC-V, whose firmware fences other CPUs |
//! | [`linux::arc`] | Linux on ARC, which flushes by renaming; with and without ranged flushes |
//! | [`engine`] | Shootdown |
//!
//! The Linux designs follow Linux's functions, and document where they do not. Their shared words
//! cost what the engine's cost, and are in the same cache lines as in Linux.

#[macro_use]
mod unused;
mod variant;
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
pub use variant::{discarding_immediately, without_replicas};
