//! Finds the mappings of files that the recorded kernel mapped by large folios.
//!
//! A recording does not contain the sizes of pages. It shows a split of a large entry in two ways:
//!
//! - A sampled call stack of the flush contains `__split_huge_pmd`.
//! - The flush was full, although the call or the fault changed few pages. The entry's 512 pages
//!   are flushed in steps of one page, and Linux flushes more than 33 pages as all. Other full
//!   flushes of few pages occur while another thread is in such a call (`mm_tlb_flush_nested`);
//!   these flushes are ignored.
//!
//! Each flush of few pages of a mapping is evidence for a large folio, or against it. The majority
//! decides for each 2 MiB, and for the rest of the mapping, where there is no evidence. A mapping
//! without evidence has small pages: without splits, their size hardly changes the number of
//! flushes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use shootdown_program::operation::{Folios, RawAddress};
use shootdown_recording::record::{Call, FaultCode, FrameId, SpaceId};
use shootdown_vm::{LARGE_PAGE_BYTES, PAGE_BYTES};

use super::linux;

/// Largest number of bytes that Linux flushes page by page, with its default settings.
const RANGED_BYTES_MAX: u64 = 33 * 4096;

/// The function that splits a large entry. Compilers add a suffix to parts of it.
const SPLIT: &str = "__split_huge_pmd";

/// The mappings of files, and the evidence about them.
#[derive(Debug, Default)]
pub(super) struct FolioSurvey {
    /// The mappings of each space, by first address.
    mapped: HashMap<SpaceId, BTreeMap<u64, FileMapping>>,
    /// By the number of the call that made the mapping, and by the number of the 2 MiB.
    evidence: HashMap<usize, BTreeMap<u64, Evidence>>,
    /// Calls in stacks that are below a split.
    splits: HashSet<FrameId>,
}

/// A mapping of a file, or a part of one.
#[derive(Clone, Copy, Debug)]
struct FileMapping {
    end: u64,
    /// The number of the call that made it.
    number: usize,
}

/// Numbers of flushes that speak for large folios and against them.
#[derive(Clone, Copy, Debug, Default)]
struct Evidence {
    large: u64,
    small: u64,
    /// Flushes of writes to a large entry that allowed only reads, although its area is shared.
    tracked: u64,
}

/// The few pages that a call or a fault changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Changing {
    space: SpaceId,
    address: u64,
    by: By,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Call,
    /// A write that an entry refused.
    RefusedWrite,
    /// Another fault.
    Fault,
}

impl Changing {
    /// Returns `None` if the call changes many pages, or may free page tables.
    pub(super) fn of_call(space: SpaceId, call: &Call) -> Option<Self> {
        let (&address, &length) = match call {
            Call::Advise { address, length, .. } | Call::Protect { address, length, .. } => {
                (address, length)
            }
            _ => return None,
        };
        (length <= RANGED_BYTES_MAX).then_some(Self { space, address, by: By::Call })
    }

    pub(super) const fn of_fault(space: SpaceId, address: u64, code: FaultCode) -> Self {
        let is_refused_write = code.is_write() && code.was_present();
        let by = if is_refused_write { By::RefusedWrite } else { By::Fault };
        Self { space, address, by }
    }
}

impl FolioSurvey {
    /// Adds a call of call stacks.
    pub(super) fn frame(&mut self, frame: FrameId, caller: FrameId, function: &str) {
        if function.starts_with(SPLIT) || self.splits.contains(&caller) {
            self.splits.insert(frame);
        }
    }

    /// Adds the call stack of a flush.
    pub(super) fn stack(&mut self, changing: &Changing, innermost: FrameId) {
        let is_split = self.splits.contains(&innermost);
        self.add(changing, is_split);
    }

    /// Adds the first flush of a call or a fault: of a number of pages, or a full flush.
    pub(super) fn flush(&mut self, changing: &Changing, pages: Option<u64>) {
        self.add(changing, pages.is_none());
    }

    fn add(&mut self, changing: &Changing, is_split: bool) {
        let Some(number) = self.find(changing) else { return };
        let of_mapping = self.evidence.entry(number).or_default();
        let evidence = of_mapping.entry(changing.address / LARGE_PAGE_BYTES).or_default();
        if is_split {
            evidence.large += 1;
            evidence.tracked += u64::from(changing.by == By::RefusedWrite);
        } else {
            evidence.small += 1;
        }
    }

    /// Returns the number of the call that mapped an address.
    fn find(&self, changing: &Changing) -> Option<usize> {
        let below = self.mapped.get(&changing.space)?.range(..=changing.address);
        let (_, mapping) = below.last()?;
        (changing.address < mapping.end).then_some(mapping.number)
    }

    /// Adds the effect of a call that succeeded. `value` is its returned value.
    pub(super) fn returned(&mut self, space: SpaceId, number: usize, call: &Call, value: u64) {
        match *call {
            Call::Map { length, flags, .. } => {
                let range = value..value.saturating_add(length);
                self.remove(space, &range);
                if flags & linux::MAP_ANONYMOUS == 0 || flags & linux::MAP_SHARED != 0 {
                    let mapping = FileMapping { end: range.end, number };
                    self.mapped.entry(space).or_default().insert(range.start, mapping);
                }
            }
            Call::Unmap { address, length } => {
                self.remove(space, &(address..address.saturating_add(length)));
            }
            Call::Remap { address, old_length, .. } if value != address => {
                self.remove(space, &(address..address.saturating_add(old_length)));
            }
            _ => {}
        }
    }

    /// Removes mappings, or parts of them.
    fn remove(&mut self, space: SpaceId, range: &Range<u64>) {
        let Some(mapped) = self.mapped.get_mut(&space) else { return };
        let overlapping = mapped.range(..range.end).filter(|(_, it)| it.end > range.start);
        let overlapping: Vec<_> = overlapping.map(|(&start, &mapping)| (start, mapping)).collect();
        for (start, mapping) in overlapping {
            mapped.remove(&start);
            if start < range.start {
                mapped.insert(start, FileMapping { end: range.start, ..mapping });
            }
            if range.end < mapping.end {
                mapped.insert(range.end, mapping);
            }
        }
    }

    /// Copies the mappings of a space to a new one.
    pub(super) fn forked(&mut self, from: SpaceId, to: SpaceId) {
        if from != to
            && let Some(mapped) = self.mapped.get(&from).cloned()
        {
            self.mapped.insert(to, mapped);
        }
    }

    /// Returns the folios of each mapping that has large ones, by the number of the call that made
    /// the mapping.
    pub(super) fn found(&self) -> HashMap<usize, MappedFolios> {
        let all = self.evidence.iter().map(|(&number, blocks)| (number, MappedFolios::of(blocks)));
        all.filter(|(_, mapped)| *mapped != MappedFolios::SMALL).collect()
    }
}

/// The folios of a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MappedFolios {
    /// Those of most of the mapping.
    usual: Folios,
    /// Exceptions: numbers of 2 MiB, counted from address 0.
    others: Vec<(u64, Folios)>,
}

impl MappedFolios {
    const SMALL: Self = Self { usual: Folios::Small, others: Vec::new() };

    fn of(blocks: &BTreeMap<u64, Evidence>) -> Self {
        let sum = |of: fn(&Evidence) -> u64| blocks.values().map(of).sum();
        let tracked = sum(|evidence| evidence.tracked);
        let all = Evidence { large: sum(|it| it.large), small: sum(|it| it.small), tracked };
        let usual = all.folios(tracked);
        let blocks = blocks.iter().map(|(&block, evidence)| (block, evidence.folios(tracked)));
        Self { usual, others: blocks.filter(|&(_, folios)| folios != usual).collect() }
    }

    /// Returns the operations that give a mapping these folios.
    pub(super) fn operations(&self, mapping: &Range<u64>) -> Vec<RawAddress> {
        const PAGES: u64 = LARGE_PAGE_BYTES / PAGE_BYTES;
        let use_folios = |pages, folios| RawAddress::UseFolios { pages, folios };
        let usual = (self.usual != Folios::Small).then(|| use_folios(mapping.clone(), self.usual));
        let others = self.others.iter().map(|&(block, folios)| {
            let (start, end) = (block * PAGES, (block + 1) * PAGES);
            use_folios(start.max(mapping.start)..end.min(mapping.end), folios)
        });
        usual.into_iter().chain(others).collect()
    }
}

impl Evidence {
    /// Returns the folios that most of the evidence shows. `tracked` is the number of tracked
    /// writes in the whole mapping.
    const fn folios(&self, tracked: u64) -> Folios {
        if self.large <= self.small {
            Folios::Small
        } else if tracked == 0 {
            Folios::Large
        } else {
            Folios::LargeTracked
        }
    }
}
