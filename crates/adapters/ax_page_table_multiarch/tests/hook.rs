//! The adapter with cursors, on two CPUs that walk their page tables.

#![expect(unsafe_code, reason = "page tables and the machine")]

#[path = "../../tests/machine.rs"]
mod machine;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use ax_memory_addr::{PhysAddr, VirtAddr};
use ax_page_table_entry::x86_64::X64PTE;
use ax_page_table_multiarch::x86_64::X64PagingMetaData;
use ax_page_table_multiarch::{MappingFlags, PageSize, PageTable64, PagingHandler};
use machine::{ENGINE, TwoCpus, interrupts, pin};
use shootdown::{Extent, HookedPages, Machine as _, PageHook, Root, Space, Tag};
use shootdown_ax_page_table_multiarch::Coherent;

/// Frames for page tables from the heap, at their own addresses. They are not freed.
struct Frames;

#[derive(Clone)]
#[repr(align(4096))]
struct Frame(#[expect(dead_code, reason = "accessed by address")] [u8; 4096]);

impl PagingHandler for Frames {
    fn alloc_frames(count: usize, _: usize) -> Option<PhysAddr> {
        let frames = vec![Frame([0; 4096]); count].leak();
        Some(PhysAddr::from(frames.as_mut_ptr() as usize))
    }
    fn dealloc_frames(_: PhysAddr, _: usize) {}
    fn phys_to_virt(address: PhysAddr) -> VirtAddr {
        VirtAddr::from(address.as_usize())
    }
}

thread_local! {
    static SPACE: Cell<Option<&'static Space<TwoCpus>>> = const { Cell::new(None) };
    static PAGES: HookedPages = const { HookedPages::new() };
}

/// What the crate's own hook of x86-64 does: `INVLPG`.
struct Local;

impl PageHook for Local {
    fn changed(extent: Extent) {
        ENGINE.machine().invalidate(Tag(0), extent);
    }
}

/// A hook that flushes immediately.
struct Immediate;

impl PageHook for Immediate {
    fn changed(extent: Extent) {
        pin().flush(space(), extent).wait();
    }
}

/// A hook that collects. Outside of an operation, it does nothing.
struct Collecting;

static IS_COLLECTED: AtomicBool = AtomicBool::new(false);

impl PageHook for Collecting {
    fn changed(extent: Extent) {
        IS_COLLECTED.store(PAGES.with(|pages| pages.add(extent)), SeqCst);
    }
}

fn space() -> &'static Space<TwoCpus> {
    SPACE.get().expect("the test has booted")
}

type Table<H> = PageTable64<Coherent<X64PagingMetaData, H>, X64PTE, Frames>;

const START: usize = 0x10_0000_0000;

/// Number of the first small page of a page of 2 MiB.
const LARGE: usize = 512;

/// The pages that are used: three small ones, and the last part of a large one.
const USED: [usize; 4] = [0, 1, 2, LARGE + 511];

fn page(number: usize) -> VirtAddr {
    VirtAddr::from(START + (number << 12))
}

fn frame(number: usize) -> PhysAddr {
    PhysAddr::from(0x5_0000_0000 + (number << 12))
}

/// Returns the page numbers that accesses of each CPU find mapped.
fn mapped<H: PageHook>(table: &Table<H>) -> [Vec<usize>; 2] {
    [0, 1].map(|cpu| {
        let is_mapped = |&number: &usize| {
            let address = page(number).as_usize();
            let found = ENGINE.machine().access(cpu, address as u64, || {
                let (found, _, size) = table.query(page(number)).ok()?;
                let offset = address % size as usize;
                let first = found.as_usize() - offset;
                Some(((address - offset) as u64, size as u64, first as u64))
            });
            assert!(found.is_none_or(|found| found == frame(number).as_usize() as u64));
            found.is_some()
        };
        USED.into_iter().filter(is_mapped).collect()
    })
}

/// Maps pages, has both CPUs use them, and unmaps them with one cursor. Returns the table, and the
/// number of interrupts.
fn unmap_all<H: PageHook>() -> (Table<H>, u64) {
    const FLAGS: MappingFlags = MappingFlags::READ.union(MappingFlags::WRITE);
    let pages = [0, 1, 2].map(|number| (number, PageSize::Size4K));
    let pages = pages.into_iter().chain([(LARGE, PageSize::Size2M)]);
    let mut table = Table::<H>::try_new().expect("there is a frame");
    for (number, size) in pages.clone() {
        table.cursor().map(page(number), frame(number), size, FLAGS).expect("it is mapped");
    }
    assert_eq!(mapped(&table), [USED, USED]);
    let before = interrupts();
    let mut cursor = table.cursor();
    for (number, _) in pages {
        cursor.unmap(page(number)).expect("it is mapped");
    }
    assert_eq!(mapped(&cursor), [USED, USED], "the TLBs evict nothing");
    drop(cursor);
    (table, interrupts() - before)
}

/// One test, because the machine and its engine are statics.
#[test]
fn cursors_flush_on_both_cpus() {
    // SAFETY: the first call, on the only thread.
    unsafe { ENGINE.init(TwoCpus::new()) };
    SPACE.set(Some(Box::leak(Box::new(ENGINE.space(Root(0x1000))))));
    TwoCpus::boot(space());

    // Without this crate, CPU 1 uses pages that are unmapped.
    let (table, interrupts_sent) = unmap_all::<Local>();
    assert_eq!((mapped(&table), interrupts_sent), ([vec![], USED.to_vec()], 0));
    pin().flush(space(), Extent::whole()).wait();

    // One interrupt for each entry.
    let (table, interrupts_sent) = unmap_all::<Immediate>();
    assert_eq!((mapped(&table), interrupts_sent), ([vec![], vec![]], 4));

    // One interrupt for all.
    let ((table, _), pages) = PAGES.with(|pages| pages.collect(unmap_all::<Collecting>));
    assert!(IS_COLLECTED.load(SeqCst));
    assert_eq!(mapped(&table), [USED, USED]);
    let before = interrupts();
    pin().flush_gathered(space(), &pages).wait();
    assert_eq!((mapped(&table), interrupts() - before), ([vec![], vec![]], 1));
}
