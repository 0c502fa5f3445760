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
    bad(XEON, 2..=96, &["fork-of-threads"], FORK),
    bad(XEON, 8..=96, &["fork-server"], FORK),
    bad(XEON, 96..=96, &["process-starts"], NUMBERS),
    bad(XEON, 64..=64, &["mprotect-threads-x8"], CROWD),
    bad(XEON, 72..=96, &["mprotect-threads-x8"], CROWD),
    bad(ICE_LAKE, 128..=128, &["fork-of-threads", "fork-server"], FORK),
    bad(ICE_LAKE, 128..=128, &["mprotect-threads-x8"], CROWD),
    bad(AMD, 32..=128, &["file-discards"], FLUSHES),
    bad(AMD, 32..=128, &["pthread-mmap"], UNEXPLAINED),
    bad(AMD, 36..=128, &["mprotect-threads-x8"], UNEXPLAINED),
    bad(AMD, 128..=128, &["mprotect-threads-x1", "mprotect-threads-x2"], UNEXPLAINED),
    bad(AMD, 128..=128, &["mprotect-processes-x2", "process-starts"], ROLLOVERS),
    bad(ARM, 128..=128, &["fork-of-threads"], FORK),
    bad(ARM, 128..=128, &["mprotect-threads-x8"], UNEXPLAINED),
    bad(ARM, 128..=128, &["file-discards"], FLUSHES),
    bad(RISC_V, 64..=64, &["fork-of-threads"], FORK),
    bad(RISC_V, 64..=64, &["file-discards"], FLUSHES),
    bad(RISC_V, 64..=64, &["madvise-threads-x2", "madvise-threads-x8"], UNEXPLAINED),
    bad(POWER, 192..=192, &["process-starts"], NUMBERS),
    bad(
        POWER,
        192..=192,
        &[
            "pthread-mmap",
            "mmap-processes-x1",
            "mprotect-processes-x1",
            "mprotect-processes-x2",
            "page-fault-processes-x1",
            "page-fault-processes-x2",
            "context-switch-threads-x1",
            "context-switch-threads-x2",
        ],
        UNEXPLAINED,
    ),
];

pub(super) const XEON: &str = "xeon-2s";
pub(super) const ICE_LAKE: &str = "icelake-2s-128";
pub(super) const AMD: &str = "amd-invlpgb";
pub(super) const ARM: &str = "arm64-2s";
pub(super) const RISC_V: &str = "riscv-64";
pub(super) const POWER: &str = "power8-16s";
pub(super) const LAPTOP: &str = "skylake-laptop-kvm";

const FLUSHES: &str = "all CPUs flush one space, and each flush writes words of the engine's space";
const NUMBERS: &str = "all CPUs take the numbers of new spaces from one word of the engine";
const CROWD: &str =
    "the threads wait for one lock, and over 256 of them share regions, so replicas are given up";
const ROLLOVERS: &str = "shared tags run out; then each CPU flushes its TLB and looks at all others, but Linux has tags \
     for each CPU";
const FORK: &str = "fork copies a page table and locks an area for the region of each thread";
const UNEXPLAINED: &str = "not explained yet";

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
