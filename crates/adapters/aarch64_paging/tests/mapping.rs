//! The adapter with a mapping, on two CPUs that walk its page tables.

#![expect(unsafe_code, reason = "page tables and the machine")]

#[path = "../../tests/machine.rs"]
mod machine;

use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::SeqCst;

use aarch64_paging::Mapping;
use aarch64_paging::descriptor::{Descriptor, El1Attributes, PhysicalAddress};
use aarch64_paging::paging::{Constraints, El1And0, MemoryRegion, PageTable, Translation, VaRange};
use machine::{ENGINE, TwoCpus, interrupts, pin};
use shootdown::{Extent, Gather, HookedPages, Machine as _, PageHook, Root, Space, Tag};
use shootdown_aarch64_paging::{Coherent, DeferredTables, TableHook};

/// Page tables from the heap, at their own addresses.
struct Tables;

impl Translation<El1Attributes> for Tables {
    fn allocate_table(&mut self) -> (NonNull<PageTable<El1Attributes>>, PhysicalAddress) {
        let table = NonNull::from(Box::leak(Box::new(PageTable::default())));
        (table, PhysicalAddress(table.as_ptr() as usize))
    }
    unsafe fn deallocate_table(&mut self, _: NonNull<PageTable<El1Attributes>>) {
        panic!("the adapter keeps the tables");
    }
    fn physical_to_virtual(&self, address: PhysicalAddress) -> NonNull<PageTable<El1Attributes>> {
        NonNull::new(address.0 as *mut _).expect("it is a table")
    }
}

thread_local! {
    static PAGES: HookedPages = const { HookedPages::new() };
    static FREED: RefCell<Vec<NonNull<u8>>> = const { RefCell::new(Vec::new()) };
}

/// What the crate's own regime does: `TLBI VAAE1IS`, which all CPUs execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Broadcast;

impl PageHook for Broadcast {
    fn changed(extent: Extent) {
        TwoCpus::on_both(|machine| machine.invalidate(Tag(0), extent));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Collecting;

impl PageHook for Collecting {
    fn changed(extent: Extent) {
        PAGES.with(|pages| pages.add(extent));
    }
}

impl TableHook for Collecting {
    fn freed(table: NonNull<u8>) {
        FREED.with_borrow_mut(|freed| freed.push(table));
    }
}

impl TableHook for Broadcast {
    fn freed(table: NonNull<u8>) {
        Collecting::freed(table);
    }
}

type Tested<H> = Mapping<DeferredTables<Tables, H>, Coherent<El1And0, H>>;

const START: usize = 0x10_0000_0000;
const PAGES_BYTES: usize = 3 << 12;
/// A block of 2 MiB.
const BLOCK: usize = START + (2 << 20);
/// Addresses that are used: three pages, and the last page of the block.
const USED: [usize; 4] = [START, START + 0x1000, START + 0x2000, BLOCK + 0x1f_f000];
const TO: usize = 0x5_0000_0000;

fn new<H: TableHook + Copy + std::fmt::Debug + Eq>() -> Tested<H> {
    let tables = DeferredTables::new(Tables);
    Mapping::with_asid_and_va_range(tables, 0, 1, Coherent::new(), VaRange::Lower)
}

/// Maps the pages and the block, or unmaps them.
fn change<H: TableHook + Copy + std::fmt::Debug + Eq>(
    mapping: &mut Tested<H>,
    bytes: usize,
    flags: El1Attributes,
) {
    for (start, bytes) in [(START, bytes), (BLOCK, 2 << 20)] {
        let (range, to) = (MemoryRegion::new(start, start + bytes), TO + (start - START));
        let result = mapping.map_range(&range, PhysicalAddress(to), flags, Constraints::empty());
        result.expect("the tables have room");
    }
}

/// Returns the addresses that accesses of each CPU find mapped.
fn mapped<H: TableHook + Copy + std::fmt::Debug + Eq>(mapping: &Tested<H>) -> [Vec<usize>; 2] {
    let walk = |address: usize| {
        let mut leaf = None;
        let range = MemoryRegion::new(address, address + 1);
        let mut visit = |range: &MemoryRegion, entry: &Descriptor<_>, level: usize| {
            if entry.is_valid() && !(level < 3 && entry.is_table_or_page()) {
                let bytes = 4096_usize << (9 * (3 - level));
                let first = range.start().0 & !(bytes - 1);
                leaf = Some((first as u64, bytes as u64, entry.output_address().0 as u64));
            }
            Ok(())
        };
        mapping.walk_range(&range, &mut visit).expect("the walk does not fail");
        leaf
    };
    [0, 1].map(|cpu| {
        let is_mapped = |&address: &usize| {
            let found = ENGINE.machine().access(cpu, address as u64, || walk(address));
            let to = (TO + (address - START)) as u64;
            assert!(found.is_none_or(|found| found == to), "{found:x?}");
            found.is_some()
        };
        USED.into_iter().filter(is_mapped).collect()
    })
}

const VALID: El1Attributes =
    El1Attributes::VALID.union(El1Attributes::ACCESSED).union(El1Attributes::NON_GLOBAL);
const INVALID: El1Attributes = El1Attributes::empty();

/// One test, because the machine and its engine are statics.
#[test]
fn mappings_flush_on_both_cpus() {
    // SAFETY: the first call, on the only thread.
    unsafe { ENGINE.init(TwoCpus::new()) };
    let space: &Space<_> = Box::leak(Box::new(ENGINE.space(Root(0x1000))));
    TwoCpus::boot(space);

    // Without this crate: the engine has loaded the root, and the mapping is not active.
    let mut mapping = new::<Broadcast>();
    change(&mut mapping, PAGES_BYTES, VALID);
    assert_eq!(mapped(&mapping), [USED, USED]);
    change(&mut mapping, PAGES_BYTES, INVALID);
    assert_eq!(mapped(&mapping), [USED, USED], "both CPUs use pages that are unmapped");
    pin().flush(space, Extent::whole()).wait();

    let mut mapping = new::<Collecting>();
    mapping.mark_active();
    change(&mut mapping, PAGES_BYTES, VALID);
    assert_eq!(mapped(&mapping), [USED, USED]);
    let ((), pages) =
        PAGES.with(|pages| pages.collect(|| change(&mut mapping, PAGES_BYTES, INVALID)));
    assert_eq!(mapped(&mapping), [USED, USED], "the TLBs evict nothing");
    let before = interrupts();
    pin().flush_gathered(space, &pages).wait();
    assert_eq!((mapped(&mapping), interrupts() - before), ([vec![], vec![]], 1));
    assert_eq!(FREED.take(), []);
    page_tables(&mut mapping, space);
    mapping.mark_inactive();
}

/// Unmaps all that a table maps. The table is kept, and CPUs drop the path to it.
fn page_tables(mapping: &mut Tested<Collecting>, space: &'static Space<TwoCpus>) {
    change(mapping, PAGES_BYTES, VALID);
    let ((), pages) = PAGES.with(|pages| pages.collect(|| change(mapping, 2 << 20, INVALID)));
    let mut gather = Gather::<Vec<_>>::new();
    shootdown_aarch64_paging::gather(&mut gather, &pages, FREED.take());
    assert_eq!((gather.table_count(), gather.extents().as_slice().len()), (1, 2));
    assert!(gather.extents().as_slice().iter().all(|extent| extent.frees_tables()));
    let path_flushes = || ENGINE.machine().path_flushes.load(SeqCst);
    let before = path_flushes();
    let mut tables = 0;
    let mut release = |freed: Vec<_>| tables += freed.len();
    let mut quarantine = shootdown::Quarantine::<_>::new(8);
    gather.send(&pin(), space).wait().release(&mut quarantine, &mut release).expect("room");
    assert_eq!(tables, 1);
    assert!(path_flushes() > before + 1, "both CPUs");
}
