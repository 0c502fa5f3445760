//! Errata of x86-64 processors, by CPUID and the revision of the microcode.

use core::fmt;
use core::ops::RangeInclusive;

use crate::errata::{Answer, Erratum, Workarounds, needs};
use crate::x86_64::identity::{AMD, INTEL, Identity, Source, Vendor};

/// Processors of one vendor, with ranges of families and models.
#[derive(Clone, Debug)]
pub struct Processors {
    name: &'static str,
    vendor: Vendor,
    families: RangeInclusive<u32>,
    models: RangeInclusive<u32>,
    /// The first revision of the microcode that is not affected, if there is one.
    fixed_by: Option<u32>,
}

const ANY_MODEL: RangeInclusive<u32> = 0..=0xff;

impl Processors {
    const fn amd(name: &'static str, families: RangeInclusive<u32>) -> Self {
        Self { name, vendor: AMD, families, models: ANY_MODEL, fixed_by: None }
    }

    /// A model of Intel's family 6.
    const fn intel(name: &'static str, model: u32, fixed_by: Option<u32>) -> Self {
        Self { name, vendor: INTEL, families: 6..=6, models: model..=model, fixed_by }
    }

    /// Returns `true` if a processor is one of these. A guest reads no microcode that it could
    /// rely on, so errata that microcode fixes are taken as fixed by the host's.
    fn contains(&self, identity: &Identity, source: &impl Source) -> bool {
        let is_listed = identity.vendor == self.vendor
            && self.families.contains(&identity.family)
            && self.models.contains(&identity.model);
        let is_fixed = |fixed_by| identity.is_virtual || source.microcode() >= fixed_by;
        is_listed && !self.fixed_by.is_some_and(is_fixed)
    }
}

/// Shows the name, and the microcode.
impl fmt::Display for Processors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        self.fixed_by.map_or(Ok(()), |fixed_by| write!(f, " below {fixed_by:#x}"))
    }
}

/// The workarounds that a processor needs.
pub(super) fn needed_by(identity: &Identity, source: &impl Source) -> Workarounds {
    let needed = needs(TABLE, |it| it.contains(identity, source));
    // A guest does not write the register that switches the filter off.
    let is_ended = |workaround| match workaround {
        Workarounds::NO_FLUSH_FILTER => identity.is_virtual,
        Workarounds::SECOND_TLBSYNC => identity.completes_by_one_tlbsync,
        _ => false,
    };
    let both = [Workarounds::NO_FLUSH_FILTER, Workarounds::SECOND_TLBSYNC];
    let ended = both.into_iter().filter(|workaround| is_ended(*workaround));
    ended.fold(needed, Workarounds::without)
}

/// A row with a workaround.
const AFFECTED: Erratum<Processors> = Erratum { answer: Answer::Yes, ..Erratum::UNAFFECTED };

/// The errata, those of local invalidation first.
pub const TABLE: &[Erratum<Processors>] = &[
    Erratum {
        numbers: "Intel ADL063, RPL042",
        effect: "`INVLPG` leaves global pages if PCIDs are enabled",
        cpus: &[
            Processors::intel("Alder Lake", 0x97, Some(0x2e)),
            Processors::intel("Alder Lake L", 0x9a, Some(0x42c)),
            Processors::intel("Gracemont", 0xbe, Some(0x11)),
            Processors::intel("Raptor Lake", 0xb7, Some(0x118)),
            Processors::intel("Raptor Lake P", 0xba, Some(0x4117)),
            Processors::intel("Raptor Lake S", 0xbf, Some(0x2e)),
        ],
        condition: "with this microcode, and not in a guest",
        linux: "no PCIDs",
        here: "no PCIDs",
        source: "Linux f24f669d03f8: the numbers are Intel's",
        needs: Workarounds::NO_TAGS,
        ..AFFECTED
    },
    Erratum {
        numbers: "AMD 1718",
        effect: "one `TLBSYNC` does not complete a broadcast",
        cpus: &[Processors::amd("Zen 5 and later (family 1Ah)", 0x1a..=u32::MAX)],
        condition: "with `INVLPGB`, unless CPUID 8000_0021, EAX bit 4",
        linux: "two `TLBSYNC` on Zen 5",
        here: "two `TLBSYNC`",
        source: "Linux 7.3, `init_amd_zen5`",
        needs: Workarounds::SECOND_TLBSYNC,
        ..AFFECTED
    },
    Erratum {
        numbers: "AMD, without a number",
        effect: "`INVLPGB` is enumerated, and does not work",
        cpus: &[Processors {
            models: 0x47..=0x47,
            ..Processors::amd("family 17h, model 47h", 0x17..=0x17)
        }],
        linux: "the feature is cleared",
        here: "the feature is cleared",
        source: "Linux, `init_amd_zen2`",
        needs: Workarounds::NO_INVLPGB,
        ..AFFECTED
    },
    Erratum {
        numbers: "FreeBSD-EN-26:10",
        effect: "a count of `INVLPGB` in steps of 2 MiB leaves pages of 4 KiB",
        condition: "all with `INVLPGB`",
        linux: "the step is the size of the smallest page",
        answer: Answer::Yes,
        here: "the step is the size of the extent's smallest page",
        source: "FreeBSD-EN-26:10",
        ..Erratum::UNAFFECTED
    },
    Erratum {
        numbers: "`INVLPGB` without its ASID bit",
        effect: "a host's `INVLPGB` also empties the TLBs of its guests",
        condition: "all with `INVLPGB`",
        linux: "the ASID bit is set",
        answer: Answer::Yes,
        here: "the ASID bit is always set",
        source: "AMD's manual, volume 3, \"INVLPGB\"",
        ..Erratum::UNAFFECTED
    },
    Erratum {
        numbers: "`INVLPGB` and KPTI",
        effect: "a broadcast names one PCID, and a space has two",
        condition: "all with `INVLPGB`",
        linux: "both PCIDs",
        answer: Answer::Yes,
        here: "both PCIDs",
        source: "Linux, `arch/x86/mm/tlb.c`",
        ..Erratum::UNAFFECTED
    },
    Erratum {
        numbers: "AMD 63, 122",
        effect: "the filter of redundant flushes filters one that is needed",
        cpus: &[Processors::amd("K8 (family 0Fh)", 0xf..=0xf)],
        condition: "not in a guest",
        linux: "HWCR.FFDIS is set",
        here: "`enable` sets HWCR.FFDIS",
        source: "Linux, `init_amd_k8`",
        needs: Workarounds::NO_FLUSH_FILTER,
        ..AFFECTED
    },
    Erratum {
        numbers: "AMD 383",
        effect: "a machine check, if a CPU has cached a page of 4 KiB and one of 2 MiB for an \
                 address",
        cpus: &[Processors::amd("families 10h to 12h", 0x10..=0x12)],
        linux: "splits a large page in three steps (clear, flush, store); KVM handles the machine \
                check of guests",
        here: "`tolerates_mixed_sizes` is `false`, so CPUs that are lazy are also notified",
        source: "Linux, `X86_BUG_AMD_TLB_MMATCH`, `__split_huge_pmd_locked`",
        needs: Workarounds::ONE_PAGE_SIZE,
        ..AFFECTED
    },
    Erratum {
        numbers: "Intel KNL, without a public number",
        effect: "accessed and dirty are set in an entry that is no longer valid",
        cpus: &[
            Processors::intel("Knights Landing", 0x57, None),
            Processors::intel("Knights Mill", 0x85, None),
        ],
        linux: "entries that are not valid do not use the two bits",
        here: "`traps_stale_writes` is `false`. The kernel ignores the two bits in such entries",
        source: "Linux e4a84be6f05e",
        needs: Workarounds::LATE_MARKS,
        ..AFFECTED
    },
    Erratum {
        numbers: "CVE-2018-12207 (iTLB multihit)",
        effect: "a machine check after a guest has changed the size of a page",
        condition: "Intel, to Cascade Lake",
        linux: "KVM maps no executable large pages",
        here: "there is no engine for guests' tables (EPT)",
        source: "Linux, `Documentation/admin-guide/hw-vuln/multihit.rst`",
        ..Erratum::UNAFFECTED
    },
    Erratum {
        numbers: "`WRMSR` in x2APIC mode",
        effect: "an interrupt overtakes earlier stores",
        condition: "Intel",
        linux: "`mfence; lfence`",
        answer: Answer::Yes,
        here: "`mfence; lfence`",
        source: "SDM 3A, \"MSR Access in x2APIC Mode\"",
        ..Erratum::UNAFFECTED
    },
    Erratum {
        numbers: "Flush requests of Hyper-V and KVM",
        effect: "a guest's flush of virtual CPUs that do not run",
        condition: "guests",
        linux: "hypercalls; the request in `preempted`",
        answer: Answer::Yes,
        here: "`HyperV`, `StealTime`",
        source: "Linux, `arch/x86/hyperv/mmu.c`, `arch/x86/kernel/kvm.c`",
        ..Erratum::UNAFFECTED
    },
];

#[cfg(test)]
#[path = "tests/errata.rs"]
mod tests;
