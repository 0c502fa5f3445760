//! The cores at the ends of each range of revisions, and cores that are not known.

use super::*;

const REPEATED: Workarounds = Workarounds::REPEATED_COMPLETION;
const ASID: Workarounds = Workarounds::ASID_APART;
const ICACHE: Workarounds = Workarounds::ICACHE_AT_SWITCH;
const MARKS: Workarounds = Workarounds::NO_DIRTY_MARKS;
const SME: Workarounds = Workarounds::SME_INTERRUPT;
const NONE: Workarounds = Workarounds::NONE;

/// `MIDR_EL1`: implementer 31:24, variant 23:20, architecture 19:16, part 15:4, revision 3:0.
fn midr(implementer: u64, part: u64, (variant, revision): (u64, u64)) -> u64 {
    implementer << 24 | variant << 20 | 0xf << 16 | part << 4 | revision
}

fn needed(implementer: u64, part: u64, revision: (u64, u64)) -> Workarounds {
    needed_by(midr(implementer, part, revision), true)
}

/// Each revision with the one after it, as in Linux's `cpu_errata.c` and `cpu_has_broken_dbm`.
#[test]
fn last_affected_and_first_fixed_revisions_differ() {
    let check = |implementer, part, revision, expected| {
        let found = needed(implementer, part, revision);
        assert_eq!(found, expected, "{implementer:#x} {part:#x} {revision:?}");
    };
    let arm = |part, revision, expected| check(0x41, part, revision, expected);
    // All revisions.
    for revision in [(0, 0), (15, 15)] {
        arm(0xd0b, revision, REPEATED);
        arm(0xd05, revision, REPEATED.with(MARKS));
        arm(0xd49, revision, REPEATED);
        arm(0xd4d, revision, REPEATED.with(Workarounds::BREAK_EXECUTABLE));
        check(0x4e, 0x010, revision, REPEATED);
        check(0x6d, 0xd49, revision, REPEATED);
        arm(0xd08, revision, NONE);
    }
    // 1286807 alone ends at r3p0; 4118414 has all revisions.
    let broken = &TABLE[1];
    assert_eq!(broken.numbers, "Arm 1286807");
    let has_1286807 = |part: u64, implementer: u64, revision| {
        broken.cpus.iter().any(|cores| cores.contains(midr(implementer, part, revision)))
    };
    assert!(has_1286807(0xd0b, 0x41, (3, 0)) && !has_1286807(0xd0b, 0x41, (3, 1)));
    let kryo = |revision| has_1286807(0x804, 0x51, revision);
    assert_eq!(
        [(0xc, 0xd), (0xc, 0xe), (0xd, 0), (0xf, 0xe), (0xf, 0xf)].map(kryo),
        [false, true, true, true, false]
    );
    // Dirty marks of Cortex-A510 end at r0p2, of Kryo 4xx Silver at their only revision.
    arm(0xd46, (0, 2), REPEATED.with(MARKS));
    arm(0xd46, (0, 3), REPEATED);
    arm(0xd46, (1, 0), REPEATED);
    check(0x51, 0x805, (0xd, 0xd), REPEATED);
    check(0x51, 0x805, (0xd, 0xe), REPEATED.with(MARKS));
    check(0x51, 0x805, (0xd, 0xf), REPEATED);
    // 2441009 ends at r1p1. Later revisions share machines with cores that need the workaround.
    let has_2441009 = |revision| TABLE[2].cpus[1].contains(midr(0x41, 0xd46, revision));
    assert!(has_2441009((1, 1)) && !has_2441009((1, 2)));
    // ThunderX T88 up to 2.1 (r1p1), T81 1.0.
    check(0x43, 0xa1, (0, 0), ICACHE);
    check(0x43, 0xa1, (1, 1), ICACHE);
    check(0x43, 0xa1, (1, 2), NONE);
    check(0x43, 0xa2, (0, 0), ICACHE);
    check(0x43, 0xa2, (0, 1), NONE);
    // Falkor v1 r0p0, all Kryos, Falkor, and Kryo 2xx Gold with Falkor v1's part number.
    check(0x51, 0x800, (0, 0), REPEATED.with(ASID));
    check(0x51, 0x800, (0, 1), REPEATED);
    check(0x51, 0x800, (0xa, 0), REPEATED);
    check(0x51, 0x200, (1, 2), REPEATED.with(ASID));
    check(0x51, 0x2ff, (0, 0), REPEATED.with(ASID));
    check(0x51, 0x1ff, (0, 0), REPEATED);
    check(0x51, 0x300, (0, 0), REPEATED);
    check(0x51, 0xc00, (0, 0), NONE);
    // C1-Pro up to r1p2.
    arm(0xd8b, (0, 0), REPEATED.with(SME));
    arm(0xd8b, (1, 2), REPEATED.with(SME));
    arm(0xd8b, (1, 3), REPEATED);
    assert_eq!(needed_by(midr(0x41, 0xd8b, (0, 0)), false), REPEATED);
}

#[test]
fn unknown_cores_repeat_completions() {
    // An implementer, a part of Arm, a part of Apple, and a part of software.
    for (implementer, part) in [(0x7f, 1), (0x41, 0xfff), (0x61, 0x040), (0, 0x052)] {
        assert_eq!(needed(implementer, part, (0, 0)), REPEATED, "{implementer:#x} {part:#x}");
    }
    for part in [0x022, 0x029, 0x032, 0x039] {
        assert_eq!(needed(0x61, part, (1, 1)), NONE, "{part:#x}");
    }
    assert_eq!(needed(0, 0x051, (0, 0)), NONE, "QEMU's `max`");
}

/// A core that is listed as complete must not be one of the table's.
#[test]
fn complete_cores_need_no_repetition() {
    for complete in COMPLETE {
        for row in TABLE.iter().filter(|row| row.needs.contains(REPEATED) && row.needs != NONE) {
            for cores in row.cpus {
                let is_same = cores.implementer == complete.implementer
                    && (cores.part ^ complete.part) & cores.part_mask & complete.part_mask == 0;
                assert!(!is_same, "{cores} and {complete}");
            }
        }
    }
}

/// The other sister numbers of 4118414 (Linux, `arm64_repeat_tlbi_list`).
#[test]
fn every_core_of_cve_2025_10263_is_listed() {
    let arm = [
        0xd90, 0xd8c, 0xd0b, 0xd0e, 0xd0d, 0xd41, 0xd42, 0xd4b, 0xd47, 0xd44, 0xd4c, 0xd48, 0xd4e,
        0xd82, 0xd85, 0xd0c, 0xd49, 0xd40, 0xd4f, 0xd84, 0xd83,
    ];
    let others = [(0x4e, 0x010), (0x6d, 0xd49)];
    let all = arm.map(|part| (0x41, part)).into_iter().chain(others);
    for (implementer, part) in all.clone() {
        let midr = midr(implementer, part, (2, 3));
        assert!(TABLE[0].cpus.iter().any(|cores| cores.contains(midr)), "{part:#x}");
    }
    assert_eq!(TABLE[0].cpus.len(), all.count());
}
