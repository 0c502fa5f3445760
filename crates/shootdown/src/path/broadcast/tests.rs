use super::*;
use crate::base::ids::Root;
use crate::soft::{Config, Host, Soft};
use proptest::prelude::*;

#[test]
fn operations_cover_all_pages_up_to_the_ceiling() {
    let pages = |count| Extent::pages(0, count, crate::parts::extent::PageSize::SIZE_4K);
    let by = |pages_per_operation| Broadcast {
        reach: Reach::Everyone,
        pages_per_operation,
        operation_ceiling: 10,
        completes_at_issue: false,
    };
    assert_eq!(by(1).operations(&[pages(4), pages(6)]), Some(10));
    assert_eq!(by(1).operations(&[pages(4), pages(7)]), None);
    assert_eq!(by(4).operations(&[pages(4), pages(7)]), Some(3));
    assert_eq!(by(0).operations(&[pages(4)]), Some(4), "no page per operation counts as one");
    assert_eq!(by(64).operations(&[pages(1), Extent::whole()]), None);
}

#[test]
fn one_of_64_flushes_closes_a_gap() {
    let closing = |extents: u64| {
        let flushes = (0..300).step_by(extents as usize);
        let closes = move |before: &u64| closes_old_gap(9, *before, before + extents);
        flushes.filter(closes).map(|before| before + extents).collect::<std::vec::Vec<_>>()
    };
    assert_eq!(closing(1), [74, 138, 202, 266]);
    assert_eq!(closing(4), [76, 140, 204, 268]);
    assert!((0..=9).all(|before| !closes_old_gap(9, before, before + 4)));
}

#[test]
fn time_to_answer_is_not_measured_by_default() {
    assert_eq!(Soft::<Host>::engine(Config::default()).machine().clock_ns(), 0);
}

/// Maximum number of broadcasts.
const MANY: usize = if cfg!(miri) { 8 } else { 40 };

proptest! {
    /// A broadcast counts only if it leaves no gap or covers everything. The generation never
    /// decreases.
    #[test]
    fn everyone_is_clean_up_to_the_first_gap(
        broadcasts in prop::collection::vec((0u64..20, 1u64..4, any::<bool>()), 1..MANY)
    ) {
        let engine = Soft::<Host>::engine(Config::default());
        let space = engine.space(Root(0));
        let mut covered = std::collections::BTreeSet::new();
        for (since, count, is_whole) in broadcasts {
            let generation = since + count;
            let clean = space.clean_everywhere();
            let before = if is_whole { 0 } else { since };
            space.note_clean_everywhere(engine.machine(), before, generation);
            covered.extend(before + 1..=generation);
            prop_assert!(space.clean_everywhere() >= clean);
            prop_assert!((1..=space.clean_everywhere()).all(|flush| covered.contains(&flush)));
            if clean >= before {
                prop_assert!(space.clean_everywhere() >= generation);
            }
        }
    }
}
