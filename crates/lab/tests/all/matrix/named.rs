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
    bad(XEON, 2..=2, &["context-switch-processes-x1"], CHANCE),
    bad(XEON, 16..=16, &["context-switch-threads-x8"], FEW_SEEDS),
    bad(XEON, 32..=32, &["context-switch-threads-x1"], SLEEP),
    bad(XEON, 96..=96, &["madvise-processes-x1"], CHILDREN),
    bad(ICE_LAKE, 128..=128, &["madvise-processes-x1"], CHILDREN),
    bad(AMD, 128..=128, &["madvise-processes-x1"], CHILDREN),
    bad(
        ARM,
        128..=128,
        &["context-switch-processes-x1", "context-switch-processes-x2"],
        MASK_OF_EACH,
    ),
    bad(POWER, 192..=192, &["pthread-mmap"], REGIONS),
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

// Each reason says what the CPUs of the case wait for longer than under Linux.
const CHANCE: &str = "a switch takes 6 ns more; and two processes that share a CPU take 1.87 ms, \
                      and those on two CPUs 0.48 ms: 5 of 200 seeds under Linux, and 3 here";
const FEW_SEEDS: &str = "1.5 % in the sum of four seeds, and 0.3 % in that of twenty";
const SLEEP: &str = "Linux waits for the line of `mm_count` before a CPU sleeps, so the next \
                     wake-up more often finds the CPU awake: 22,842 switches, here 29,567";
const REGIONS: &str = "with regions of threads and kept page tables, `munmap` waits for ten times \
                       as many lines of page tables, which other sockets have, under the lock";
const MASK: &str =
    "at the start, each CPU gets the line of the space's mask three times, not twice";
const MASK_OF_EACH: &str = "each process visits all CPUs, and the first visit of each CPU writes \
                            the space's mask; Linux on arm64 has no mask";
const CGROUP: &str =
    "nearly all of the time is for the counter of the memory cgroup: -2 to 5 %, by the seed";
const CHILDREN: &str =
    "forks take less time, so the children start together and contend for the node's free pages";

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
