//! The engine's machine, which consists of functions of the C kernel.

mod kernel;
mod linked;

pub(crate) use linked::{Linked, machine};

/// A bit for each CPU.
#[cfg(feature = "cpus-4096")]
pub(crate) type CpuBits = [u64; 64];
/// A bit for each CPU.
#[cfg(all(feature = "cpus-512", not(feature = "cpus-4096")))]
pub(crate) type CpuBits = [u64; 8];
/// A bit for each CPU.
#[cfg(not(any(feature = "cpus-512", feature = "cpus-4096")))]
pub(crate) type CpuBits = [u64; 1];

/// Number of CPUs for which there is room.
pub(crate) const CPUS_MAX: usize = size_of::<CpuBits>() * 8;

/// The machine of this library.
pub(crate) type Machine = Linked<CpuBits, { linked::SLOTS }>;
