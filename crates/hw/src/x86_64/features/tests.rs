//! Decoding of the CPUID results of known processors.

use super::*;
use std::collections::BTreeMap;

#[derive(Clone)]
struct FakeCpuid {
    leaves: BTreeMap<u32, Registers>,
    /// The revision; `None` if reading it is an error.
    microcode: Option<u32>,
}

impl Source for FakeCpuid {
    /// Returns the highest basic leaf for leaves above the highest, as Intel's processors do.
    fn cpuid(&self, leaf: u32) -> Registers {
        let highest = |base| self.leaves[&base].eax;
        let leaf = if leaf <= highest(leaf & 0x8000_0000) { leaf } else { highest(0) };
        self.leaves.get(&leaf).copied().unwrap_or_default()
    }

    fn microcode(&self) -> u32 {
        self.microcode.expect("the microcode is not read")
    }
}

fn fake(vendor: &[u8; 12], eax: u32, ecx: u32) -> FakeCpuid {
    let word = |at: usize| u32::from_le_bytes(vendor[at..at + 4].try_into().expect("four bytes"));
    let first = Registers { eax: 7, ebx: word(0), edx: word(4), ecx: word(8) };
    let leaves = [
        (0, first),
        (1, Registers { eax, ecx, ..Registers::default() }),
        (0x8000_0000, Registers { eax: 0x8000_0008, ..Registers::default() }),
    ];
    FakeCpuid { leaves: leaves.into(), microcode: None }
}

impl FakeCpuid {
    fn with(mut self, leaf: u32, ebx: u32, edx: u32) -> Self {
        let registers = self.leaves.entry(leaf).or_default();
        (registers.ebx, registers.edx) = (ebx, edx);
        self
    }
}

/// SDM 2A, CPUID: leaf 1, ECX bit 17 PCID; leaf 7, EBX bit 10 INVPCID.
#[test]
fn intel_features_come_from_leaves_1_and_7() {
    // Haswell has both features, Sandy Bridge one.
    let haswell = fake(b"GenuineIntel", 0x0003_06c3, 1 << 17).with(7, 1 << 10, 0);
    let features = Features::of(&haswell);
    assert_eq!(
        (features.has_pcid, features.has_invpcid, features.invlpgb_pages),
        (true, true, None),
    );
    let sandy_bridge = Features::of(&fake(b"GenuineIntel", 0x0002_06a7, 1 << 17));
    assert_eq!((sandy_bridge.has_pcid, sandy_bridge.has_invpcid), (true, false));
    assert_eq!(Features::of(&fake(b"GenuineIntel", 0x6f6, !(1 << 17))), Features::NONE);
    assert!(!Features::of(&haswell.with(7, !(1 << 10), 0)).has_invpcid);
}

/// APM 3, appendix E: CPUID 8000_0008, EBX bit 3 INVLPGB, EDX bits 15:0 the largest count.
#[test]
fn amd_invlpgb_pages_come_from_leaf_8000_0008() {
    let milan = |edx| {
        let milan = fake(b"AuthenticAMD", 0x00a0_0f11, 1 << 17).with(7, 1 << 10, 0);
        Features::of(&milan.with(0x8000_0008, 1 << 3, edx))
    };
    assert_eq!(milan(7).invlpgb_pages, Some(8));
    assert_eq!(milan(0).invlpgb_pages, Some(1));
    // The upper half of EDX is another number (the highest ECX of RDPRU).
    assert_eq!(milan(0x0001_ffff).invlpgb_pages, Some(65536));
    assert!(milan(7).has_pcid && milan(7).has_invpcid);
    let without = fake(b"AuthenticAMD", 0x00a0_0f11, 1 << 17).with(0x8000_0008, !(1 << 3), 7);
    assert_eq!(Features::of(&without).invlpgb_pages, None);
    // The instruction names a tag.
    let no_tags = fake(b"AuthenticAMD", 0x00a0_0f11, 0).with(0x8000_0008, 1 << 3, 7);
    assert_eq!(Features::of(&no_tags), Features::NONE);
}

/// SDM 2A, CPUID: "If a value entered for CPUID.EAX is higher than the maximum input value …, then
/// the data for the highest basic information leaf is returned."
#[test]
fn leaves_above_the_highest_are_ignored() {
    let mut old = fake(b"GenuineIntel", 0x0002_06a7, 1 << 17);
    old.leaves.get_mut(&0).expect("leaf 0 exists").eax = 5;
    old.leaves.insert(5, Registers { ebx: !0, edx: !0, ..Registers::default() });
    old.leaves.get_mut(&0x8000_0000).expect("the leaf exists").eax = 0x8000_0004;
    let features = Features::of(&old);
    assert!(features.has_pcid && !features.has_invpcid);
    assert_eq!(features.invlpgb_pages, None);
}

/// The identity comes from leaves 0 and 1, and the microcode from a register of Intel's.
#[test]
fn invlpg_erratum_disables_tags() {
    let at = |microcode, ecx: u32| {
        let cpu = fake(b"GenuineIntel", 0x0009_0675, 1 << 17 | ecx).with(7, 1 << 10, 0);
        Features::of(&FakeCpuid { microcode, ..cpu })
    };
    assert!(!at(Some(0x2d), 0).has_pcid);
    assert!(at(Some(0x2d), 0).has_invpcid, "INVPCID can still drop all entries");
    // What is not used needs no workaround on other CPUs.
    assert_eq!(at(Some(0x2d), 0).workarounds, Workarounds::NONE);
    assert!(at(Some(0x2e), 0).has_pcid);
    // In a guest, the microcode is not read.
    assert!(at(None, 1 << 31).has_pcid);
    // AMD has another model with the same number.
    assert!(Features::of(&fake(b"AuthenticAMD", 0x0009_0675, 1 << 17)).has_pcid);
    // Another family of Intel: the extended family is added only to 15.
    assert!(Features::of(&fake(b"GenuineIntel", 0x0009_0f75, 1 << 17)).has_pcid);
}

/// Linux, `init_amd_zen5`: CPUID 8000_0021, EAX bit 4.
#[test]
fn second_tlbsync_depends_on_leaf_8000_0021() {
    let zen_5 = |invlpgb: u32, highest, eax| {
        let cpu = fake(b"AuthenticAMD", 0x00b0_0f21, 1 << 17).with(0x8000_0008, invlpgb << 3, 7);
        let mut cpu = cpu.with(0x8000_0021, 0, 0);
        cpu.leaves.get_mut(&0x8000_0000).expect("the leaf exists").eax = highest;
        cpu.leaves.get_mut(&0x8000_0021).expect("the leaf exists").eax = eax;
        Features::of(&cpu).workarounds
    };
    assert_eq!(zen_5(1, 0x8000_0021, 0), Workarounds::SECOND_TLBSYNC);
    assert_eq!(zen_5(1, 0x8000_0021, !(1 << 4)), Workarounds::SECOND_TLBSYNC);
    assert_eq!(zen_5(1, 0x8000_0021, 1 << 4), Workarounds::NONE);
    assert_eq!(zen_5(1, 0x8000_0020, 1 << 4), Workarounds::SECOND_TLBSYNC);
    assert_eq!(zen_5(0, 0x8000_0021, 0), Workarounds::NONE, "there are no broadcasts");
}

/// Family 17h (0xf + 8), model 47h has a wrong CPUID; its neighbours do not.
#[test]
fn model_47h_has_no_invlpgb() {
    let pages = |vendor, eax| {
        let cpu = fake(vendor, eax, 1 << 17).with(0x8000_0008, 1 << 3, 7);
        Features::of(&cpu).invlpgb_pages
    };
    assert_eq!(pages(b"AuthenticAMD", 0x0084_0f70), None);
    assert_eq!(pages(b"AuthenticAMD", 0x0083_0f70), Some(8));
    assert_eq!(pages(b"AuthenticAMD", 0x00a4_0f70), Some(8));
    assert_eq!(pages(b"HygonGenuine", 0x0084_0f70), Some(8));
}

#[test]
fn common_features_are_those_of_both() {
    let all =
        Features { has_pcid: true, has_invpcid: true, invlpgb_pages: Some(8), ..Features::NONE };
    let fewer = Features { has_invpcid: false, invlpgb_pages: Some(3), ..all };
    assert_eq!(all.common(fewer), fewer);
    assert_eq!(fewer.common(all), fewer);
    assert_eq!(all.common(Features::NONE), Features::NONE);
    assert_eq!(all.common(all), all);
    let late = Features { workarounds: Workarounds::LATE_MARKS, ..all };
    let twice = Features { workarounds: Workarounds::SECOND_TLBSYNC, ..all };
    let both = late.workarounds.with(twice.workarounds);
    assert_eq!(late.common(twice), Features { workarounds: both, ..all });
}

#[test]
fn late_cpu_is_refused_unless_engine_is_right_on_it() {
    let base = Features { has_pcid: true, invlpgb_pages: Some(8), ..Features::NONE };
    let twice = Features { workarounds: Workarounds::SECOND_TLBSYNC, ..base };
    let late = Features { workarounds: Workarounds::LATE_MARKS, ..base };
    let one_by_one = Features { invlpgb_pages: None, ..base };
    for (engine, cpu) in [
        (base, base),
        (base, Features { has_invpcid: true, invlpgb_pages: Some(9), ..base }),
        (twice, base),
        (one_by_one, twice),
        (Features::NONE, base),
    ] {
        engine.admit(cpu);
    }
    for (engine, cpu) in [
        (base, twice),
        (base, late),
        (twice, late),
        (one_by_one, late),
        (base, one_by_one),
        (base, Features { invlpgb_pages: Some(7), ..base }),
        (base, Features { has_pcid: false, ..base }),
        (Features { has_invpcid: true, ..base }, base),
    ] {
        let refused = std::panic::catch_unwind(|| engine.admit(cpu));
        assert!(refused.is_err(), "{engine:?} on {cpu:?}");
    }
}
