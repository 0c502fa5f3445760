//! TLB coherence.
#![no_std]
#[cfg(any(test, feature = "soft"))]
extern crate std;

pub mod rules;

mod answer;
mod bell;
mod cpu;
mod cpu_set;
mod engine;
mod extent;
mod flush;
mod journal;
mod machine;
mod presence;
pub mod roster;
#[cfg(feature = "soft")]
pub mod soft;
mod space;
mod stats;
mod switch;
mod tag;

pub use cpu::{Cpu, Here};
pub use cpu_set::{CpuBits, CpuSet};
pub use engine::Shootdown;
pub use extent::{Extent, PageSize};
pub use flush::Pending;
pub use machine::{CpuId, Entries, Machine, Root, Tag, Word};
pub use presence::{Presence, SpaceId};
pub use rules::Rule;
pub use space::Space;
pub use stats::{CpuStats, SpaceStats};
pub use tag::slots::{TagSlot, TagSlots};
