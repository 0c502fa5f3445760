//! Errata of `AArch64` cores, by `MIDR_EL1`.

use core::fmt;

use crate::errata::{Answer, Erratum, Workarounds, needs};

/// Variant and revision of a core: r*n*p*m*.
type Revision = (u8, u8);

const LAST: Revision = (0xf, 0xf);

/// Cores of one kind, with a range of revisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    name: &'static str,
    implementer: u8,
    part: u16,
    /// The bits of the part number that are compared.
    part_mask: u16,
    first: Revision,
    last: Revision,
}

impl Cores {
    /// All revisions of a part.
    const fn of(name: &'static str, implementer: u8, part: u16) -> Self {
        Self { name, implementer, part, part_mask: 0xfff, first: (0, 0), last: LAST }
    }

    /// All revisions of one of Arm's parts.
    const fn arm(name: &'static str, part: u16) -> Self {
        Self::of(name, 0x41, part)
    }

    /// All parts whose numbers differ from that of the given part only in bits that `mask` lacks.
    const fn masked(self, mask: u16) -> Self {
        Self { part_mask: mask, ..self }
    }

    /// The revisions of a range, both ends included.
    const fn revisions(self, first: Revision, last: Revision) -> Self {
        Self { first, last, ..self }
    }

    /// Returns `true` if the core that has this `MIDR_EL1` is one of these.
    #[must_use]
    pub fn contains(&self, midr: u64) -> bool {
        let field = |shift: u32, mask: u64| midr >> shift & mask;
        let revision = (field(20, 0xf) as u8, field(0, 0xf) as u8);
        field(24, 0xff) == u64::from(self.implementer)
            && field(4, 0xfff) as u16 & self.part_mask == self.part
            && (self.first..=self.last).contains(&revision)
    }
}

/// Shows the name, and the revisions unless they are all.
impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (self.first, self.last);
        match (first == (0, 0), last == LAST) {
            (true, true) => f.write_str(self.name),
            _ if first == last => write!(f, "{} r{}p{}", self.name, first.0, first.1),
            _ => write!(f, "{} r{}p{}–r{}p{}", self.name, first.0, first.1, last.0, last.1),
        }
    }
}

const A55: Cores = Cores::arm("Cortex-A55", 0xd05);
const A76: Cores = Cores::arm("Cortex-A76", 0xd0b);
const A510: Cores = Cores::arm("Cortex-A510", 0xd46);
/// Kryo 2xx Gold has the same part number, and other revisions.
const FALKOR_V1: Cores = Cores::of("Falkor v1", 0x51, 0x800).revisions((0, 0), (0, 0));
const KRYO: Cores = Cores::of("Kryo", 0x51, 0x200).masked(0xf00);
const KRYO_4XX_GOLD: Cores = Cores::of("Kryo 4xx Gold", 0x51, 0x804);
const KRYO_4XX_SILVER: Cores = Cores::of("Kryo 4xx Silver", 0x51, 0x805);
const THUNDERX: Cores = Cores::of("ThunderX T88", 0x43, 0x0a1);
const THUNDERX_T81: Cores = Cores::of("ThunderX T81", 0x43, 0x0a2);
const C1_PRO: Cores = Cores::arm("C1-Pro", 0xd8b);

/// The cores whose broadcasts need no repetition. All others need it: those of the table, cores
/// that are not known, and cores that share machines with cores of the table (Cortex-A75, A510
/// and later). So in most machines with several kinds of cores, the first CPU has the workaround
/// that another needs.
const COMPLETE: &[Cores] = &[
    // Of software: an implementer of 0. Under KVM, a guest has the host's number instead.
    Cores::of("QEMU max", 0x00, 0x051),
    Cores::arm("Cortex-A34", 0xd02),
    Cores::arm("Cortex-A53", 0xd03),
    Cores::arm("Cortex-A35", 0xd04),
    Cores::arm("Cortex-A57", 0xd07),
    Cores::arm("Cortex-A72", 0xd08),
    Cores::arm("Cortex-A73", 0xd09),
    Cores::arm("Neoverse N3", 0xd8e),
    Cores::of("Brahma B53", 0x42, 0x100),
    Cores::of("Vulcan", 0x42, 0x516),
    THUNDERX,
    THUNDERX_T81,
    Cores::of("ThunderX T83", 0x43, 0x0a3),
    Cores::of("ThunderX2", 0x43, 0x0af),
    Cores::of("A64FX", 0x46, 0x001),
    Cores::of("TSV110", 0x48, 0xd01),
    Cores::of("HIP09", 0x48, 0xd02),
    Cores::of("Denver", 0x4e, 0x003),
    Cores::of("Carmel", 0x4e, 0x004),
    Cores::of("X-Gene", 0x50, 0x000),
    Cores::of("Falkor", 0x51, 0xc00),
    Cores::of("Apple M1", 0x61, 0x020).masked(0xff0),
    Cores::of("Apple M2", 0x61, 0x030).masked(0xff0),
    Cores::of("AmpereOne", 0xc0, 0xac3),
    Cores::of("AmpereOneX", 0xc0, 0xac4),
];

/// The workarounds that a core needs. `has_sme` is that of the core, and not of other cores.
#[must_use]
pub fn needed_by(midr: u64, has_sme: bool) -> Workarounds {
    let known = needs(TABLE, |cores| cores.contains(midr));
    let known = if has_sme { known } else { known.without(Workarounds::SME_INTERRUPT) };
    if COMPLETE.iter().any(|cores| cores.contains(midr)) {
        known
    } else {
        known.with(Workarounds::REPEATED_COMPLETION)
    }
}

/// One more broadcast completes the earlier ones.
const REPEAT: Erratum<Cores> = Erratum {
    linux: "one more `TLBI` and `DSB` after the `DSB`, since 2026; before, after each operation",
    answer: Answer::Yes,
    here: "one more `TLBI` and `DSB` for each completion",
    needs: Workarounds::REPEATED_COMPLETION,
    ..Erratum::UNAFFECTED
};

/// The errata, those that affect broadcasts first.
pub const TABLE: &[Erratum<Cores>] = &[
    Erratum {
        numbers: "Arm 4118414, 4193780, 4193781, 4193784, 4193786 to 4193794, 4193798, 4193800, \
                  4193801, NVIDIA T410-OLY-1029 (CVE-2025-10263)",
        effect: "a broadcast does not complete all accesses by the dropped entry",
        cpus: &[
            A76,
            Cores::arm("A76AE", 0xd0e),
            Cores::arm("A77", 0xd0d),
            Cores::arm("A78", 0xd41),
            Cores::arm("A78AE", 0xd42),
            Cores::arm("A78C", 0xd4b),
            Cores::arm("A710", 0xd47),
            Cores::arm("Cortex-X1", 0xd44),
            Cores::arm("X1C", 0xd4c),
            Cores::arm("X2", 0xd48),
            Cores::arm("X3", 0xd4e),
            Cores::arm("X4", 0xd82),
            Cores::arm("X925", 0xd85),
            Cores::arm("Neoverse N1", 0xd0c),
            Cores::arm("N2", 0xd49),
            Cores::arm("V1", 0xd40),
            Cores::arm("V2", 0xd4f),
            Cores::arm("V3", 0xd84),
            Cores::arm("V3AE", 0xd83),
            Cores::arm("C1-Premium", 0xd90),
            Cores::arm("C1-Ultra", 0xd8c),
            Cores::of("NVIDIA Olympus", 0x4e, 0x010),
            Cores::of("Microsoft Azure Cobalt 100", 0x6d, 0xd49),
        ],
        condition: "and every core that is not known to be unaffected",
        source: "Linux, `ARM64_ERRATUM_4118414`",
        ..REPEAT
    },
    Erratum {
        numbers: "Arm 1286807",
        effect: "a broadcast completes before a read by the dropped entry",
        cpus: &[A76.revisions((0, 0), (3, 0)), KRYO_4XX_GOLD.revisions((0xc, 0xe), (0xf, 0xe))],
        source: "Linux, `ARM64_ERRATUM_1286807`",
        ..REPEAT
    },
    Erratum {
        numbers: "Arm 2441007, 2441009",
        effect: "a store by the dropped entry follows the completed broadcast",
        cpus: &[A55, A510.revisions((0, 0), (1, 1))],
        linux: "the same, if it is configured (\"rare\")",
        source: "Linux, `ARM64_ERRATUM_2441007`, `_2441009`",
        ..REPEAT
    },
    Erratum {
        numbers: "Qualcomm 1009",
        effect: "a `DSB` after a broadcast completes early",
        cpus: &[FALKOR_V1, KRYO],
        source: "Linux, `QCOM_FALKOR_ERRATUM_1009`",
        ..REPEAT
    },
    Erratum {
        numbers: "Arm 4193714 (CVE-2026-0995)",
        effect: "a broadcast completes before accesses of SME",
        cpus: &[C1_PRO.revisions((0, 0), (1, 2))],
        condition: "with SME",
        linux: "interrupts CPUs of the space that run programs with SME",
        here: "no broadcasts, or `Aarch64::with_sme_interrupt`",
        source: "Linux, `ARM64_ERRATUM_4193714`",
        needs: Workarounds::SME_INTERRUPT,
        ..REPEAT
    },
    Erratum {
        numbers: "Qualcomm 1003",
        effect: "a write of TTBR0 that changes ASID and table lets walks of one fill entries of \
                 the other",
        cpus: &[FALKOR_V1, KRYO],
        linux: "keeps the ASID in TTBR1; with KPTI, the way into the kernel drops upper levels",
        here: "each switch goes through an ASID of its own, in three writes, and drops it first",
        source: "Linux 4.10, `pre_ttbr0_update_workaround`",
        needs: Workarounds::ASID_APART,
        ..REPEAT
    },
    Erratum {
        numbers: "Cavium 27456",
        effect: "a broadcast corrupts instructions that are cached under another ASID",
        cpus: &[THUNDERX.revisions((0, 0), (1, 1)), THUNDERX_T81.revisions((0, 0), (0, 0))],
        linux: "`IC IALLU` at each switch; no KPTI",
        here: "the same: `Kpti::new` panics",
        source: "Linux, `CAVIUM_ERRATUM_27456`",
        needs: Workarounds::ICACHE_AT_SWITCH,
        ..REPEAT
    },
    Erratum {
        numbers: "Arm 1024718, 2051678",
        effect: "the hardware's dirty mark is wrong or unordered",
        cpus: &[
            A55,
            KRYO_4XX_SILVER.revisions((0xd, 0xe), (0xd, 0xe)),
            A510.revisions((0, 0), (0, 2)),
        ],
        linux: "does not set `TCR_EL1.HD` on these CPUs",
        here: "`traps_stale_writes` is `false`. The kernel does not set `TCR_EL1.HD`",
        source: "Linux, `ARM64_ERRATUM_1024718`, `_2051678`",
        needs: Workarounds::NO_DIRTY_MARKS,
        ..REPEAT
    },
    Erratum {
        numbers: "Arm 2645198",
        effect: "ESR and FAR of the next fault are wrong if a page loses its permission to execute",
        cpus: &[Cores::arm("Cortex-A715", 0xd4d)],
        linux: "`mprotect` clears the entry of an executable page and flushes before it stores the \
                new one",
        here: "the kernel's duty, by the fact `Workarounds::BREAK_EXECUTABLE`; `vm` does it with \
               `ExecuteLoss::BreakBeforeMake`",
        source: "Linux, `ARM64_ERRATUM_2645198`",
        needs: Workarounds::BREAK_EXECUTABLE,
        ..REPEAT
    },
    Erratum {
        numbers: "NVIDIA Carmel, HiSilicon 162100125",
        effect: "entries are shared in spite of CnP's rules",
        cpus: &[Cores::of("Carmel", 0x4e, 0x004), Cores::of("HIP09", 0x48, 0xd02)],
        linux: "CnP is 0",
        here: "CnP is always 0",
        source: "Linux, `NVIDIA_CARMEL_CNP_ERRATUM`, `HISILICON_ERRATUM_162100125`",
        ..Erratum::UNAFFECTED
    },
    Erratum {
        numbers: "Arm 1165522, 1319367, 1530923",
        effect: "a speculative `AT` fills the TLB while the registers of two guests are mixed",
        cpus: &[
            A76.revisions((0, 0), (2, 0)),
            Cores::arm("Cortex-A57", 0xd07),
            Cores::arm("Cortex-A72", 0xd08),
            A55.revisions((0, 0), (2, 0)),
            KRYO_4XX_SILVER.revisions((0xd, 0xe), (0xd, 0xe)),
        ],
        linux: "KVM keeps stage 1 of the guest out of reach",
        answer: Answer::No,
        here: "the hypervisor's duty, while the engine of `Stage2` runs",
        source: "Linux, `ARM64_WORKAROUND_SPECULATIVE_AT`",
        ..Erratum::UNAFFECTED
    },
    Erratum {
        numbers: "Arm 2966298, 3117295",
        effect: "user mode reads by a speculative unprivileged load",
        cpus: &[Cores::arm("Cortex-A520", 0xd80).revisions((0, 0), (0, 1)), A510],
        linux: "`TLBI VALE1` and `DSB NSH` on the way to user mode",
        here: "the kernel's way to user mode",
        source: "Linux, `ARM64_ERRATUM_2966298`, `_3117295`",
        ..Erratum::UNAFFECTED
    },
    Erratum {
        numbers: "Arm 1542419",
        effect: "instructions are fetched out of order after code has changed",
        cpus: &[Cores::arm("Neoverse N1", 0xd0c)],
        linux: "traps `IC IVAU` of user mode",
        here: "caches of instructions are the kernel's",
        source: "Linux, `ARM64_ERRATUM_1542419`",
        ..Erratum::UNAFFECTED
    },
    Erratum {
        numbers: "`FEAT_ETS2`, `FEAT_nTLBPA`, `FEAT_E0PD`, ranges of `FEAT_LPA2`",
        effect: "features, and no errata, of which a flush could make use",
        condition: "Armv8.4 and later",
        linux: "uses some",
        here: "relies on none; with `TCR_EL1.DS`, operations name no ranges",
        source: "Arm DDI 0487",
        ..Erratum::UNAFFECTED
    },
    Erratum {
        numbers: "Arm's MMU-500, MMU-600 and MMU-700",
        effect: "invalidations of the SMMU",
        condition: "SMMUs",
        linux: "the driver",
        here: "the kernel's hook `issue_to_devices`",
        source: "Linux, `Documentation/arch/arm64/silicon-errata.rst`",
        ..Erratum::UNAFFECTED
    },
];

#[cfg(test)]
#[path = "tests/errata.rs"]
mod tests;
