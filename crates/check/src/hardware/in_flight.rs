//! Translations in flight: those that a CPU makes early, and uses late.
//!
//! A CPU may translate for an instruction long before it is the instruction's turn. What it has
//! found then, and be it that there is nothing, is in no TLB: an invalidation on that CPU does not
//! reach it, and no barrier ends it. What ends it is a context synchronisation: an `isb`, or an
//! exception that is taken, or returned from. An invalidation by *another* CPU is not complete
//! before all accesses are that use what it takes away: what is left of those are loads that are
//! done, and wait for their turn, until a barrier says that they were too early. A fault is no
//! access.
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
use crate::hash::mix;
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

/// When an access is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// When it is its turn.
    Now,
    /// Maybe before, for it is a load, and no barrier is between.
    MaybeDone,
}

/// A moment of a CPU's program, from which on it can know the address of a later access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(usize);

impl Moment {
    /// Before everything: the address depends on nothing.
    pub const BEGINNING: Self = Self(0);
}

/// What an instruction may have found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Flight {
    page: usize,
    found: Translation,
    /// It was a load, and is done.
    is_done: bool,
}

type Flights = BTreeSet<Flight>;

/// Of all CPUs.
#[derive(Debug)]
pub(super) struct InFlight {
    /// Of each, what it may have found since each of its moments, and its last synchronisation.
    cpus: Vec<Vec<Flights>>,
}

impl InFlight {
    fn add(&mut self, cpu: usize, flights: &Flights) {
        self.cpus[cpu].iter_mut().for_each(|since| since.extend(flights));
    }

    /// All accesses of a CPU that use entries of these pages are done.
    fn complete(&mut self, cpu: usize, pages: impl Fn(usize) -> bool) {
        for since in &mut self.cpus[cpu] {
            let after = since.iter().map(|&flight| {
                let is_done = !flight.found.is_fault() && pages(flight.page);
                Flight { is_done: flight.is_done || is_done, ..flight }
            });
            *since = after.collect();
        }
    }

    pub(super) fn hash(&self, mut hash: u64) -> u64 {
        for since in self.cpus.iter().flatten() {
            hash = mix(hash, since.len() as u64);
            for &Flight { page, found, is_done } in since {
                hash = mix(mix(hash, (page as u64) << 1 | u64::from(is_done)), found.bits());
            }
        }
        hash
    }
}

impl Hardware {
    /// Keeps what is in flight from now on.
    pub(crate) fn track_in_flight(&mut self, memory: &Memory) {
        let cpus = vec![vec![Flights::new()]; self.cpus.len()];
        self.in_flight = Some(InFlight { cpus });
        (0..self.cpus.len()).for_each(|cpu| self.note_in_flight(memory, cpu));
    }

    /// A CPU may find something else than before.
    pub(super) fn note_in_flight(&mut self, memory: &Memory, cpu: usize) {
        if self.in_flight.is_some() {
            let flights = self.findable(memory, cpu);
            self.in_flight.iter_mut().for_each(|in_flight| in_flight.add(cpu, &flights));
        }
    }

    /// What a CPU may find now, in its TLB or by a walk.
    fn findable(&self, memory: &Memory, cpu: usize) -> Flights {
        let mut flights = Flights::new();
        let mut add = |page, found| flights.insert(Flight { page, found, is_done: false });
        let state = &self.cpus[cpu];
        let cached = state.root.zip(state.cached.get(&state.tag));
        let Some((root, cached)) = cached else { return flights };
        for leaf in &cached.leaves {
            add(leaf.page, Translation::To(leaf.entry));
        }
        for (slot, &word) in self.roots[root].words.iter().enumerate() {
            if !Entry(memory.value(word)).is_present() {
                for page in slot * PAGES..(slot + 1) * PAGES {
                    add(page, Translation::FaultsInRoot);
                }
            }
        }
        for upper in cached.uppers.iter().filter(|it| it.root == root) {
            for (index, &word) in self.tables[upper.table].words.iter().enumerate() {
                if !Entry(memory.value(word)).is_present() {
                    add(upper.slot * PAGES + index, Translation::FaultsInTable);
                }
            }
        }
        flights
    }

    /// What a CPU may have found for a page since a moment of its program: for an access that is
    /// done now, or what a load has found that is done.
    pub(crate) fn translations(
        &self,
        cpu: usize,
        page: usize,
        since: Moment,
        access: Access,
    ) -> BTreeSet<Translation> {
        let flights = self.in_flight.iter().flat_map(|it| &it.cpus[cpu][since.0]);
        let flights = flights.filter(|it| it.page == page);
        let flights = flights.filter(|it| !it.is_done || access == Access::MaybeDone);
        flights.map(|flight| flight.found).collect()
    }

    /// A CPU's loads that are done come too early for what is behind a barrier.
    pub(crate) fn order_loads(&mut self, cpu: usize) {
        for since in self.in_flight.iter_mut().flat_map(|it| &mut it.cpus[cpu]) {
            since.retain(|flight| !flight.is_done);
        }
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
        in_flight.cpus[cpu].push(Flights::new());
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
