//! Checks that hold for every format. The tests of each format call them.

use super::{EMPTY, Format, Leaf, Marks};
use crate::area::Protection;
use crate::platform::Frame;

/// The behaviour of an MMU, written with the manual's bits.
pub(super) trait Hardware: Format {
    /// Number of bits of a frame's number.
    const FRAME_BITS: u32;

    /// Returns `true` if the MMU examines more bits than the valid bit.
    fn is_valid(entry: u64) -> bool;

    /// Returns the entry after an access through a valid leaf.
    fn read(entry: u64) -> u64;

    /// Returns the entry after a write through a valid leaf; `None` if the MMU refuses the write.
    fn written(entry: u64) -> Option<u64>;
}

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Empty,
    Table(Frame),
    Leaf(Leaf),
    Claim,
}

/// Returns the kind of an entry at `level`, from the answers of the decoding functions. Panics if
/// the entry has two kinds.
pub(super) fn kind<F: Format>(entry: u64, level: usize) -> Kind {
    let table = if level == 0 { None } else { F::as_table(entry) };
    let leaf = F::as_leaf_at(entry, level);
    match (entry, table, leaf) {
        (EMPTY, None, None) => Kind::Empty,
        (_, None, None) => Kind::Claim,
        (_, Some(table), None) => Kind::Table(table),
        (_, None, Some(leaf)) => Kind::Leaf(leaf),
        (_, Some(_), Some(_)) => panic!("{entry:#x} is a table and a leaf at level {level}"),
    }
}

/// Returns the first frame of the page at `level` that contains `number`, cut to the number of bits
/// that the format has.
pub(super) fn frame_at<F: Hardware>(number: u64, level: usize) -> Frame {
    let pages = F::span(level) / crate::PAGE_BYTES;
    Frame(number & ((1 << F::FRAME_BITS) - 1) & !(pages - 1))
}

/// Returns every possible protection, with all combinations of marks.
pub(super) fn protections_and_marks() -> impl Iterator<Item = (Protection, Marks)> {
    let enforced = |bits| Protection::from_bits_truncate(bits).as_enforced();
    (0..8).map(enforced).flat_map(|protection| {
        (0..4).map(move |bits| (protection, Marks::from_bits_truncate(bits)))
    })
}

/// Returns every leaf of the last frame at each level, and the level.
fn leaves<F: Hardware>() -> impl Iterator<Item = (Leaf, usize)> {
    (0..=F::LEAF_LEVEL_MAX).flat_map(|level| {
        let frame = frame_at::<F>(u64::MAX, level);
        protections_and_marks()
            .map(move |(protection, marks)| (Leaf { frame, protection, marks }, level))
    })
}

pub(super) fn leaf_decodes_as_encoded<F: Hardware>() {
    for (leaf, level) in leaves::<F>() {
        let entry = F::leaf_at(leaf, level);
        assert_eq!(kind::<F>(entry, level), Kind::Leaf(leaf), "{entry:#x} at level {level}");
        assert_eq!(F::is_valid(entry), !leaf.protection.is_empty());
    }
}

pub(super) fn largest_leaf_maps_1_gib<F: Hardware>() {
    let sizes = [0, 1, 2].map(|level| F::span(level));
    assert_eq!(sizes, [4 << 10, 2 << 20, 1 << 30]);
    assert_eq!(F::LEAF_LEVEL_MAX, 2);
    assert!(F::LEAF_LEVEL_MAX < F::LEVELS);
    for (leaf, level) in leaves::<F>() {
        let entry = F::leaf_at(leaf, level);
        assert_eq!(F::as_large_leaf(entry, F::LEAF_LEVEL_MAX + 1), None);
    }
}

pub(super) fn tables_claims_and_empty_are_distinct<F: Hardware>() {
    for level in 0..F::LEVELS {
        assert_eq!(kind::<F>(EMPTY, level), Kind::Empty);
        assert!(!F::is_valid(EMPTY));
        for ticket in [0, 1, 0x5555_5555, (1 << 52) - 1] {
            let entry = F::claim(ticket);
            assert_eq!(kind::<F>(entry, level), Kind::Claim, "{ticket:#x} at level {level}");
            assert!(!F::is_valid(entry));
        }
    }
    for level in 1..F::LEVELS {
        for table in [Frame(0), Frame(1), frame_at::<F>(u64::MAX, 0)] {
            let entry = F::table(table);
            assert_eq!(kind::<F>(entry, level), Kind::Table(table));
            assert!(F::is_valid(entry));
        }
    }
}

/// Checks that a leaf is recognised by other bits than those of its frame.
pub(super) fn leaf_of_frame_zero_is_distinct<F: Hardware>() {
    for (leaf, level) in leaves::<F>() {
        let leaf = Leaf { frame: Frame(0), ..leaf };
        let entry = F::leaf_at(leaf, level);
        assert_eq!(kind::<F>(entry, level), Kind::Leaf(leaf), "{entry:#x} at level {level}");
    }
}

pub(super) fn hardware_marks_equal_encoded_marks<F: Hardware>() {
    for (leaf, level) in leaves::<F>().filter(|(leaf, _)| !leaf.protection.is_empty()) {
        let entry = F::leaf_at(leaf, level);
        let marked = |marks| F::leaf_at(Leaf { marks: leaf.marks | marks, ..leaf }, level);
        assert_eq!(F::read(entry), marked(Marks::ACCESSED), "{leaf:x?} at level {level}");
        let may_write = leaf.protection.contains(Protection::WRITE);
        let expected = may_write.then(|| marked(Marks::ACCESSED | Marks::DIRTY));
        assert_eq!(F::written(entry), expected, "{leaf:x?} at level {level}");
    }
}

pub(super) fn walk_takes_nine_bits_per_level<F: Hardware>() {
    let address = (1 << 39) | (2 << 30) | (3 << 21) | (4 << 12) | 5;
    let indices = [0, 1, 2, 3].map(|level| F::index(address, level));
    assert_eq!(indices[..F::LEVELS], [4, 3, 2, 1][..F::LEVELS]);
}

/// The tests of a format.
macro_rules! format_checks {
    ($format:ty) => {
        mod checks {
            use super::*;
            use crate::format::tests::{self as checks, Kind};
            use alloc::vec::Vec;
            use proptest::prelude::*;

            #[test]
            fn leaf_decodes_as_encoded() {
                checks::leaf_decodes_as_encoded::<$format>();
                checks::leaf_of_frame_zero_is_distinct::<$format>();
            }

            #[test]
            fn largest_leaf_maps_1_gib() {
                checks::largest_leaf_maps_1_gib::<$format>();
            }

            #[test]
            fn tables_claims_and_empty_are_distinct() {
                checks::tables_claims_and_empty_are_distinct::<$format>();
            }

            #[test]
            fn hardware_marks_equal_encoded_marks() {
                checks::hardware_marks_equal_encoded_marks::<$format>();
            }

            #[test]
            fn walk_takes_nine_bits_per_level() {
                checks::walk_takes_nine_bits_per_level::<$format>();
            }

            #[test]
            #[should_panic(expected = "is not the first frame")]
            #[cfg(debug_assertions)]
            fn misaligned_large_leaf_panics() {
                let (protection, marks) = (Protection::READ, Marks::empty());
                let _ = <$format>::large_leaf(Leaf { frame: Frame(0x100), protection, marks }, 1);
            }

            proptest! {
                /// Frames, protections and marks are decoded as they were encoded.
                #[test]
                fn frame_decodes_as_encoded(
                    number: u64,
                    level in 0..=<$format>::LEAF_LEVEL_MAX,
                    (protection, marks) in prop::sample::select(
                        checks::protections_and_marks().collect::<Vec<_>>()
                    ),
                ) {
                    let frame = checks::frame_at::<$format>(number, level);
                    let leaf = Leaf { frame, protection, marks };
                    let entry = <$format>::leaf_at(leaf, level);
                    prop_assert_eq!(checks::kind::<$format>(entry, level), Kind::Leaf(leaf));
                    let table = checks::frame_at::<$format>(number, 0);
                    let entry = <$format>::table(table);
                    prop_assert_eq!(checks::kind::<$format>(entry, level + 1), Kind::Table(table));
                }

                #[test]
                fn claims_differ_by_ticket(
                    one in 0..1u64 << 52,
                    other in 0..1u64 << 52,
                    level in 0..<$format>::LEVELS,
                ) {
                    let entry = <$format>::claim(one);
                    prop_assert_eq!(checks::kind::<$format>(entry, level), Kind::Claim);
                    prop_assert_eq!(entry == <$format>::claim(other), one == other);
                }
            }
        }
    };
}
pub(super) use format_checks;
