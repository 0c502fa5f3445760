#![cfg(test)]

use super::*;
use crate::base::rules::Rule;
use crate::soft::{Config, Host, Soft};
use core::sync::atomic::Ordering::Relaxed;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::format;
use std::vec::Vec;

/// Numbers of words. With `MANY`, several words share a bit of the top word.
const FEW: usize = 2;
const MANY: usize = 66;

/// CPUs below `64 * WORDS`. Words that share a bit of the top word are more likely.
fn cpu<const WORDS: usize>() -> impl Strategy<Value = CpuId> {
    let word = prop_oneof![0..WORDS, Just(0), Just(WORDS - 1), Just(WORDS / 64)];
    (word, 0..4usize).prop_map(|(word, bit)| cpu_at(word, bit))
}

/// Four CPUs of each word.
fn cpu_at(word: usize, bit: usize) -> CpuId {
    CpuId((word * 64 + bit * 21) as u32)
}

fn assert_same<const WORDS: usize>(set: &CpuSet<[u64; WORDS]>, expected: &BTreeSet<CpuId>) {
    assert_eq!(CpuSet::<[u64; WORDS]>::capacity(), 64 * WORDS);
    let mut members: Vec<_> = set.iter().collect();
    if WORDS <= 64 {
        assert!(members.is_sorted());
    }
    assert_eq!(set.first(), members.first().copied());
    members.sort();
    assert!(members.iter().eq(expected), "{members:?} {expected:?}");
    assert_eq!(set.len(), expected.len());
    assert_eq!(set.is_empty(), expected.is_empty());
    for word in [0, 1, 2, WORDS - 1].into_iter().filter(|&word| word < WORDS) {
        for cpu in (0..4).map(|bit| cpu_at(word, bit)) {
            assert_eq!(set.contains(cpu), expected.contains(&cpu));
        }
    }
    assert!(set.clone().iter().eq(set.iter()));
    let numbers: Vec<_> = set.iter().map(|cpu| cpu.0).collect();
    assert_eq!(format!("{set:?}"), format!("{numbers:?}").replace('[', "{").replace(']', "}"));
}

/// Inserts or removes the CPU of each step, and compares both kinds of set with a `BTreeSet`.
fn compare_with_model<const WORDS: usize>(steps: &[(CpuId, bool)], others: &[CpuId]) {
    let engine = Soft::<Host>::engine(Config::default());
    let machine = engine.machine();
    let mut set = CpuSet::<[u64; WORDS]>::new();
    let shared = SharedCpuSet::<Soft<Host>, [u64; WORDS]>::new();
    let mut expected = BTreeSet::new();
    for (number, &(cpu, is_insertion)) in steps.iter().enumerate() {
        if is_insertion {
            set.insert(cpu);
            if number % 2 == 0 {
                shared.insert(cpu);
            } else {
                shared.insert_then_fence(machine, cpu, Rule::RegisterFence);
            }
            expected.insert(cpu);
        } else {
            if number % 2 == 0 {
                set.remove(cpu);
            } else {
                set.retain(|other| other != cpu);
            }
            // Relaxed: there is one thread.
            shared.remove(cpu, Relaxed);
            expected.remove(&cpu);
        }
        assert_same(&set, &expected);
        let mut read = CpuSet::new();
        shared.read_into(machine, &mut read);
        assert_same(&read, &expected);
        assert!(expected.contains(&cpu) == shared.contains(cpu));
    }
    let mut other = CpuSet::new();
    for &cpu in others {
        other.insert(cpu);
    }
    shared.read_into(machine, &mut other);
    set.insert_all(&other);
    expected.extend(others);
    assert_same(&set, &expected);
    assert_same(&other, &expected);
    shared.clear(machine);
    let mut read = CpuSet::new();
    shared.read_into(machine, &mut read);
    assert!(read.is_empty());
}

/// Maximum number of steps. Each step compares whole sets, which takes miri seconds.
const STEPS: usize = if cfg!(miri) { 4 } else { 20 };

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 1 } else { 32 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn sets_of_one_word_match_model(
        steps in prop::collection::vec((cpu::<1>(), any::<bool>()), 1..STEPS),
        others in prop::collection::vec(cpu::<1>(), 0..4)
    ) {
        compare_with_model::<1>(&steps, &others);
    }

    #[test]
    fn sets_of_several_words_match_model(
        steps in prop::collection::vec((cpu::<FEW>(), any::<bool>()), 1..STEPS),
        others in prop::collection::vec(cpu::<FEW>(), 0..4)
    ) {
        compare_with_model::<FEW>(&steps, &others);
    }

    #[test]
    fn sets_with_shared_top_bits_match_model(
        steps in prop::collection::vec((cpu::<MANY>(), any::<bool>()), 1..STEPS),
        others in prop::collection::vec(cpu::<MANY>(), 0..4)
    ) {
        compare_with_model::<MANY>(&steps, &others);
    }
}

/// Words 2 and 66 share a bit of the top word, and words 0 and 64 share another one.
#[test]
fn top_bit_is_cleared_with_its_last_word() {
    let mut set = CpuSet::<[u64; 67]>::new();
    let [zero, two, last] = [0, 2, 66].map(|word| CpuId(word * 64));
    for cpu in [zero, two, last] {
        set.insert(cpu);
    }
    set.remove(two);
    assert_eq!(set.iter().collect::<Vec<_>>(), [zero, last]);
    set.remove(last);
    assert_eq!(set.top, 1);
    set.remove(zero);
    assert!(set.is_empty());
}

#[test]
fn only_member_has_no_other_beside_it() {
    fn check<const WORDS: usize>() {
        let engine = Soft::<Host>::engine(Config::default());
        let machine = engine.machine();
        for word in [0, WORDS - 1] {
            let shared = SharedCpuSet::<Soft<Host>, [u64; WORDS]>::new();
            let [cpu, neighbour] = [0, 1].map(|bit| cpu_at(word, bit));
            shared.insert(cpu);
            assert!(shared.has_only(machine, cpu));
            assert!(!shared.has_only(machine, neighbour));
            shared.insert(neighbour);
            assert!(!shared.has_only(machine, cpu));
        }
    }
    check::<1>();
    check::<FEW>();
}

#[test]
fn cpu_without_top_bit_is_not_a_member() {
    let shared = SharedCpuSet::<Soft<Host>, [u64; FEW]>::new();
    // Relaxed: there is one thread.
    shared.words()[1].store(1, Relaxed);
    assert!(!shared.contains(CpuId(64)));
    shared.insert(CpuId(65));
    assert!(shared.contains(CpuId(64)));
    assert_eq!(format!("{shared:?}"), "[0, 3]");
}

/// The set of a word is what a machine interrupts.
#[test]
fn lent_word_has_exactly_its_members() {
    fn check<const WORDS: usize>() {
        let mut set = CpuSet::<[u64; WORDS]>::new();
        for word in [0, WORDS - 1] {
            (0..3).for_each(|bit| set.insert(cpu_at(word, bit)));
        }
        let expected = [1, 2].map(|bit| cpu_at(WORDS - 1, bit));
        let members = expected.iter().map(|cpu| 1 << (cpu.index() % 64)).sum();
        let mut lent = Vec::new();
        set.lend_word(WORDS - 1, members, |cpus| lent.extend(cpus.iter()));
        assert_eq!(lent, expected, "{WORDS} words");
        assert!(WORDS == 1 || set.contains(cpu_at(0, 0)), "other words are as before");
    }
    check::<1>();
    check::<FEW>();
    check::<MANY>();
}

/// The last CPU of 1, 8, 64, 66 and 1024 words (65,536 CPUs), and the next one.
#[test]
fn cpu_beyond_the_words_panics() {
    fn check<const WORDS: usize>() {
        use std::panic::{AssertUnwindSafe, catch_unwind};
        let (last, next) = (CpuId(WORDS as u32 * 64 - 1), CpuId(WORDS as u32 * 64));
        let mut set = CpuSet::<[u64; WORDS]>::new();
        set.insert(last);
        set.retain(|cpu| cpu == last);
        assert!(set.contains(last) && set.iter().eq([last]));
        assert!(catch_unwind(AssertUnwindSafe(|| set.contains(next))).is_err());
        assert!(catch_unwind(AssertUnwindSafe(|| set.insert(next))).is_err());
        set.retain(|_| false);
        assert!(set.is_empty());
    }
    check::<1>();
    check::<8>();
    check::<64>();
    check::<MANY>();
    check::<1024>();
}
