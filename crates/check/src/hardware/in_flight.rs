//! Translations in flight: those that a CPU makes early, and uses late.
//!
//! A CPU may translate for an instruction long before it is the instruction's turn. What it has
//! found then, and be it that there is nothing, is in no TLB: an invalidation on that CPU does not
//! reach it, and no barrier ends it. What ends it is a context synchronisation: an `isb`, or an
//! exception that is taken, or returned from. An invalidation by *another* CPU is not complete
//! before all accesses are that use what it takes away; a fault is no access.
//!
//! As with TLBs, nobody chooses when a CPU looks: it is kept what it *may* have found since its
//! last synchronisation. Only programs that ask for it pay for that: who comes back from user mode
//! by an exception has synchronised, and so have all kernels that are checked.
//!
//! Of walks that are half done it is not kept which tables they are in: that is too kind to who
//! frees a table, and writes into it, before it synchronises.

use std::collections::BTreeSet;
use std::fmt;

use super::{Entry, Hardware, PAGES};
use crate::choice::mix;
use crate::memory::Memory;

/// What a CPU finds for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Translation {
    /// An entry that is present.
    To(Entry),
    /// The root has no table there.
    FaultsInRoot,
    /// The table has nothing there.
    FaultsInTable,
}

impl Translation {
    /// Whether there is nothing.
    #[must_use]
    pub const fn is_fault(self) -> bool {
        !matches!(self, Self::To(_))
    }

    pub(crate) const fn bits(self) -> u64 {
        match self {
            Self::To(entry) => entry.0 << 2,
            Self::FaultsInRoot => 1,
            Self::FaultsInTable => 2,
        }
    }
}

impl fmt::Display for Translation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::To(entry) if entry.is_writable() => write!(f, "frame {}", entry.target()),
            Self::To(entry) => write!(f, "frame {}, read-only", entry.target()),
            Self::FaultsInRoot => f.write_str("no table"),
            Self::FaultsInTable => f.write_str("nothing in the table"),
        }
    }
}

/// A moment of a CPU's program, from which on it can know the address of a later access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(usize);

impl Moment {
    /// Before everything: the address depends on nothing.
    pub const BEGINNING: Self = Self(0);
}

/// By page.
type Found = BTreeSet<(usize, Translation)>;

/// Of all CPUs.
#[derive(Debug)]
pub(super) struct InFlight {
    /// Of each, what it may have found since each of its moments, and its last synchronisation.
    cpus: Vec<Vec<Found>>,
}

impl InFlight {
    fn add(&mut self, cpu: usize, found: &Found) {
        self.cpus[cpu].iter_mut().for_each(|since| since.extend(found));
    }

    /// All accesses of a CPU that used entries of these pages are complete.
    fn complete(&mut self, cpu: usize, pages: impl Fn(usize) -> bool) {
        let stays = |&(page, found): &(usize, Translation)| found.is_fault() || !pages(page);
        self.cpus[cpu].iter_mut().for_each(|since| since.retain(stays));
    }

    pub(super) fn hash(&self, mut hash: u64) -> u64 {
        for since in self.cpus.iter().flatten() {
            hash = mix(hash, since.len() as u64);
            for &(page, found) in since {
                hash = mix(mix(hash, page as u64), found.bits());
            }
        }
        hash
    }
}

impl Hardware {
    /// Keeps what is in flight from now on.
    pub(crate) fn track_in_flight(&mut self, memory: &Memory) {
        let cpus = vec![vec![Found::new()]; self.cpus.len()];
        self.in_flight = Some(InFlight { cpus });
        (0..self.cpus.len()).for_each(|cpu| self.note_in_flight(memory, cpu));
    }

    /// A CPU may find something else than before.
    pub(super) fn note_in_flight(&mut self, memory: &Memory, cpu: usize) {
        if self.in_flight.is_some() {
            let found = self.findable(memory, cpu);
            self.in_flight.iter_mut().for_each(|in_flight| in_flight.add(cpu, &found));
        }
    }

    /// What a CPU may find now, in its TLB or by a walk.
    fn findable(&self, memory: &Memory, cpu: usize) -> Found {
        let mut found = Found::new();
        let state = &self.cpus[cpu];
        let Some(root) = state.root else { return found };
        let Some(cached) = state.cached.get(&state.tag) else { return found };
        found.extend(cached.leaves.iter().map(|leaf| (leaf.page, Translation::To(leaf.entry))));
        for (slot, &word) in self.roots[root].words.iter().enumerate() {
            if !Entry(memory.value(word)).is_present() {
                let pages = slot * PAGES..(slot + 1) * PAGES;
                found.extend(pages.map(|page| (page, Translation::FaultsInRoot)));
            }
        }
        for upper in cached.uppers.iter().filter(|it| it.root == root) {
            for (index, &word) in self.tables[upper.table].words.iter().enumerate() {
                if !Entry(memory.value(word)).is_present() {
                    found.insert((upper.slot * PAGES + index, Translation::FaultsInTable));
                }
            }
        }
        found
    }

    /// What a CPU may have found for a page since a moment of its program.
    pub(crate) fn translations(
        &self,
        cpu: usize,
        page: usize,
        since: Moment,
    ) -> BTreeSet<Translation> {
        let in_flight = self.in_flight.iter().flat_map(|it| &it.cpus[cpu][since.0]);
        in_flight.filter(|&&(of, _)| of == page).map(|&(_, found)| found).collect()
    }

    /// A CPU forgets what it has found early.
    pub(crate) fn synchronise(&mut self, memory: &Memory, cpu: usize) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.cpus[cpu].iter_mut().for_each(BTreeSet::clear);
            self.note_in_flight(memory, cpu);
        }
    }

    /// The present moment of a CPU's program.
    pub(crate) fn moment(&mut self, memory: &Memory, cpu: usize) -> Moment {
        let Some(in_flight) = &mut self.in_flight else { return Moment::BEGINNING };
        in_flight.cpus[cpu].push(Found::new());
        let moment = Moment(in_flight.cpus[cpu].len() - 1);
        self.note_in_flight(memory, cpu);
        moment
    }

    /// An invalidation by another CPU waits for those accesses of this one that use what it takes.
    pub(super) fn wait_for_accesses(&mut self, cpu: usize, pages: impl Fn(usize) -> bool) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.complete(cpu, pages);
        }
    }
}
