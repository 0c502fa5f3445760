//! Translations in it: those that a CPU makes early and uses late.
//!
//! A CPU may translate for an instruction long before it executes the instruction. The result,
//! which may also be a fault, is not in a TLB: an invalidation on that CPU does not remove it, and
//! a barrier does not end it. Only a context synchronisation ends it: an `isb`, or an exception
//! that is taken or returned from.
//!
//! An invalidation by *another* CPU is not complete until all accesses that use the invalidated
//! entries are complete. The remaining uses are loads that have executed early and are not yet in
//! program order. A barrier discards such loads. A fault is not an access.
//!
//! As with TLBs, the search does not choose when a CPU translates. The machine keeps the set of
//! translations that each CPU *may* have found since its last synchronisation. Only programs that
//! ask for it pay for this. A CPU that returns from user mode by an exception has synchronised, and
//! all checked kernels do that.
//!
//! For a walk in progress, the machine does not track which tables the walk is in. This is too
//! lenient to a kernel that frees a table, and writes into it, before it synchronises.

use std::collections::BTreeSet;
use std::fmt;

use super::{Entry, Hardware, PAGES};
use crate::memory::Memory;

/// The result of translating a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Translation {
    /// The page has a present entry.
    To(Entry),
    /// The root has no table for the page.
    FaultsInRoot,
    /// The table has no entry for the page.
    FaultsInTable,
}

impl Translation {
    /// Returns `true` if the translation faults.
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

/// The time at which an access executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessTiming {
    /// The access executes in program order.
    InOrder,
    /// The access is a load and may have executed earlier, because no barrier precedes it.
    MaybeEarly,
}

/// A point in a CPU's program from which the CPU can know the address of a later access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(usize);

impl Moment {
    /// The beginning of the program: the address depends on nothing.
    pub const BEGINNING: Self = Self(0);
}

/// A translation that an instruction may have found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct EarlyTranslation {
    page: usize,
    found: Translation,
    /// `true` if the access was a load and has executed.
    has_executed: bool,
}

type EarlyTranslations = BTreeSet<EarlyTranslation>;

/// Translations in it of all CPUs.
#[derive(Debug, Hash)]
pub(super) struct InFlight {
    /// For each CPU and each of its moments, the translations that the CPU may have found since
    /// that moment and since its last synchronisation.
    cpus: Vec<Vec<EarlyTranslations>>,
}

impl InFlight {
    fn add(&mut self, cpu: usize, found: &EarlyTranslations) {
        self.cpus[cpu].iter_mut().for_each(|since| since.extend(found));
    }

    /// Marks as executed all accesses of a CPU that use entries of these pages.
    fn complete(&mut self, cpu: usize, pages: impl Fn(usize) -> bool) {
        for since in &mut self.cpus[cpu] {
            let after = since.iter().map(|&it| {
                let has_executed = !it.found.is_fault() && pages(it.page);
                EarlyTranslation { has_executed: it.has_executed || has_executed, ..it }
            });
            *since = after.collect();
        }
    }
}

impl Hardware {
    /// Tracks translations in it from now on.
    pub(crate) fn track_in_flight(&mut self, memory: &Memory) {
        let cpus = vec![vec![EarlyTranslations::new()]; self.cpus.len()];
        self.in_flight = Some(InFlight { cpus });
        (0..self.cpus.len()).for_each(|cpu| self.note_in_flight(memory, cpu));
    }

    /// Adds the translations that a CPU may find now, after a change.
    pub(super) fn note_in_flight(&mut self, memory: &Memory, cpu: usize) {
        if self.in_flight.is_some() {
            let found = self.findable(memory, cpu);
            self.in_flight.iter_mut().for_each(|in_flight| in_flight.add(cpu, &found));
        }
    }

    /// Returns the translations that a CPU may find now, in its TLB or by a walk.
    fn findable(&self, memory: &Memory, cpu: usize) -> EarlyTranslations {
        let mut found = EarlyTranslations::new();
        let mut add = |page, translation| {
            found.insert(EarlyTranslation { page, found: translation, has_executed: false })
        };
        let state = &self.cpus[cpu];
        let cached = state.root.zip(state.cached.get(&state.tag));
        let Some((root, cached)) = cached else { return found };
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
        for upper in cached.tables.iter().filter(|it| it.root == root) {
            for (index, &word) in self.tables[upper.table].words.iter().enumerate() {
                if !Entry(memory.value(word)).is_present() {
                    add(upper.slot * PAGES + index, Translation::FaultsInTable);
                }
            }
        }
        found
    }

    /// Returns the translations that an access of a CPU to a page may use, if the address was known
    /// at `since`.
    pub(crate) fn translations(
        &self,
        cpu: usize,
        page: usize,
        since: Moment,
        access: AccessTiming,
    ) -> BTreeSet<Translation> {
        let found = self.in_flight.iter().flat_map(|it| &it.cpus[cpu][since.0]);
        let found = found.filter(|it| it.page == page);
        let found = found.filter(|it| !it.has_executed || access == AccessTiming::MaybeEarly);
        found.map(|it| it.found).collect()
    }

    /// A barrier: discards a CPU's loads that have executed early.
    pub(crate) fn order_loads(&mut self, cpu: usize) {
        for since in self.in_flight.iter_mut().flat_map(|it| &mut it.cpus[cpu]) {
            since.retain(|it| !it.has_executed);
        }
    }

    /// Discards the translations that a CPU has found early.
    pub(crate) fn synchronise(&mut self, memory: &Memory, cpu: usize) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.cpus[cpu].iter_mut().for_each(BTreeSet::clear);
            self.note_in_flight(memory, cpu);
        }
    }

    /// Returns the current moment of a CPU's program.
    pub(crate) fn moment(&mut self, memory: &Memory, cpu: usize) -> Moment {
        let Some(in_flight) = &mut self.in_flight else { return Moment::BEGINNING };
        in_flight.cpus[cpu].push(EarlyTranslations::new());
        let moment = Moment(in_flight.cpus[cpu].len() - 1);
        self.note_in_flight(memory, cpu);
        moment
    }

    /// Lets an invalidation by another CPU wait for those accesses of this CPU that use an
    /// invalidated entry.
    pub(super) fn wait_for_accesses(&mut self, cpu: usize, pages: impl Fn(usize) -> bool) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.complete(cpu, pages);
        }
    }
}
