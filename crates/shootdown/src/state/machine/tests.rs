//! A machine that counts its fences, publications and invalidations, and tests of the defaults.

use super::*;
use crate::base::rules::Rule;
use crate::parts::cpu_set::SharedCpuSet;
use crate::state::broadcaster::NoBroadcaster;
use crate::state::tag::slots::TagSlot;
use core::sync::atomic::{AtomicU64, Ordering};

/// A machine that overrides no default, with room for an ASID allocator of `TAG_WORDS` words.
pub(crate) struct Plain<const TAG_WORDS: usize = 0> {
    state: CpuState<Self>,
    fences: AtomicU64,
    pub(crate) publications: AtomicU64,
    /// Number of calls of `invalidate_tag`.
    pub(crate) invalidations: AtomicU64,
    pub(crate) tagging: Tagging,
    pub(crate) interrupts_masked: bool,
    tag_count: usize,
}

impl<const TAG_WORDS: usize> Plain<TAG_WORDS> {
    pub(crate) fn with_tags(tag_count: usize) -> Self {
        Self {
            state: CpuState::new(),
            fences: AtomicU64::new(0),
            publications: AtomicU64::new(0),
            invalidations: AtomicU64::new(0),
            tagging: Tagging::PerCpu,
            interrupts_masked: true,
            tag_count,
        }
    }
}

// SAFETY: the words are atomics, and only one thread runs.
unsafe impl<const TAG_WORDS: usize> Memory for Plain<TAG_WORDS> {
    type Word = AtomicU64;

    fn fence(&self) {
        self.fences.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: no test uses a translation on this machine.
unsafe impl<const TAG_WORDS: usize> Machine for Plain<TAG_WORDS> {
    type CpuBits = [u64; 2];
    type TagSlots = [TagSlot; 0];
    type TagWords = [AtomicU64; TAG_WORDS];
    type Broadcaster = NoBroadcaster;

    fn state(&self, _: CpuId) -> &CpuState<Self> {
        &self.state
    }
    fn cpu(&self) -> CpuId {
        CpuId(0)
    }
    fn interrupts_masked(&self) -> bool {
        self.interrupts_masked
    }
    fn publish(&self) {
        self.publications.fetch_add(1, Ordering::Relaxed);
    }
    fn tagging(&self) -> Tagging {
        self.tagging
    }
    fn tag_count(&self) -> usize {
        self.tag_count
    }
    unsafe fn load(&self, _: Root, _: Tag, _: Entries) {}
    fn load_kernel(&self) {}
    fn invalidate(&self, _: Tag, _: Extent) {}
    fn invalidate_tag(&self, _: Tag) {
        self.invalidations.fetch_add(1, Ordering::Relaxed);
    }
    fn invalidate_kernel(&self, _: Extent) {}
    fn invalidate_all(&self) {}
    fn ring(&self, _: &CpuSet<Self::CpuBits>) {}
    fn reclaim(&self, _: NonNull<Space<Self>>) {}
    /// Takes the interrupt if it is not masked.
    fn wait_hint(&self, _: &CpuSet<Self::CpuBits>) {
        let bell = &self.state.bell;
        let mut next = bell.begin_round(self).filter(|_| !self.interrupts_masked);
        while let Some(round) = next {
            bell.end_round(self, round);
            next = bell.leave(self, || ());
        }
    }
}

fn plain() -> Plain {
    Plain::with_tags(0)
}

#[test]
fn defaults_are_as_documented() {
    let machine = plain();
    assert_eq!((machine.flush_ceiling(), machine.catch_up_ceiling()), (33, 8));
    assert_eq!(machine.batch_ceiling(), 17);
    assert_eq!(machine.cpu_limit(), 128);
    assert!(!machine.traps_stale_writes() && !machine.tolerates_mixed_sizes());
    assert!(!machine.answers_early());
    assert_eq!(machine.trace_clock_ns(), 0);
    assert!(machine.broadcaster().is_none());
    assert!(Rule::ALL.iter().all(|&rule| !machine.breaks(rule)));
}

/// A set of several words has no instruction that inserts and fences.
#[test]
fn insertion_into_several_words_is_followed_by_a_fence() {
    let (machine, set) = (plain(), SharedCpuSet::<_, [u64; 2]>::default());
    set.insert_then_fence(&machine, CpuId(70), Rule::RegisterFence);
    assert_eq!(machine.fences.load(Ordering::Relaxed), 1);
}

#[test]
fn synchronization_publishes_and_fences() {
    let machine = plain();
    machine.synchronize();
    let counts = [&machine.fences, &machine.publications];
    assert_eq!(counts.map(|count| count.load(Ordering::Relaxed)), [1, 1]);
}

#[test]
#[should_panic = "which this kernel cannot invalidate on"]
fn flush_of_devices_panics_by_default() {
    let engine = crate::state::engine::Shootdown::new(plain());
    let space = engine.space(Root(0));
    engine.machine().issue_to_devices(&space, &[]);
}

#[test]
fn combined_operation_accesses_and_fences() {
    let (machine, word) = (plain(), AtomicU64::new(1));
    assert_eq!(machine.fetch_add_then_fence(&word, 3, Ordering::Relaxed), 1);
    assert_eq!(machine.fetch_or_then_fence(&word, 3, Ordering::Relaxed), 4);
    assert_eq!(word.load(Ordering::Relaxed), 7);
    machine.store_then_fence(&word, 9, Ordering::Relaxed);
    assert_eq!(word.load(Ordering::Relaxed), 9);
    assert_eq!(machine.fences.load(Ordering::Relaxed), 3);
}
