//! The engine's machine: functions of the C kernel, and a processor, which is either one of
//! `shootdown-hw` or again functions of the kernel.

mod os;

#[cfg(not(feature = "processor"))]
mod linked;
#[cfg(not(feature = "processor"))]
pub(crate) use linked::Linked as Processor;

#[cfg(feature = "processor")]
mod ready;
#[cfg(feature = "processor")]
pub(crate) use ready::{Ready as Processor, ipi};

use crate::config::Config;

pub(crate) use os::Os;

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

/// Number of slots for the spaces that a CPU ran last (see `Machine::TagSlots`): the same for every
/// processor, because the header has the size of a CPU's state. If tags are per CPU, no more than
/// this number of tags is used. If they are global, two spaces whose tags are equal modulo this
/// number share a slot. They take 2 KiB for each CPU.
pub(crate) const SLOTS: usize = 64;

/// A machine with room for the CPUs of `B`.
pub(crate) type MachineOf<B> = shootdown_hw::Bare<Os<B>>;

/// The machine of this library.
pub(crate) type Machine = MachineOf<CpuBits>;

/// The machine that `config` describes.
pub(crate) fn machine(config: &Config) -> Machine {
    Machine::new(Os::new(config), Processor::new(config))
}
