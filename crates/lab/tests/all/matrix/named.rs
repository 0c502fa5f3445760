//! The cases in which the engine is worse than Linux.

use core::ops::RangeInclusive;

/// A case in which the engine is worse than Linux today.
pub(super) struct Named {
    pub(super) machine: &'static str,
    pub(super) cpus: RangeInclusive<usize>,
    pub(super) workloads: &'static [&'static str],
    pub(super) reason: &'static str,
}

/// All cases in which the engine is worse than Linux. A case that is not here fails if it is worse,
/// and a case that is here fails if it is not.
pub(super) const NAMED: &[Named] = &[
    bad(XEON, 2..=2, &["context-switch-processes-x1"], UNEXPLAINED),
    bad(XEON, 96..=96, &["madvise-processes-x1"], UNEXPLAINED),
    bad(ICE_LAKE, 128..=128, &["madvise-processes-x1"], CHILDREN),
    bad(AMD, 128..=128, &["madvise-processes-x1"], UNEXPLAINED),
    bad(ARM, 128..=128, &["file-discards"], GENERATION),
    bad(
        ARM,
        128..=128,
        &["context-switch-processes-x1", "context-switch-processes-x2"],
        UNEXPLAINED,
    ),
    bad(POWER, 192..=192, &["pthread-mmap"], LOCK),
    bad(POWER, 192..=192, &["page-fault-processes-x2"], CGROUP),
    bad(POWER, 192..=192, &["context-switch-threads-x1", "context-switch-threads-x2"], MASK),
];

pub(super) const XEON: &str = "xeon-2s";
pub(super) const ICE_LAKE: &str = "icelake-2s-128";
pub(super) const AMD: &str = "amd-invlpgb";
pub(super) const ARM: &str = "arm64-2s";
pub(super) const RISC_V: &str = "riscv-64";
pub(super) const POWER: &str = "power8-16s";
pub(super) const LAPTOP: &str = "skylake-laptop-kvm";

// Each reason names the cache line for which the CPUs of the case waited longest.
const GENERATION: &str = "each flush increments the generation of the one space, whose line goes \
                          from CPU to CPU in 0.3 µs; the model of Linux writes no word";
const LOCK: &str =
    "no flush is waited for under the lock of the space, so more CPUs contend for it";
const MASK: &str =
    "at the start, each CPU gets the line of the space's mask three times, not twice";
const CGROUP: &str =
    "nearly all of the time is for the counter of the memory cgroup: -2 to 5 %, by the seed";
const UNEXPLAINED: &str = "not explained yet";
const CHILDREN: &str =
    "a fork flushes nothing, so the children start sooner and contend for the node's free pages";

const fn bad(
    machine: &'static str,
    cpus: RangeInclusive<usize>,
    workloads: &'static [&'static str],
    reason: &'static str,
) -> Named {
    Named { machine, cpus, workloads, reason }
}

pub(super) fn named(machine: &str, cpus: usize, workload: &str) -> Option<&'static Named> {
    NAMED.iter().find(|named| {
        named.machine == machine
            && named.cpus.contains(&cpus)
            && named.workloads.contains(&workload)
    })
}
