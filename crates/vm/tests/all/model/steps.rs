//! The steps of random programs.

use proptest::prelude::*;
use shootdown_vm::{Access, Moves, Protection};

use super::CPUS;
use crate::platform::{NODES, PAGES, READ, READ_WRITE};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Private,
    SharedAnonymous,
    PrivateFile,
    SharedFile,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Map { count: u64, protection: Protection, kind: Kind },
    MapFixed { first: u64, count: u64, protection: Protection, kind: Kind },
    Unmap { first: u64, count: u64 },
    Protect { first: u64, count: u64, protection: Protection },
    ProtectExisting { first: u64, count: u64, protection: Protection },
    Move { first: u64, count: u64, to: u64, to_count: u64 },
    Resize { first: u64, count: u64, to_count: u64, moves: Moves },
    Discard { first: u64, count: u64 },
    Hint { first: u64, count: u64 },
    Free { first: u64, count: u64 },
    Touch { page: u64, count: u64, cpu: usize, access: Access },
    Reclaim { node: usize, count: usize },
    PageOut { first: u64, count: u64 },
    WriteBack { first: u64, count: u64 },
    Truncate { first: u64 },
    Migrate { first: u64, count: u64, node: usize },
    Collapse { first: u64, count: u64 },
    UseLargePages { first: u64, count: u64 },
    Fork,
    Exit,
    FreeDiscarded,
}

fn protections() -> impl Strategy<Value = Protection> {
    prop_oneof![
        6 => Just(READ_WRITE),
        2 => Just(READ),
        1 => Just(READ_WRITE | Protection::EXECUTE),
        1 => Just(Protection::WRITE),
        1 => Just(Protection::empty()),
    ]
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        4 => Just(Kind::Private),
        1 => Just(Kind::SharedAnonymous),
        1 => Just(Kind::PrivateFile),
        1 => Just(Kind::SharedFile),
    ]
}

pub(crate) fn steps() -> impl Strategy<Value = (usize, Step)> {
    let range = || (0..PAGES, 1..=24u64).prop_map(|(first, n)| (first, n.min(PAGES - first)));
    let accesses = prop_oneof![Just(Access::Read), Just(Access::Write), Just(Access::Execute)];
    let step = prop_oneof![
        3 => (1..=20u64, protections(), kinds())
            .prop_map(|(count, protection, kind)| Step::Map { count, protection, kind }),
        2 => (range(), protections(), kinds()).prop_map(|((first, count), protection, kind)| {
            Step::MapFixed { first, count, protection, kind }
        }),
        3 => range().prop_map(|(first, count)| Step::Unmap { first, count }),
        3 => (range(), protections())
            .prop_map(|((first, count), protection)| Step::Protect { first, count, protection }),
        1 => (range(), protections()).prop_map(|((first, count), protection)| {
            Step::ProtectExisting { first, count, protection }
        }),
        2 => moves(),
        1 => resizes(),
        2 => range().prop_map(|(first, count)| Step::Discard { first, count }),
        1 => range().prop_map(|(first, count)| Step::Free { first, count }),
        1 => range().prop_map(|(first, count)| Step::Hint { first, count }),
        12 => (range(), 0..CPUS, accesses).prop_map(|((page, count), cpu, access)| {
            Step::Touch { page, count, cpu, access }
        }),
        2 => Just(Step::Fork),
        1 => Just(Step::Exit),
        2 => (0..NODES, 1..40usize).prop_map(|(node, count)| Step::Reclaim { node, count }),
        2 => range().prop_map(|(first, count)| Step::PageOut { first, count }),
        2 => range().prop_map(|(first, count)| Step::WriteBack { first, count }),
        1 => (0..PAGES).prop_map(|first| Step::Truncate { first }),
        2 => (range(), 0..NODES)
            .prop_map(|((first, count), node)| Step::Migrate { first, count, node }),
        1 => range().prop_map(|(first, count)| Step::Collapse { first, count }),
        1 => Just(Step::FreeDiscarded),
    ];
    (0..4usize, step)
}

/// Returns the same steps, and steps that make large areas and large pages.
pub(crate) fn large_steps() -> impl Strategy<Value = (usize, Step)> {
    let (first, count) = (0, PAGES);
    let (protection, kind) = (READ_WRITE, Kind::Private);
    let access = Access::Write;
    let step = prop_oneof![
        1 => Just(Step::MapFixed { first, count, protection, kind }),
        1 => Just(Step::Protect { first, count, protection }),
        3 => (0..PAGES, 0..CPUS).prop_map(move |(page, cpu)| {
            Step::Touch { page, count: PAGES - page, cpu, access }
        }),
        3 => Just(Step::Collapse { first, count }),
        2 => Just(Step::UseLargePages { first, count }),
    ];
    prop_oneof![2 => steps(), 1 => (0..4usize, step)]
}

/// Half of the new lengths are the old ones.
fn resizes() -> impl Strategy<Value = Step> {
    let moves = prop_oneof![Just(Moves::IfNecessary), Just(Moves::Always)];
    (0..PAGES, 1..=8u64, 1..=12u64, any::<bool>(), moves).prop_map(
        |(first, count, to_count, is_resized, moves)| {
            let count = count.min(PAGES - first);
            Step::Resize {
                first,
                count,
                to_count: if is_resized { to_count } else { count },
                moves,
            }
        },
    )
}

/// Mostly moves a few pages, because all of them must be mapped. One move in three stays at its
/// address, and one in three keeps its length.
fn moves() -> impl Strategy<Value = Step> {
    (0..PAGES, 1..=8u64, 0..PAGES, 1..=8u64, 0..3, 0..3).prop_map(
        |(first, count, to, to_count, place, length)| {
            let to = if place == 0 { first } else { to };
            let to_count = if length == 0 { count } else { to_count };
            let fit = |first, count: u64| count.min(PAGES - first);
            Step::Move { first, count: fit(first, count), to, to_count: fit(to, to_count) }
        },
    )
}
