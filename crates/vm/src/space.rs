//! An address space, and what all of them have in common.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::{AddAssign, Range};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use lock_api::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use shootdown::{Quarantine, Root};

use crate::area::{Area, Protection};
use crate::areas::Areas;
use crate::coherence::{Change, Coherence, Later};
use crate::deferred::in_flight::Flights;
use crate::deferred::tables::{HELD_TABLES_MAX, HeldTables, QUARANTINED_MAX, Quarantined};
use crate::deferred::unmaps::{Parked, ParkedRanges};
use crate::format::Format;
use crate::format::x86_64::X86_64;
use crate::ops::zero_page::FirstReads;
use crate::platform::{Frame, FrameUse, OutOfMemory, Platform};
use crate::reclaim::rmap::Pages;
use crate::table::PageTables;

/// What all spaces of a system have in common: the platform, the way to keep TLBs coherent, and
/// the page of zeros.
///
/// Platform and coherence are handles: something small that can be cloned, such as a reference, an
/// `Rc`, or a unit type for a kernel that has but one of them.
pub struct Vm<P: Platform, C: Coherence, F: Format = X86_64> {
    pub(crate) platform: P,
    pub(crate) coherence: C,
    pub(crate) zero_page: Frame,
    pub(crate) held: Arc<HeldTables<P>>,
    pub(crate) held_tables_max: u64,
    /// In bytes; less than two pages is none.
    pub(crate) fault_around_bytes: u64,
    /// Less than two is none.
    pub(crate) read_ahead_pages: u64,
    /// Of every page that is mapped, if memory is reclaimed.
    pub(crate) pages: Option<Arc<Pages<P, C, F>>>,
    pub(crate) parked: Arc<Parked<P, C, F>>,
}

impl<P: Platform, C: Coherence, F: Format> Vm<P, C, F> {
    /// Takes the one frame that all pages share which were read and never written. It is never
    /// given back, and its users are not counted: a count would be the busiest word of the system.
    ///
    /// # Errors
    ///
    /// If there is no frame.
    pub fn new(platform: P, coherence: C) -> Result<Self, OutOfMemory> {
        let zero_page = platform.allocate(FrameUse::Page)?;
        platform.clear_page(zero_page);
        Ok(Self {
            platform,
            coherence,
            zero_page,
            held: Arc::new(HeldTables::new()),
            held_tables_max: HELD_TABLES_MAX,
            fault_around_bytes: 0,
            read_ahead_pages: 0,
            pages: None,
            parked: Arc::new(Parked::new()),
        })
    }

    /// Keeps a record of every page that is mapped, so that memory can be
    /// [reclaimed](Self::reclaim), and pages [migrated](AddressSpace::migrate). To be said before
    /// the first space is made.
    #[must_use]
    pub fn with_reclaim(self) -> Self {
        let pages = Some(Arc::new(Pages::new(self.platform.node_count())));
        Self { pages, ..self }
    }

    /// Has a read fault in an area of a file map its neighbours, too, as far as they are in memory:
    /// those in the same window of so many bytes, rounded down to a power of two. (Linux:
    /// `fault_around_bytes`, which is 64 KiB.) With less than two pages, as at first, a fault maps
    /// one page.
    #[must_use]
    pub fn with_fault_around(self, window_bytes: u64) -> Self {
        let fault_around_bytes = window_bytes.checked_ilog2().map_or(0, |log| 1 << log);
        Self { fault_around_bytes, ..self }
    }

    /// Has a fault on a page of a stored file that is not in memory read in its neighbours, too:
    /// the window of so many pages, rounded down to a power of two. (Linux: `read_ahead_kb`, which
    /// is 128 KiB.) With less than two, as at first, a fault reads one page.
    #[must_use]
    pub fn with_read_ahead(self, window_pages: u64) -> Self {
        let read_ahead_pages = window_pages.checked_ilog2().map_or(0, |log| 1 << log);
        Self { read_ahead_pages, ..self }
    }

    /// Has lazy CPUs interrupted when more page tables than that are held back because they could
    /// walk them. A CPU holds those of one dead space at most.
    #[must_use]
    pub fn with_held_tables_max(self, held_tables_max: u64) -> Self {
        Self { held_tables_max, ..self }
    }

    /// The platform.
    pub const fn platform(&self) -> &P {
        &self.platform
    }

    /// The way to keep TLBs coherent.
    pub const fn coherence(&self) -> &C {
        &self.coherence
    }

    /// A frame: a free one, or one whose page is taken from somebody, if memory is reclaimed.
    ///
    /// Not to be called with a spin lock held, nor by who reclaims.
    pub(crate) fn allocate(&self, purpose: FrameUse) -> Result<Frame, OutOfMemory> {
        self.platform.allocate(purpose).or_else(|error| {
            if self.get_over_parked() > 0
                && let Ok(frame) = self.platform.allocate(purpose)
            {
                return Ok(frame);
            }
            self.allocate_reclaimed(purpose, error)
        })
    }

    /// The page of zeros.
    pub const fn zero_page(&self) -> Frame {
        self.zero_page
    }

    /// Counts one more entry that maps a page.
    pub(crate) fn share(&self, page: Frame) {
        if page != self.zero_page {
            self.platform.share(page);
        }
    }

    /// Counts one entry less that maps a page.
    pub(crate) fn release(&self, page: Frame) {
        if page != self.zero_page {
            self.platform.release(page);
        }
    }
}

/// An address space: areas, the page tables that they are mapped by, and the lock between them.
/// (Linux: `mm_struct`.)
///
/// One lock guards the areas. Who changes areas takes it for writing; who changes page tables
/// under areas that stay, for reading, and those run side by side. How far
/// [`unmap`](Self::unmap) and others hold it while they wait for other CPUs is the design's
/// choice: [`Coherence::UNMAP_LOCK`].
///
/// A space is taken down by [`exit`](Self::exit), and can be dropped after that. Dropped without
/// it, its pages and tables are lost; and that it must not be when a CPU has it loaded: see
/// [`Coherence::switch`].
pub struct AddressSpace<P: Platform, C: Coherence, F: Format = X86_64> {
    pub(crate) vm: Vm<P, C, F>,
    pub(crate) mappings: Arc<Mappings<P, C, F>>,
    /// How many entries have been claimed by faults that copy a page.
    pub(crate) claims: AtomicU64,
    pub(crate) first_reads: FirstReads,
    pub(crate) counters: Counters,
    /// Unhooked tables that CPUs may still walk, and whether there are any.
    pub(crate) quarantine: Quarantined<P>,
    pub(crate) has_quarantined: AtomicBool,
}

/// The part of a space that is reached from its pages: by who reclaims or migrates them, and knows
/// nothing else of it.
pub(crate) struct Mappings<P: Platform, C: Coherence, F> {
    pub(crate) tables: PageTables<F>,
    pub(crate) areas: RwLock<P::SleepingLock, Areas<P>>,
    pub(crate) flights: Flights,
    pub(crate) parked: ParkedRanges<P>,
    pub(crate) coherent: C::Space,
}

impl<P: Platform + Clone, C: Coherence + Clone, F: Format> AddressSpace<P, C, F> {
    /// A space with nothing in it.
    ///
    /// # Errors
    ///
    /// If there is no frame for the root of its page tables.
    pub fn new(vm: &Vm<P, C, F>) -> Result<Self, OutOfMemory> {
        let tables = PageTables::new(vm.allocate(FrameUse::Table)?);
        let mappings = Mappings {
            coherent: vm.coherence.space(tables.root()),
            areas: RwLock::new(Areas::new(vm.platform.user_addresses())),
            tables,
            flights: Flights::new(),
            parked: ParkedRanges::new(),
        };
        Ok(Self {
            mappings: Arc::new(mappings),
            claims: AtomicU64::new(0),
            first_reads: FirstReads::default(),
            counters: Counters::default(),
            quarantine: Mutex::new(Quarantine::new(QUARANTINED_MAX)),
            has_quarantined: AtomicBool::new(false),
            vm: vm.clone(),
        })
    }
}

impl<P: Platform, C: Coherence, F: Format> AddressSpace<P, C, F> {
    /// The root of the page tables.
    pub fn root(&self) -> Root {
        self.mappings.tables.root()
    }

    /// What the coherence keeps for this space: what a scheduler [switches](Coherence::switch) to.
    pub fn coherent(&self) -> &C::Space {
        &self.mappings.coherent
    }

    /// What all spaces have in common.
    pub const fn vm(&self) -> &Vm<P, C, F> {
        &self.vm
    }

    /// The areas as they are now, in order of address.
    pub fn areas(&self) -> Vec<Area<P>> {
        self.mappings.areas.read().iter().cloned().collect()
    }

    /// Whether no CPU may have an old translation for an address in `range` because a flush of it
    /// is still under way.
    pub fn is_settled(&self, range: &Range<u64>) -> bool {
        self.mappings.unsettled(range).is_none()
    }

    /// Whether there is an area at `address`.
    pub fn is_mapped(&self, address: u64) -> bool {
        self.mappings.areas.read().find(address).is_some()
    }

    /// What the MMU would let user code do at `address`, as the page tables are now; `None` if it
    /// would find no page there.
    pub fn translation(&self, address: u64) -> Option<Protection> {
        // Only below an area do tables stay while we walk them.
        let areas = self.mappings.areas.read();
        areas.find(address)?;
        let leaf = self.mappings.tables.leaf(&self.vm.platform, address)?;
        (!leaf.protection.is_empty()).then_some(leaf.protection)
    }

    /// What operations on this space did so far.
    pub fn stats(&self) -> Stats {
        self.counters.read()
    }

    pub(crate) fn flush(&self, change: &Change) -> C::Pending {
        self.counters.flushes.fetch_add(1, Relaxed);
        self.vm.coherence.flush(&self.mappings.coherent, change)
    }

    pub(crate) fn flush_later(&self, change: &Change) -> Later<C> {
        self.counters.flushes.fetch_add(1, Relaxed);
        self.vm.coherence.flush_later(&self.mappings.coherent, change)
    }
}

impl<P: Platform, C: Coherence, F> Mappings<P, C, F> {
    /// Up to where addresses reach that overlap `range`, and for which a CPU may have an old
    /// translation.
    pub(crate) fn unsettled(&self, range: &Range<u64>) -> Option<u64> {
        self.flights.overlapping(range, None).or_else(|| self.parked.overlapping(range))
    }
}

/// The areas of a space, locked for reading.
pub(crate) type ReadGuard<'s, P> = RwLockReadGuard<'s, <P as Platform>::SleepingLock, Areas<P>>;
/// The areas of a space, locked for writing.
pub(crate) type WriteGuard<'s, P> = RwLockWriteGuard<'s, <P as Platform>::SleepingLock, Areas<P>>;

/// What operations on a space did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Flushes sent.
    pub flushes: u64,
    /// Those of them that covered all that was asked for, since another's was under way there.
    pub flushes_for_races: u64,
    /// Operations that could have needed a flush, and did not.
    pub flushes_avoided: u64,
    /// Large pages [made](AddressSpace::collapse) of small ones.
    pub collapsed: u64,
    /// Large pages split into small ones.
    pub split: u64,
    /// Pages [moved](AddressSpace::migrate) to another node.
    pub migrated: u64,
    /// Pages of files [read in](Vm::with_read_ahead) along with the one that was asked for.
    pub read_ahead: u64,
    /// Pages of files [mapped](Vm::with_fault_around) along with the one that was asked for.
    pub mapped_around: u64,
}

impl AddAssign for Stats {
    fn add_assign(&mut self, other: Self) {
        self.flushes += other.flushes;
        self.flushes_for_races += other.flushes_for_races;
        self.flushes_avoided += other.flushes_avoided;
        self.collapsed += other.collapsed;
        self.split += other.split;
        self.migrated += other.migrated;
        self.read_ahead += other.read_ahead;
        self.mapped_around += other.mapped_around;
    }
}

#[derive(Default)]
pub(crate) struct Counters {
    flushes: AtomicU64,
    races: AtomicU64,
    avoided: AtomicU64,
    pub(crate) collapsed: AtomicU64,
    pub(crate) split: AtomicU64,
    pub(crate) migrated: AtomicU64,
    pub(crate) read_ahead: AtomicU64,
    pub(crate) mapped_around: AtomicU64,
}

/// Counts so many more.
pub(crate) fn count(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Relaxed);
}

impl Counters {
    pub(crate) fn count_race(&self) {
        self.races.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_avoided(&self) {
        self.avoided.fetch_add(1, Relaxed);
    }

    fn read(&self) -> Stats {
        Stats {
            flushes: self.flushes.load(Relaxed),
            flushes_for_races: self.races.load(Relaxed),
            flushes_avoided: self.avoided.load(Relaxed),
            collapsed: self.collapsed.load(Relaxed),
            split: self.split.load(Relaxed),
            migrated: self.migrated.load(Relaxed),
            read_ahead: self.read_ahead.load(Relaxed),
            mapped_around: self.mapped_around.load(Relaxed),
        }
    }
}

// Not derived: that would ask for a format that can be cloned.
impl<P: Platform + Clone, C: Coherence + Clone, F: Format> Clone for Vm<P, C, F> {
    fn clone(&self) -> Self {
        Self {
            platform: self.platform.clone(),
            coherence: self.coherence.clone(),
            zero_page: self.zero_page,
            held: Arc::clone(&self.held),
            held_tables_max: self.held_tables_max,
            fault_around_bytes: self.fault_around_bytes,
            read_ahead_pages: self.read_ahead_pages,
            pages: self.pages.clone(),
            parked: Arc::clone(&self.parked),
        }
    }
}

impl<P: Platform, C: Coherence, F: Format> fmt::Debug for Vm<P, C, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vm").field("zero_page", &self.zero_page).finish_non_exhaustive()
    }
}

impl<P: Platform, C: Coherence, F: Format> fmt::Debug for AddressSpace<P, C, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressSpace").field("root", &self.root()).finish_non_exhaustive()
    }
}
