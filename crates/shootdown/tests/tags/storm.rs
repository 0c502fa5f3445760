//! Random programs with many spaces and few tags.

use proptest::prelude::*;
use shootdown::{Extent, PageSize, Reach, Rule, Tagging};

use crate::hardware::{Size, System};
use crate::page;

/// A xorshift64* generator: the same seed gives the same numbers on every host.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) * bound) >> 32
    }
}

fn extent(random: &mut Random) -> Extent {
    match random.below(8) {
        0 => Extent::whole(),
        1 => page().freeing_tables(),
        2 => Extent::pages(0, 40, PageSize::SIZE_4K),
        _ => page(),
    }
}

/// CPUs switch to old and new spaces, flush and end them, go lazy, leave, and go offline at random.
/// Half of the spaces take the places of those that end.
///
/// The machine fails if two CPUs use one tag for two spaces, or if a space has a translation of
/// another space under its tag. This function fails if a CPU uses a freed page. A third of all
/// switches is to a space that ran recently.
fn storm<const WORDS: usize>(size: Size, steps: usize, seed: u64) -> System<WORDS> {
    let system = System::<WORDS>::new(size);
    let mut random = Random(seed ^ 0x9e37_79b9_7f4a_7c15);
    let mut unborn = size.spaces / 2..size.spaces;
    let mut living: Vec<usize> = (0..unborn.start).collect();
    let mut used = vec![None; size.cpus as usize];
    let mut recent = [0; 8];
    let mut onlines = vec![1; size.cpus as usize];
    for _ in 0..steps {
        let cpu = random.below(size.cpus.into()) as u32;
        let current = &mut used[cpu as usize];
        match random.below(32) {
            0..=15 => {
                let again = random.below(3) == 0;
                let space = match again {
                    true => recent[random.below(8) as usize],
                    false => random.below(living.len() as u64) as usize,
                };
                recent[random.below(8) as usize] = space;
                system.switch(cpu, living[space]);
                *current = Some(space);
            }
            16..=18 => {
                system.pin(cpu).enter_lazy();
                *current = None;
            }
            19 => {
                system.pin(cpu).leave_space();
                *current = None;
            }
            20 => {
                system.pin(cpu).offline();
                // Other CPUs switch while this one is offline.
                for other in (0..size.cpus).filter(|&other| other != cpu).take(2) {
                    let space = random.below(living.len() as u64) as usize;
                    system.switch(other, living[space]);
                    used[other as usize] = Some(space);
                }
                system.pin(cpu).online();
                onlines[cpu as usize] += 1;
                used[cpu as usize] = None;
            }
            21..=25 => {
                let space = current.unwrap_or(recent[random.below(8) as usize]);
                system.flush(cpu, living[space], extent(&mut random));
            }
            26 => {
                system.pin(cpu).trim_cpumask(&system.spaces[living[recent[0]]]);
            }
            27 => system.speculate(cpu),
            28 => {
                let space = current.take().unwrap_or(recent[0]);
                if !used.contains(&Some(space))
                    && let Some(next) = unborn.next()
                {
                    system.retire(cpu, living[space]);
                    living[space] = next;
                } else {
                    // Other CPUs use the space.
                    system.pin(cpu).enter_lazy();
                }
            }
            _ if current.is_some() => system.touch(cpu),
            _ => {}
        }
    }
    assert_emptied_once_per_rollover(&system, size, &onlines);
    system
}

fn assert_emptied_once_per_rollover<const WORDS: usize>(
    system: &System<WORDS>,
    size: Size,
    onlines: &[u64],
) {
    let machine = system.machine();
    assert_eq!(machine.freed_table_walks.load(std::sync::atomic::Ordering::Relaxed), 0);
    let all = system.total_stats();
    for cpu in 0..size.cpus {
        let rollovers = match size.tagging {
            Tagging::Renamed => system.stats(cpu).rollovers,
            _ => all.rollovers,
        };
        let emptied = system.emptied(cpu);
        let most = rollovers + onlines[cpu as usize];
        assert!(emptied <= most, "CPU {cpu} was emptied {emptied} times: {rollovers} rollovers");
    }
}

const STORM: Size = Size { cpus: 64, spaces: 10_000, tags: 15, broken: None, ..Size::SMALL };
const STEPS: usize = if cfg!(miri) { 2000 } else { 100_000 };

/// Tags of four bits are fewer than CPUs, so some CPUs run without a tag.
#[test]
fn ten_thousand_spaces_share_fifteen_tags() {
    for broadcast in [None, Some(Reach::Everyone), Some(Reach::Targets)] {
        let system = storm::<2>(Size { broadcast, ..STORM }, STEPS, 1);
        let stats = system.total_stats();
        assert!(stats.rollovers > 100 && stats.broadcasts_sent == 0, "{stats:?}");
    }
    let system = storm::<2>(Size { tagging: Tagging::Renamed, broadcast: None, ..STORM }, STEPS, 1);
    assert!(system.total_stats().rollovers > 64);
}

/// There are more tags than CPUs, so every CPU has a tag.
#[test]
fn ten_thousand_spaces_share_enough_tags() {
    for broadcast in [None, Some(Reach::Everyone), Some(Reach::Targets)] {
        for cpus in [1, 4, 14] {
            let system = storm::<2>(Size { cpus, broadcast, ..STORM }, STEPS, cpus.into());
            let stats = system.total_stats();
            assert!(stats.rollovers > 100, "{stats:?}");
            assert_eq!(stats.broadcasts_sent > 0, broadcast.is_some() && cpus > 1);
        }
    }
}

/// Each broken rule lets a CPU use translations of a dead space.
#[test]
fn asid_of_dead_space_is_not_reused_without_the_rules() {
    for broken in [None, Some(Rule::RecycleOwnTag), Some(Rule::DiscardReusedTag)] {
        let size = Size { cpus: 3, spaces: 60, tags: 60, broadcast: None, broken, ..STORM };
        let fails =
            |&seed: &u64| std::panic::catch_unwind(|| storm::<2>(size, 1000, seed)).is_err();
        let seed = (0..if cfg!(miri) { 1 } else { 100 }).find(fails);
        assert!(seed.is_some() == broken.is_some() || cfg!(miri), "{broken:?}: {seed:?}");
    }
}

/// On each CPU, two programs run at a time, as after `fork` and before `exec`.
#[test]
fn programs_of_one_cpu_never_run_out_of_asids() {
    for tags in [12, 15, 255] {
        let system = System::<8>::new(Size { spaces: 4000, tags, broadcast: None, ..Size::SMALL });
        for next in (0..4000).step_by(4) {
            for (cpu, space) in (0..4).zip(next..) {
                system.switch(cpu, space);
                system.touch(cpu);
                if space >= 4 {
                    system.retire(cpu, space - 4);
                }
            }
        }
        assert_eq!(system.total_stats().rollovers, 0, "{tags} ASIDs");
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes more steps than miri has time for")]
fn tags_run_out_at_their_width() {
    for tags in [255, 65_535] {
        for tagging in [Tagging::Global, Tagging::Renamed] {
            let size = Size { cpus: 3, spaces: tags + 300, tags, tagging, ..STORM };
            let system = System::<2048>::new(size);
            let rollovers = |spaces: std::ops::Range<usize>| {
                spaces.for_each(|space| system.switch(0, space));
                system.stats(0).rollovers
            };
            assert_eq!(rollovers(0..tags), 0);
            assert_eq!(rollovers(tags..tags + 1), 1, "all {tags} tags are allocated");
            assert_eq!((system.emptied(0), system.stats(0).flushes_full), (2, 1));
            assert_eq!(rollovers(tags + 1..tags + 200), 1);
            // A space that ran before runs again.
            system.switch(1, 0);
            system.switch(0, 0);
            system.flush(1, 0, page());
            (0..2).for_each(|cpu| system.touch(cpu));
        }
        let system = storm::<2048>(Size { cpus: 8, spaces: tags + 300, tags, ..STORM }, STEPS, 3);
        assert_eq!(system.total_stats().rollovers > 0, tags == 255);
    }
}

/// A machine with global or renamed tagging may have no tags.
#[test]
fn machine_without_tags_never_rolls_over() {
    for tagging in [Tagging::Global, Tagging::Renamed] {
        let system = storm::<2>(Size { tags: 0, cpus: 4, tagging, ..STORM }, 2000, 1);
        let stats = system.total_stats();
        assert_eq!((stats.rollovers, stats.tags_taken), (0, 0), "{tagging:?}");
    }
}

/// A rollover would empty every CPU's TLB and free no ASID, so not every failed allocation causes
/// one.
#[test]
fn too_few_asids_limit_rollovers() {
    let size = Size { spaces: 100, tags: 3, broadcast: None, ..Size::SMALL };
    let system = System::<2>::new(size);
    (0..3).for_each(|cpu| system.switch(cpu, cpu as usize));
    let before = system.total_stats().rollovers;
    for space in 10..22 {
        system.switch(3, space);
        assert_eq!(system.tag(3), 0, "CPUs 0 to 2 have all ASIDs");
    }
    assert_eq!(system.total_stats().rollovers - before, 12 / 3);
}

/// A CPU that runs a space without an ASID reserves none, so its next space may get one.
#[test]
fn cpu_without_asid_reserves_none() {
    let system = System::<2>::new(Size { cpus: 1, tags: 1, broadcast: None, ..Size::SMALL });
    let tags = [0, 1, 2, 3, 4].map(|space| {
        system.switch(0, space);
        system.tag(0)
    });
    assert_eq!(tags, [1, 0, 1, 0, 1]);
}

/// A space keeps its ASID while a CPU has it loaded, however many rollovers other CPUs cause.
#[test]
fn loaded_space_keeps_its_asid() {
    let system = System::<2>::new(Size { spaces: 1000, ..Size::SMALL });
    system.switch(0, 0);
    system.switch(1, 1);
    system.pin(1).enter_lazy();
    let tags = [0, 1].map(|cpu| system.tag(cpu));
    for space in 2..1000 {
        system.switch(2, space);
    }
    assert!(system.total_stats().rollovers > 100);
    // A CPU that switches to the space gets the same ASID.
    for (cpu, space) in [(2, 0), (3, 1)] {
        system.switch(cpu, space);
        assert_eq!(system.tag(cpu), tags[space]);
    }
    assert_eq!([system.emptied(0), system.emptied(1)], [1, 1], "CPUs 0 and 1 did not switch");
}

/// A CPU that goes offline gives up its reserved ASID.
#[test]
fn offline_cpu_reserves_no_asid() {
    let system = System::<2>::new(Size { spaces: 200, ..Size::SMALL });
    let mut other_spaces = 10..;
    let mut roll_over = |cpu| {
        let before = system.total_stats().rollovers;
        while system.total_stats().rollovers == before {
            system.switch(cpu, other_spaces.next().unwrap());
        }
    };
    system.switch(1, 0);
    let old = system.tag(1);
    roll_over(0);
    system.pin(1).offline();
    roll_over(0);
    system.switch(0, 1);
    // Find a space that gets the ASID. The machine fails if two spaces have it.
    let new_owner = (100..).find(|&space| {
        system.switch(2, space);
        system.tag(2) == old
    });
    system.pin(1).online();
    roll_over(0);
    system.switch(3, 0);
    system.switch(3, new_owner.unwrap());
    system.touch(3);
    system.switch(0, 0);
    system.touch(0);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 128 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Random machines and random programs.
    #[test]
    fn random_machines_use_no_freed_memory(
        cpus in 1u32..8, tags in 0usize..20, seed in any::<u64>(),
        reach in prop_oneof![Just(None), Just(Some(Reach::Everyone)), Just(Some(Reach::Targets))],
        tagging in prop_oneof![
            Just(Tagging::Global), Just(Tagging::Renamed), Just(Tagging::PerCpu)
        ],
    ) {
        let size = Size { cpus, spaces: 24, tags, tagging, broadcast: reach, broken: None };
        storm::<2>(size, 1000, seed);
    }
}
