//! The processors at the ends of each range, and those of the other vendor.

use super::*;
use crate::x86_64::Registers;

/// A processor whose microcode has this revision, or cannot be read.
struct Microcode(Option<u32>);

impl Source for Microcode {
    fn cpuid(&self, _: u32) -> Registers {
        unreachable!("the identity is known")
    }

    fn microcode(&self) -> u32 {
        self.0.expect("the microcode is not read")
    }
}

fn identity(vendor: Vendor, family: u32, model: u32) -> Identity {
    Identity { vendor, family, model, is_virtual: false, completes_by_one_tlbsync: false }
}

fn needed(vendor: Vendor, family: u32, model: u32) -> Workarounds {
    needed_by(&identity(vendor, family, model), &Microcode(None))
}

/// Linux, `invlpg_miss_ids`.
#[test]
fn microcode_ends_the_erratum_of_invlpg() {
    let numbers =
        [(0x97, 0x2e), (0x9a, 0x42c), (0xbe, 0x11), (0xb7, 0x118), (0xba, 0x4117), (0xbf, 0x2e)];
    for (model, fixed_by) in numbers {
        let at = |microcode, is_virtual| {
            let identity = Identity { is_virtual, ..identity(INTEL, 6, model) };
            needed_by(&identity, &Microcode(microcode))
        };
        assert_eq!(at(Some(fixed_by - 1), false), Workarounds::NO_TAGS, "{model:#x}");
        assert_eq!(at(Some(fixed_by), false), Workarounds::NONE);
        assert_eq!(at(None, true), Workarounds::NONE);
        assert_eq!(needed(AMD, 6, model), Workarounds::NONE);
        assert_eq!(needed(INTEL, 7, model), Workarounds::NONE);
    }
    assert_eq!(needed(INTEL, 6, 0x98), Workarounds::NONE);
}

#[test]
fn families_and_models_of_amd_are_compared() {
    let found = |families: &[u32]| -> std::vec::Vec<_> {
        families.iter().map(|family| needed(AMD, *family, 0x47)).collect()
    };
    let (filter, size) = (Workarounds::NO_FLUSH_FILTER, Workarounds::ONE_PAGE_SIZE);
    let (none, twice) = (Workarounds::NONE, Workarounds::SECOND_TLBSYNC);
    let early = found(&[0xe, 0xf, 0x10, 0x11, 0x12, 0x13]);
    assert_eq!(early, [none, filter, size, size, size, none]);
    let late = found(&[0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b]);
    assert_eq!(late, [none, Workarounds::NO_INVLPGB, none, none, twice, twice]);
    assert_eq!([0x46, 0x48].map(|model| needed(AMD, 0x17, model)), [none; 2]);
    assert_eq!([0xf, 0x10, 0x1a].map(|family| needed(INTEL, family, 0)), [none; 3]);
    // CPUID 8000_0021, EAX bit 4; and a guest's K8, whose HWCR is the host's.
    let fixed = Identity { completes_by_one_tlbsync: true, ..identity(AMD, 0x1a, 0) };
    assert_eq!(needed_by(&fixed, &Microcode(None)), none);
    let guest = Identity { is_virtual: true, ..identity(AMD, 0xf, 0) };
    assert_eq!(needed_by(&guest, &Microcode(None)), none);
    let guest = Identity { is_virtual: true, ..identity(AMD, 0x1a, 0) };
    assert_eq!(needed_by(&guest, &Microcode(None)), twice);
}

#[test]
fn knights_landing_marks_late() {
    let marks = |model| needed(INTEL, 6, model) == Workarounds::LATE_MARKS;
    assert_eq!(
        [0x56, 0x57, 0x58, 0x84, 0x85, 0x86].map(marks),
        [false, true, false, false, true, false]
    );
}
