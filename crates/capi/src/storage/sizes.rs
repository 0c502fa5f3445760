//! The sizes for every number of CPUs, which the header contains.
//!
//! The library is built for one of them. The header's macros choose the same one.

use shootdown::{CpuBits, ExtentSet, Pending, Space};

use super::{
    CBatch, CSentBatch, SHOOTDOWN_CPU_WORDS, SHOOTDOWN_PENDING_WORDS, SHOOTDOWN_SENT_BATCH_WORDS,
    SHOOTDOWN_SPACE_WORDS,
};
use crate::machine::{CPUS_MAX, MachineOf};

/// Sizes that depend on the number of CPUs, in words of 64 bits.
#[derive(Clone, Copy, Debug)]
pub struct ByCpus {
    /// Number of CPUs for which there is room.
    pub cpus_max: usize,
    /// Size of a space.
    pub space: usize,
    /// Size of a pending flush.
    pub pending: usize,
    /// Size of a batch that was sent.
    pub sent_batch: usize,
}

impl ByCpus {
    const fn of<B: CpuBits + Send + Sync + 'static>() -> Self {
        Self {
            cpus_max: B::WORDS * 64,
            space: size_of::<Space<MachineOf<B>>>() / 8,
            pending: size_of::<Pending<'static, MachineOf<B>>>() / 8,
            sent_batch: size_of::<CSentBatch<B>>() / 8,
        }
    }
}

/// The sizes for each number of CPUs.
pub const BY_CPUS: [ByCpus; 3] =
    [ByCpus::of::<[u64; 1]>(), ByCpus::of::<[u64; 8]>(), ByCpus::of::<[u64; 64]>()];

/// Size of a CPU's state, in words.
pub const CPU: usize = SHOOTDOWN_CPU_WORDS;
/// Size of a batch, in words.
pub const BATCH: usize = size_of::<CBatch>() / 8;
/// Size of a collection that is flushed at reuse, in words.
pub const UNFLUSHED: usize = super::SHOOTDOWN_UNFLUSHED_WORDS;
/// Size of the changes of primary entries, in words.
pub const PRIMARY_CHANGES: usize = super::SHOOTDOWN_PRIMARY_CHANGES_WORDS;
/// Size of a fault of a secondary table, in words.
pub const SECONDARY_FAULT: usize = super::SHOOTDOWN_SECONDARY_FAULT_WORDS;
/// Size of a set of extents, in words.
pub const EXTENTS: usize = size_of::<ExtentSet>() / 8;
/// Size of the word of a virtual CPU, in words.
pub const VCPU: usize = super::SHOOTDOWN_VCPU_WORDS;
/// Size of a predictor, in words.
pub const LAZY_PREDICTOR: usize = super::SHOOTDOWN_LAZY_PREDICTOR_WORDS;
/// Size of KVM's record, in words.
pub const STEAL_TIME: usize = super::SHOOTDOWN_STEAL_TIME_WORDS;

/// A number that differs if header and library were made for different numbers of CPUs.
pub(crate) const LAYOUT: u64 = SHOOTDOWN_CPU_WORDS as u64
    | (SHOOTDOWN_SPACE_WORDS as u64) << 16
    | (SHOOTDOWN_PENDING_WORDS as u64) << 32
    | ((BATCH + SHOOTDOWN_SENT_BATCH_WORDS) as u64) << 48;

/// The header chooses what this library was built with.
const _: () = {
    let mut index = 0;
    while BY_CPUS[index].cpus_max != CPUS_MAX {
        index += 1;
    }
    let of = BY_CPUS[index];
    assert!(of.space == SHOOTDOWN_SPACE_WORDS && of.pending == SHOOTDOWN_PENDING_WORDS);
    assert!(of.sent_batch == SHOOTDOWN_SENT_BATCH_WORDS && BATCH == super::SHOOTDOWN_BATCH_WORDS);
    assert!(EXTENTS == super::SHOOTDOWN_EXTENTS_WORDS);
};
