//! Features of a processor, from its ID registers and `TCR_EL1`.

use crate::aarch64::errata;
use crate::aarch64::granule::Granule;
use crate::aarch64::operation::Scope;
use crate::errata::Workarounds;
use shootdown::PageSize;

/// Features of a processor, and the kernel's settings for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of an ID register")]
pub struct Features {
    /// Number of bits of an ASID: 8 or 16. It is 16 only if `TCR_EL1.AS` is also set. Without that
    /// bit, the processor ignores the upper half of an ASID, and two spaces would share one.
    pub tag_bits: u32,
    /// The granule of user addresses.
    pub granule: Granule,
    /// The granule of kernel addresses.
    pub kernel_granule: Granule,
    /// `true` if tables can have the leaves of 52-bit addresses, which are one level above the
    /// others (`TCR_EL1.DS` of `FEAT_LPA2`; `FEAT_LPA` with granules of 64 KiB).
    pub has_large_leaves: bool,
    /// `true` if an operation can name a range (`FEAT_TLBIRANGE`).
    pub has_ranges: bool,
    /// `true` if an operation can have a hint of the level (`FEAT_TTL`).
    pub has_level_hints: bool,
    /// Number of bits of a TLBI domain's number; 0 if operations name no domain (`FEAT_TLBID`). For
    /// a guest, of the virtual domains.
    pub domain_bits: u32,
    /// `true` if the MMU marks entries as written (`FEAT_HAFDBS`, `TCR_EL1.HD`).
    pub marks_writes: bool,
    /// Frequency of the counter; 0 if firmware has not set it.
    pub counter_hz: u64,
    /// The workarounds that the processor needs.
    pub workarounds: Workarounds,
}

/// The registers from which [`Features`] are decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// `TCR_EL1`; for [stage 2](Features::of_stage_2), `VTCR_EL2`.
    pub tcr: u64,
    /// `MIDR_EL1`.
    pub midr: u64,
    /// `ID_AA64PFR1_EL1`.
    pub pfr1: u64,
    /// `ID_AA64ISAR0_EL1`.
    pub isar0: u64,
    /// `ID_AA64MMFR0_EL1`.
    pub mmfr0: u64,
    /// `ID_AA64MMFR1_EL1`.
    pub mmfr1: u64,
    /// `ID_AA64MMFR2_EL1`.
    pub mmfr2: u64,
    /// `ID_AA64MMFR4_EL1`.
    pub mmfr4: u64,
    /// `TLBIDIDR_EL1`; 0 if `ID_AA64MMFR4_EL1` has no TLBI domains.
    pub tlbididr: u64,
    /// `CNTFRQ_EL0`.
    pub cntfrq: u64,
}

impl Registers {
    /// Returns `true` if there is a register `TLBIDIDR_EL1`: `ID_AA64MMFR4_EL1`, TLBID.
    #[must_use]
    pub const fn has_domains(&self) -> bool {
        field(self.mmfr4, 40) >= 1
    }
}

impl Features {
    /// Decodes the registers. The manual describes their fields in chapter D24 ("`AArch64` System
    /// Register Descriptions").
    #[must_use]
    pub fn of(registers: &Registers) -> Self {
        let Registers { tcr, midr, pfr1, isar0, mmfr0, mmfr1, mmfr2, .. } = *registers;
        let workarounds = errata::needed_by(midr, field(pfr1, 24) != 0);
        let has_long_tags = field(mmfr0, 4) == 2 && bit(tcr, TCR_AS);
        Self {
            tag_bits: if has_long_tags { 16 } else { 8 },
            granule: Granule::of_tg0(tcr >> TCR_TG0_SHIFT),
            kernel_granule: Granule::of_tg1(tcr >> TCR_TG1_SHIFT),
            has_large_leaves: bit(tcr, TCR_DS) || has_long_addresses(mmfr0),
            // With `TCR_EL1.DS` (`FEAT_LPA2`), a range begins at a multiple of 64 KiB for every
            // granule. This code does not encode such addresses, so it uses no ranges then.
            has_ranges: field(isar0, 56) >= 2 && !bit(tcr, TCR_DS),
            has_level_hints: field(mmfr2, 48) >= 1,
            // NIS, the bits of a domain of operations in the inner shareable domain.
            domain_bits: if registers.has_domains() { registers.tlbididr as u32 & 0x1f } else { 0 },
            marks_writes: field(mmfr1, 0) >= 2
                && bit(tcr, TCR_HD)
                && !workarounds.contains(Workarounds::NO_DIRTY_MARKS),
            counter_hz: registers.cntfrq,
            workarounds,
        }
    }

    /// Decodes the registers for the translation of guests, with `VTCR_EL2` as `tcr`. The tags are
    /// VMIDs: they have 16 bits only if `VTCR_EL2.VS` is also set.
    #[must_use]
    pub fn of_stage_2(registers: &Registers) -> Self {
        let Registers { tcr: vtcr, isar0, mmfr0, mmfr1, .. } = *registers;
        let has_long_tags = field(mmfr1, 4) == 2 && bit(vtcr, VTCR_VS);
        // TG0 is at the same place as in `TCR_EL1`. The hypervisor's own pages have the same.
        let stage_1 = Self::of(registers);
        Self {
            tag_bits: if has_long_tags { 16 } else { 8 },
            kernel_granule: stage_1.granule,
            has_large_leaves: bit(vtcr, VTCR_DS) || has_long_addresses(mmfr0),
            has_ranges: field(isar0, 56) >= 2 && !bit(vtcr, VTCR_DS),
            marks_writes: field(mmfr1, 0) >= 2
                && bit(vtcr, VTCR_HD)
                && !stage_1.workarounds.contains(Workarounds::NO_DIRTY_MARKS),
            ..stage_1
        }
    }

    /// The features that two processors have in common, for machines whose CPUs differ. The tags
    /// must be the same on all CPUs.
    #[must_use]
    pub const fn common(self, other: Self) -> Self {
        Self {
            tag_bits: if self.tag_bits < other.tag_bits { self.tag_bits } else { other.tag_bits },
            has_ranges: self.has_ranges && other.has_ranges,
            has_level_hints: self.has_level_hints && other.has_level_hints,
            domain_bits: if self.domain_bits < other.domain_bits {
                self.domain_bits
            } else {
                other.domain_bits
            },
            marks_writes: self.marks_writes && other.marks_writes,
            has_large_leaves: self.has_large_leaves || other.has_large_leaves,
            workarounds: self.workarounds.with(other.workarounds),
            ..self
        }
    }

    /// Adds the workarounds that cores of other kinds in one machine may need (big.LITTLE), so that
    /// they can come online later. Call this if the engine is created before all kinds of cores
    /// have run, and if a later one is then refused by
    /// [`set_up_cpu`](crate::Processor::set_up_cpu).
    #[must_use]
    pub const fn for_mixed_cores(self) -> Self {
        let some = Workarounds::REPEATED_COMPLETION.with(Workarounds::NO_DIRTY_MARKS);
        let workarounds = self.workarounds.with(some).with(Workarounds::BREAK_EXECUTABLE);
        Self { marks_writes: false, workarounds, ..self }
    }

    /// The largest leaf that tables of a granule can have.
    pub(super) const fn largest_leaf(&self, granule: Granule) -> PageSize {
        if self.has_large_leaves {
            granule.largest_leaf_of_long_addresses()
        } else {
            granule.largest_leaf()
        }
    }

    /// The granule of the addresses that a scope has: [`Scope::AllTags`] is of kernel addresses.
    pub(super) const fn granule_of(&self, scope: Scope) -> Granule {
        match scope {
            Scope::Tag(_) => self.granule,
            Scope::AllTags => self.kernel_granule,
        }
    }
}

/// `ID_AA64MMFR0_EL1`, `PARange`: physical addresses have 52 bits or more.
const fn has_long_addresses(mmfr0: u64) -> bool {
    field(mmfr0, 0) >= 6
}

const TCR_TG0_SHIFT: u32 = 14;
const TCR_TG1_SHIFT: u32 = 30;
const TCR_AS: u32 = 36;
const TCR_HD: u32 = 40;
const TCR_DS: u32 = 59;
const VTCR_VS: u32 = 19;
const VTCR_HD: u32 = 22;
const VTCR_DS: u32 = 32;

/// A field of an ID register: four bits.
const fn field(register: u64, shift: u32) -> u64 {
    register >> shift & 0xf
}

const fn bit(register: u64, number: u32) -> bool {
    register >> number & 1 != 0
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The registers of a Cortex-A72 r0p3: no features, and ASIDs of 16 bits.
    const OLD: Registers = Registers {
        tcr: 1 << 36,
        midr: 0x410f_d083,
        pfr1: 0,
        isar0: 0,
        mmfr0: 0x20,
        mmfr1: 0,
        mmfr2: 0,
        mmfr4: 0,
        tlbididr: 0,
        cntfrq: 62_500_000,
    };

    pub(crate) const V8_0: Features = Features {
        tag_bits: 16,
        granule: Granule::Size4K,
        kernel_granule: Granule::Size4K,
        has_large_leaves: false,
        has_ranges: false,
        has_level_hints: false,
        domain_bits: 0,
        marks_writes: false,
        counter_hz: 62_500_000,
        workarounds: Workarounds::NONE,
    };
    pub(crate) const V8_4: Features =
        Features { has_ranges: true, has_level_hints: true, marks_writes: true, ..V8_0 };

    /// `ID_AA64MMFR0_EL1`, `ASIDBits`: 0b0000 is 8 bits, 0b0010 16. `TCR_EL1`, AS, bit 36: the
    /// upper bits "are used for allocation and matching in the TLB" if 1.
    #[test]
    fn tag_bits_need_both_registers() {
        assert_eq!(Features::of(&OLD), V8_0);
        assert_eq!(Features::of(&Registers { tcr: 0, ..OLD }).tag_bits, 8);
        assert_eq!(Features::of(&Registers { mmfr0: 0, ..OLD }).tag_bits, 8);
    }

    /// `ID_AA64ISAR0_EL1`, TLB, bits 59:56: 0b0001 is outer shareable operations, 0b0010 also
    /// ranges. `TCR_EL1`, DS, bit 59.
    #[test]
    fn ranges_need_isar0_without_ds() {
        let has_ranges = |tlb: u64, ds: u64| {
            let registers = Registers { isar0: tlb << 56, tcr: OLD.tcr | ds << 59, ..OLD };
            Features::of(&registers).has_ranges
        };
        assert_eq!([0, 1, 2].map(|tlb| has_ranges(tlb, 0)), [false, false, true]);
        assert!(!has_ranges(2, 1));
    }

    /// `ID_AA64MMFR2_EL1`, TTL, bits 51:48. `ID_AA64MMFR1_EL1`, HAFDBS, bits 3:0: 0b0001 is the
    /// access flag, 0b0010 also the dirty state. `TCR_EL1`, HD, bit 40; TG0, bits 15:14.
    #[test]
    fn hints_marks_and_granules_are_decoded() {
        assert!(Features::of(&Registers { mmfr2: 1 << 48, ..OLD }).has_level_hints);
        assert!(!Features::of(&OLD).has_level_hints);
        let marks = |hafdbs, hd: u64| {
            let registers = Registers { mmfr1: hafdbs, tcr: OLD.tcr | hd << 40, ..OLD };
            Features::of(&registers).marks_writes
        };
        assert_eq!(
            [(1, 1), (2, 0), (2, 1), (3, 1)].map(|(h, d)| marks(h, d)),
            [false, false, true, true]
        );
        let granule = |tg0: u64| Features::of(&Registers { tcr: tg0 << 14, ..OLD }).granule;
        assert_eq!([0, 1, 2].map(granule), [Granule::Size4K, Granule::Size64K, Granule::Size16K]);
        let mixed = Features::of(&Registers { tcr: 2 << 14 | 3 << 30, ..OLD });
        assert_eq!((mixed.granule, mixed.kernel_granule), (Granule::Size16K, Granule::Size64K));
        // Cortex-A55 r2p0, whose marks are wrong.
        let broken = Registers { tcr: 1 << 40, midr: 0x412f_d050, mmfr1: 2, ..OLD };
        assert!(!Features::of(&broken).marks_writes);
    }

    /// `ID_AA64MMFR4_EL1`, TLBID, bits 43:40. `TLBIDIDR_EL1`: NIS, bits 4:0; NVIS, bits 12:8; NOS,
    /// bits 36:32; NVOS, bits 44:40.
    #[test]
    fn domains_need_both_registers() {
        let bits = |tlbid: u64, tlbididr| {
            Features::of(&Registers { mmfr4: tlbid << 40, tlbididr, ..OLD }).domain_bits
        };
        assert_eq!([bits(0, 8), bits(1, 8), bits(1, 16), bits(1, 0)], [0, 8, 16, 0]);
        assert_eq!(bits(1, 5 << 40 | 7 << 32 | 4 << 8 | 6), 6);
        let with = Features { domain_bits: 8, ..V8_4 };
        assert_eq!((with.common(V8_4), V8_4.common(with)), (V8_4, V8_4));
    }

    /// `TCR_EL1`, DS, bit 59; `VTCR_EL2`, DS, bit 32; `ID_AA64MMFR0_EL1`, `PARange`, bits 3:0:
    /// 0b0101 is 48 bits, 0b0110 is 52 bits, 0b0111 is 56 bits.
    #[test]
    fn large_leaves_come_from_ds_and_parange() {
        let large = |tcr: u64, parange| {
            let registers = Registers { tcr, mmfr0: OLD.mmfr0 | parange, ..OLD };
            let of = [Features::of, Features::of_stage_2];
            of.map(|of| of(&registers).has_large_leaves)
        };
        assert_eq!(large(0, 5), [false, false]);
        assert_eq!(large(1 << 59, 5), [true, false]);
        assert_eq!(large(1 << 32, 5), [false, true]);
        assert_eq!([6, 7].map(|parange| large(0, parange)), [[true, true]; 2]);
    }

    /// `ID_AA64MMFR1_EL1`, `VMIDBits`, bits 7:4: 0b0000 is 8 bits, 0b0010 16. `VTCR_EL2`: VS, bit
    /// 19; HD, bit 22; DS, bit 32; TG0, bits 15:14.
    #[test]
    fn stage_2_is_decoded_from_vtcr() {
        let of = |tcr: u64, mmfr1: u64| {
            Features::of_stage_2(&Registers { tcr, mmfr1, isar0: 2 << 56, ..OLD })
        };
        assert_eq!(
            [of(1 << 19, 0), of(0, 0x20), of(1 << 19, 0x20)].map(|it| it.tag_bits),
            [8, 8, 16]
        );
        assert_eq!(
            [of(1 << 22, 0), of(0, 2), of(1 << 22, 2)].map(|it| it.marks_writes),
            [false, false, true]
        );
        assert_eq!([of(0, 0), of(1 << 32, 0)].map(|it| it.has_ranges), [true, false]);
        assert_eq!(of(1 << 14, 0).granule, Granule::Size64K);
        assert_eq!(of(1 << 14, 0).kernel_granule, Granule::Size64K);
        // Cortex-A510 r0p0.
        let broken = Registers { tcr: 1 << 22, midr: 0x410f_d460, mmfr1: 2, ..OLD };
        assert!(!Features::of_stage_2(&broken).marks_writes);
    }

    #[test]
    fn common_features_are_those_of_both() {
        let short = Features { tag_bits: 8, has_level_hints: false, ..V8_4 };
        assert_eq!(V8_4.common(short), short);
        assert_eq!(short.common(V8_4), short);
        assert_eq!(V8_4.common(V8_0), V8_0);
        assert_eq!(V8_0.common(V8_4), V8_0);
        let large = Features { has_large_leaves: true, ..V8_0 };
        assert_eq!((V8_0.common(large), large.common(V8_0)), (large, large));
        let apart = Features { workarounds: Workarounds::ASID_APART, ..V8_0 };
        let once = Features { workarounds: Workarounds::ICACHE_AT_SWITCH, ..V8_0 };
        let both = Features { workarounds: apart.workarounds.with(once.workarounds), ..V8_0 };
        assert_eq!((apart.common(once), once.common(apart)), (both, both));
    }
}
