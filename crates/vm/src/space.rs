//! An address space, and counts of its operations.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::{AddAssign, Range};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use lock_api::Mutex;
use shootdown::{Quarantine, Root};

use crate::area::{Area, Protection};
use crate::area_index::AreaIndex;
use crate::areas::Areas;
use crate::coherence::{Change, Defer, FaultLock, Flush, Later, Replication};
use crate::deferred::in_flight::InFlight;
use crate::deferred::ranges::DeferredRanges;
use crate::deferred::tables::{SPACE_QUARANTINE_MAX, SpaceQuarantine};
use crate::discarded::DiscardedPages;
use crate::file::File;
use crate::flushing::Flushing;
use crate::format::Format;
use crate::locked_areas::LockedAreas;
use crate::mappings::Mappings;
use crate::ops::zero_page::ZeroPagePredictor;
use crate::platform::{EntryAt, Frame, FrameUse, OutOfMemory, Platform};
use crate::replicas::Replicas;
use crate::sharers::Sharers;
use crate::system::{Coherent, Deferred, System};
use crate::table::{Found, PageTables, Slot};
use crate::vm::Vm;

/// An address space: its areas, its page tables, and the lock that guards the areas. (Linux:
/// `mm_struct`.)
///
/// Calls that change areas take the lock for writing. Calls that change page tables under areas
/// that stay take it for reading, and run concurrently. The coherence chooses how long
/// [`unmap`](Self::unmap) holds the lock while it waits for other CPUs, and whether faults take the
/// lock of a single area instead: see [`Policy`](crate::Policy).
///
/// Call [`exit`](Self::exit) before you drop a space. Otherwise its pages and tables are never
/// freed. Never drop a space without `exit` while a CPU has it loaded: see
/// [`Scheduling::switch`](crate::Scheduling::switch).
pub struct AddressSpace<S: System> {
    pub(crate) vm: Vm<S>,
    pub(crate) mappings: Arc<Mappings<S>>,
    pub(crate) zero_page_predictor: ZeroPagePredictor,
    pub(crate) counters: Counters,
    /// Unhooked tables that CPUs may still walk.
    pub(crate) quarantine: SpaceQuarantine<S>,
    /// `true` if the quarantine may hold tables; the lock is skipped otherwise.
    pub(crate) has_quarantined: AtomicBool,
}

impl<S: System> AddressSpace<S> {
    /// Creates an empty space.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] if no frame is left for the root of its page tables.
    pub fn new(vm: &Vm<S>) -> Result<Self, OutOfMemory> {
        let tables = PageTables::new(vm.allocate(FrameUse::Table)?);
        let has_index = vm.policy.fault_lock == FaultLock::Area;
        let index = has_index.then(|| Arc::new(AreaIndex::new()));
        let mappings = Mappings {
            coherent: vm.coherence.space(tables.root()),
            replicas: Replicas::new(vm.policy.replication),
            areas: LockedAreas::new(Areas::new(vm.platform.user_addresses(), index.clone())),
            index,
            tables,
            in_flight: InFlight::new(),
            deferred: DeferredRanges::new(),
            discarded: DiscardedPages::new(vm.policy.discards),
            claims: AtomicU64::new(0),
        };
        Ok(Self {
            mappings: Arc::new(mappings),
            zero_page_predictor: ZeroPagePredictor::default(),
            counters: Counters::default(),
            quarantine: Mutex::new(Quarantine::new(SPACE_QUARANTINE_MAX)),
            has_quarantined: AtomicBool::new(false),
            vm: vm.clone(),
        })
    }

    /// The root of the page tables.
    pub fn root(&self) -> Root {
        self.mappings.tables.root()
    }

    /// The coherence's record of this space, for [`Scheduling::switch`](crate::Scheduling::switch).
    pub fn coherent(&self) -> &Coherent<S> {
        &self.mappings.coherent
    }

    /// The system that the space belongs to.
    pub const fn vm(&self) -> &Vm<S> {
        &self.vm
    }

    /// A copy of the areas, in order of address.
    pub fn areas(&self) -> Vec<Area<S::Platform>> {
        self.mappings.areas.read().iter().cloned().collect()
    }

    /// Returns `true` if no flush of an address in `range` is in flight or deferred.
    pub fn is_flushed(&self, range: &Range<u64>) -> bool {
        self.mappings.unflushed(range, None).is_none()
    }

    /// Returns `true` if there is an area at `address`.
    pub fn is_mapped(&self, address: u64) -> bool {
        self.mappings.areas.read().find(address).is_some()
    }

    /// The accesses that the page tables currently allow user code at `address`; `None` if they
    /// allow none.
    pub fn translation(&self, address: u64) -> Option<Protection> {
        // Tables stay during the walk only where an area is.
        let areas = self.mappings.areas.read();
        areas.find(address)?;
        let leaf = self.mappings.tables.leaf(&self.vm.platform, address)?;
        (!leaf.protection.is_empty()).then_some(leaf.protection)
    }

    /// Counts of what operations on this space did.
    pub fn stats(&self) -> Stats {
        self.counters.read()
    }

    pub(crate) fn flush(&self, change: &Change, unlinked: Sharers) -> Flushing<S> {
        self.counters.flushes.fetch_add(1, Relaxed);
        let Vm { coherence, platform, policy, .. } = &self.vm;
        if policy.replication == Replication::Never {
            return Flushing::new(coherence.flush(&self.mappings.coherent, change));
        }
        let flushing = self.mappings.flush(coherence, platform, change, unlinked);
        self.make_replica();
        flushing
    }

    pub(crate) fn flush_later(
        &self,
        change: &Change,
        unlinked: Sharers,
    ) -> Later<Flushing<S>, Deferred<S>> {
        if self.vm.policy.replication != Replication::Never {
            return Later::Sent(self.flush(change, unlinked));
        }
        self.counters.flushes.fetch_add(1, Relaxed);
        match self.vm.coherence.flush_later(&self.mappings.coherent, change) {
            Later::Sent(pending) => Later::Sent(Flushing::new(pending)),
            Later::Deferred(deferred) => Later::Deferred(deferred),
        }
    }

    /// The entries for `range` that are not empty. The caller writes the record of each page.
    pub(crate) fn entries_with_records(
        &self,
        range: Range<u64>,
    ) -> impl Iterator<Item = Found> + use<'_, S> {
        let entries = self.mappings.tables.entries(&self.vm.platform, range);
        entries.with_records(self.vm.policy.page_records, self.vm.zero_page)
    }

    /// Accounts for a change of the number of mapped pages.
    pub(crate) fn count_resident(&self, change: isize) {
        self.vm.platform.count_resident(self.mappings.tables.root_frame(), change);
    }

    /// Records that a page is about to be mapped at `address`. `file` is its file and number there.
    pub(crate) fn add_mapping(
        &self,
        page: Frame,
        file: Option<(&Arc<File<S::Platform>>, u64)>,
        address: u64,
    ) {
        if let Some(rmap) = self.vm.rmap_of(page) {
            rmap.add_mapping(page, file, &self.mappings, address, self.vm.platform.node_of(page));
        }
    }

    /// Records that a page is about to be mapped at the same address in a copy of this space, and
    /// counts one more user. Does neither, and returns `false`, if reclaim has just unmapped the
    /// page.
    pub(crate) fn add_inherited(&self, page: Frame, child: &Self, address: u64) -> bool {
        let share = || self.vm.share(page);
        if let Some(rmap) = self.vm.rmap_of(page) {
            return rmap.add_inherited(page, [&self.mappings, &child.mappings], address, share);
        }
        share();
        true
    }

    /// Removes the record of a mapping whose entry was cleared, or was not written after all.
    /// Returns `false` if reclaim has removed the mapping first, and has then also cleared the
    /// entry.
    pub(crate) fn remove_mapping(&self, page: Frame, address: u64) -> bool {
        self.vm.rmap_of(page).is_none_or(|rmap| rmap.remove_mapping(page, &self.mappings, address))
    }
}

/// The table of level 0 in which an entry was last made. The next entry is probably in the same
/// table.
#[derive(Default)]
pub(crate) struct LeafTableCache {
    number_and_table: Option<(u64, Frame)>,
}

impl LeafTableCache {
    /// Does the same as [`PageTables::make_at`] at level 0. All calls must be for the same
    /// `tables`, and no large leaf may be at `address`.
    pub(crate) fn make<S: System>(
        &mut self,
        tables: &PageTables<S::Format>,
        vm: &Vm<S>,
        address: u64,
    ) -> Result<EntryAt, OutOfMemory> {
        let number = address / S::Format::span(1);
        let table = match self.number_and_table {
            Some((last, table)) if last == number => table,
            _ => {
                let Slot { at, level } = vm.make_entry(tables, address)?;
                debug_assert_eq!(level, 0, "a large leaf is in the way");
                at.table
            }
        };
        self.number_and_table = Some((number, table));
        Ok(EntryAt { table, index: S::Format::index(address, 0) })
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident)*) => {
        /// Counts of what operations on a space did.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl AddAssign for Stats {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }

        #[derive(Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            fn read(&self) -> Stats {
                Stats { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Flushes sent.
    flushes
    /// Flushes that covered the whole requested range, because another call's flush of it was not
    /// complete.
    flushes_for_races
    /// Operations that might have needed a flush, and did not.
    flushes_avoided
    /// Pages that a read was the first to access, and for which a write was predicted: each got a
    /// page of its own instead of the shared page of zeros.
    predicted
    /// Writes to a page that was read first, and had the shared page of zeros.
    written_after_read
    /// Pages of `predicted` that were not written by the end of their series of 16.
    predicted_in_vain
    /// Large pages [made](AddressSpace::collapse) from small ones.
    collapsed
    /// Large pages split into small ones.
    split
    /// Folios of files [mapped](AddressSpace::use_folios) by one entry.
    folios_mapped
    /// Entries of folios removed because an operation concerned a part of the folio.
    folios_split
    /// Pages [moved](AddressSpace::migrate) to another node.
    migrated
    /// Pages of files [read in](Vm::with_read_ahead) in addition to the page of the fault.
    read_ahead
    /// Replicas made, each with upper page tables of one CPU's own.
    replicas
    /// Page tables allocated for replicas: roots and upper tables.
    replica_tables
    /// Links made from replicas to page tables of the last level.
    linked
    /// Faults for which nothing had to be done but to make such a link.
    link_faults
    /// Pages of files [mapped](Vm::with_fault_around) in addition to the page of the fault.
    mapped_around
}

/// Adds `more` to a counter.
#[inline]
pub(crate) fn count(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Relaxed);
}

impl<S: System> fmt::Debug for AddressSpace<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressSpace").field("root", &self.root()).finish_non_exhaustive()
    }
}
