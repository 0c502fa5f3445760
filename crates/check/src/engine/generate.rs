//! Generators of programs: all short ones, and long ones at random.

use super::{Config, Op, Programs};
use crate::choice::Random;
use crate::hardware::{PAGES, SLOTS};

/// The operations of short programs, each on one of two spaces and on pages of one table. Eleven
/// kinds are left out. [`Op::Pin`] requires tags that most hardware does not have. Programs with
/// [`Op::UnmapLarge`], [`Op::Shadow`], [`Op::FreeDiscarded`], [`Op::DeferAndReuse`],
/// [`Op::TrimCpumask`], [`Op::FlushWalkers`], [`Op::Attach`], [`Op::Stop`], [`Op::StayInUser`] and
/// [`Op::UnmapKernelTable`] have too many states to search in combination with every other
/// operation.
const ALPHABET: [Op; 18] = [
    Op::Run(0),
    Op::Run(1),
    Op::Idle,
    Op::Leave,
    Op::Unmap(0, 0),
    Op::UnmapMasked(0, 1),
    Op::Map(0, 0),
    Op::Reclaim(0, 0),
    Op::Protect(0, 0),
    Op::Migrate(0, 0),
    Op::UnmapTable(0, 0),
    Op::UnmapKernel(0),
    Op::OfflineOnline,
    Op::FreeTable(0, 0),
    Op::UnmapJoined(0, 0),
    Op::ReclaimBoth(0, 0),
    Op::Reap,
    Op::Retire(0),
];

impl Programs {
    /// Returns all programs with `length` operations for each CPU. The last CPU runs a space before
    /// its operations. The assignment of programs to CPUs does not matter, so only one order is
    /// generated.
    pub fn all_short(config: Config, length: u32) -> impl Iterator<Item = Self> {
        let count = ALPHABET.len().pow(length);
        let sequence = move |mut number: usize| -> Vec<Op> {
            let digit = |_| {
                let op = ALPHABET[number % ALPHABET.len()];
                number /= ALPHABET.len();
                op
            };
            (0..length).map(digit).collect()
        };
        let cpus = config.cpus;
        let total = count.pow(cpus as u32);
        (0..total).filter_map(move |mut number| {
            let of_cpu = |_| {
                let own = number % count;
                number /= count;
                own
            };
            let numbers: Vec<usize> = (0..cpus).map(of_cpu).collect();
            if !numbers.is_sorted() {
                return None;
            }
            let mut ops: Vec<_> = numbers.into_iter().map(sequence).collect();
            ops.last_mut()?.insert(0, Op::Run(0));
            let programs = Self { config, ops };
            programs.check().is_ok().then_some(programs)
        })
    }

    /// Returns a random program with `length` operations for each CPU. In half of the programs, all
    /// spaces are retired at the end, and a CPU reaps. The same seed makes the same program.
    pub fn at_random(config: Config, length: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut below = |bound| random.below(bound);
        let mut op = |_| {
            let (kind, space, page) = (below(43), below(config.spaces), below(SLOTS * PAGES));
            // A space that has a neighbour.
            let paired = if space ^ 1 < config.spaces { space } else { 0 };
            match kind {
                0..9 => Op::Run(space),
                9..11 => Op::Idle,
                11..13 => Op::Leave,
                13..16 => Op::Unmap(space, page),
                16 if page < SLOTS => Op::UnmapAsleep(space, page),
                16 => Op::UnmapMasked(space, page),
                17..20 => Op::Map(space, page),
                21 if page < SLOTS => Op::DeferAndReuse(space, page),
                20..22 => Op::Reclaim(space, page),
                22..24 => Op::Protect(space, page),
                24..26 => Op::Migrate(space, page),
                26 => Op::UnmapTable(space, page % SLOTS),
                27 if page == 0 => Op::UnmapKernelTable,
                27 => Op::UnmapKernel(page % SLOTS),
                28 if page < SLOTS => Op::FreeDiscarded(space, page),
                28 => Op::Shadow(space, page),
                29..31 if config.spaces > 1 => Op::UnmapJoined(paired, page),
                31..33 if config.spaces > 1 => Op::ReclaimBoth(paired, page),
                33..36 => Op::FreeTable(space, page % SLOTS),
                36 => Op::UnmapLarge(space, page % SLOTS),
                37 => Op::FlushWalkers(space),
                38 => Op::TrimCpumask(space),
                39 => Op::Pin(space),
                40 => Op::Reap,
                41 if page < SLOTS => Op::StayInUser,
                41 => Op::Attach(space),
                42 if page < SLOTS => Op::StopInWalk(space, page),
                42 => Op::Stop,
                _ => Op::OfflineOnline,
            }
        };
        let mut ops: Vec<Vec<Op>> =
            (0..config.cpus).map(|_| (0..length).map(&mut op).collect()).collect();
        if below(2) == 0 {
            for space in 0..config.spaces {
                ops[below(config.cpus)].push(Op::Retire(space));
            }
            ops[below(config.cpus)].push(Op::Reap);
        }
        Self { config, ops }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_programs_are_complete_and_distinct() {
        let all: Vec<_> = Programs::all_short(Config::new(2), 1).collect();
        // All pairs without order, except the pair that retires one space twice.
        assert_eq!(all.len(), ALPHABET.len() * (ALPHABET.len() + 1) / 2 - 1);
        for (index, one) in all.iter().enumerate() {
            assert!(all[..index].iter().all(|other| other.ops != one.ops));
        }
        let longer = Programs::all_short(Config::new(2), 2).count();
        assert!(longer > 16_000, "{longer}");
        assert!(Programs::all_short(Config::new(3), 1).all(|programs| programs.ops.len() == 3));
    }

    #[test]
    fn random_program_depends_on_its_seed_only() {
        for seed in 0..50 {
            let programs = Programs::at_random(Config::new(5), 12, seed);
            assert_eq!(programs, Programs::at_random(Config::new(5), 12, seed));
            let again = Programs::parse(programs.config, &programs.to_string());
            assert_eq!(again.as_ref(), Ok(&programs));
        }
    }
}
