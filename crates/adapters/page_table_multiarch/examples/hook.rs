//! A test of the hook, as a static library, because `page_table_multiarch` calls its hook only
//! where there is no operating system. `hook.c` is the program of the host that runs it.

#![cfg_attr(target_os = "none", no_std)]
#![cfg(target_os = "none")]
#![expect(unsafe_code, reason = "page tables and the machine")]

#[path = "../../tests/machine.rs"]
mod machine;

use core::cell::UnsafeCell;
use core::fmt::{self, Write as _};
use core::panic::PanicInfo;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::SeqCst;

use machine::{ENGINE, TwoCpus, pin};
use memory_addr::{PhysAddr, VirtAddr};
use page_table_entry::x86_64::X64PTE;
use page_table_multiarch::x86_64::X64PagingMetaData;
use page_table_multiarch::{MappingFlags, PageSize, PageTable64, PagingHandler};
use shootdown::{CpuId, Extent, ExtentSet, Root, Space};
use shootdown_page_table_multiarch::{Coherent, Hook};

/// Frames for page tables, at their own addresses. They are not freed.
struct Frames;

const FRAMES: usize = 16;

#[derive(Clone, Copy)]
#[repr(align(4096))]
struct Frame(#[expect(dead_code, reason = "accessed by address")] [u8; 4096]);

static POOL: Global<[Frame; FRAMES]> = Global(UnsafeCell::new([Frame([0; 4096]); FRAMES]));
static USED: AtomicUsize = AtomicUsize::new(0);

impl PagingHandler for Frames {
    fn alloc_frames(count: usize, _: usize) -> Option<PhysAddr> {
        let first = USED.fetch_add(count, SeqCst);
        (first + count <= FRAMES).then(|| PhysAddr::from(POOL.0.get() as usize + (first << 12)))
    }
    fn dealloc_frames(_: PhysAddr, _: usize) {}
    fn phys_to_virt(address: PhysAddr) -> VirtAddr {
        VirtAddr::from(address.as_usize())
    }
}

/// A hook that flushes immediately.
struct Immediate;

impl Hook for Immediate {
    fn changed(extent: Extent) {
        pin().flush(space(), extent).wait();
    }
}

/// A hook that collects. One thread accesses the set.
struct Collecting;

/// A value of a static, which one thread accesses.
struct Global<T>(UnsafeCell<T>);

// SAFETY: there is one thread.
unsafe impl<T> Sync for Global<T> {}

static COLLECTED: Global<ExtentSet> = Global(UnsafeCell::new(ExtentSet::new()));

impl Hook for Collecting {
    fn changed(extent: Extent) {
        // SAFETY: there is one thread, and no other reference.
        unsafe { (*COLLECTED.0.get()).add(extent) };
    }
}

static SPACE: Global<Space<TwoCpus>> = Global(UnsafeCell::new(Space::vacant()));

fn space() -> &'static Space<TwoCpus> {
    // SAFETY: `run` writes the space before the first call.
    unsafe { &*SPACE.0.get() }
}

type Table<H> = PageTable64<Coherent<X64PagingMetaData, H>, X64PTE, Frames>;

const START: usize = 0x10_0000_0000;

fn page(number: usize) -> VirtAddr {
    VirtAddr::from(START + (number << 12))
}

fn frame(number: usize) -> PhysAddr {
    PhysAddr::from(0x5_0000_0000 + (number << 12))
}

/// The physical addresses that accesses of both CPUs find.
fn access<H: Hook>(table: &Table<H>, page: VirtAddr) -> [Option<u64>; 2] {
    [0, 1].map(|cpu| {
        ENGINE.machine().access(cpu, page.as_usize() as u64, || {
            let (found, _, size) = table.query(page).ok()?;
            let offset = page.as_usize() % size as usize;
            let first = page.as_usize() - offset;
            Some((first as u64, size as u64, (found.as_usize() - offset) as u64))
        })
    })
}

/// Maps pages and a large one, has both CPUs use them, and unmaps them by one cursor. `flush` is
/// called after the cursor. Returns the number of interrupts.
fn unmap_all<H: Hook>(flush: impl Fn()) -> u64 {
    const FLAGS: MappingFlags = MappingFlags::READ.union(MappingFlags::WRITE);
    const PAGES: usize = 3;
    const LARGE: usize = 512;
    let mut table = Table::<H>::try_new().expect("there is a frame");
    for number in 0..PAGES {
        let to = frame(number);
        table.cursor().map(page(number), to, PageSize::Size4K, FLAGS).expect("it is mapped");
    }
    table.cursor().map(page(LARGE), frame(LARGE), PageSize::Size2M, FLAGS).expect("it is mapped");
    flush();
    let interrupts = || ENGINE.cpu(CpuId(0)).stats().interrupts_sent;
    let before = interrupts();
    let used = [0, 1, 2, LARGE + 511];
    for number in used {
        let to = Some(frame(number).as_usize() as u64);
        assert_eq!(access(&table, page(number)), [to; 2]);
    }
    let mut cursor = table.cursor();
    for number in [0, 1, 2, LARGE] {
        cursor.unmap(page(number)).expect("it is mapped");
    }
    // Before the flush, the translations are stale.
    for number in used {
        assert!(access(&cursor, page(number)).iter().all(Option::is_some));
    }
    drop(cursor);
    flush();
    for number in used {
        assert_eq!(access(&table, page(number)), [None; 2]);
    }
    interrupts() - before
}

/// The test. Called once.
#[unsafe(no_mangle)]
extern "C" fn run() {
    // SAFETY: the first call, on the only thread. The static is not used yet.
    unsafe {
        ENGINE.init(TwoCpus::new());
        SPACE.0.get().write(ENGINE.space(Root(0x1000)));
    }
    TwoCpus::boot(space());
    // One interrupt for each entry, and one for all.
    assert_eq!(unmap_all::<Immediate>(|| {}), 4);
    let interrupts = unmap_all::<Collecting>(|| {
        // SAFETY: there is one thread, and no other reference.
        let extents = unsafe { core::mem::take(&mut *COLLECTED.0.get()) };
        pin().flush_gathered(space(), &extents).wait();
    });
    assert_eq!(interrupts, 1);
}

unsafe extern "C" {
    safe fn putchar(byte: i32) -> i32;
    safe fn abort() -> !;
}

struct Output;

impl fmt::Write for Output {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(|byte| _ = putchar(i32::from(byte)));
        Ok(())
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let _ = writeln!(Output, "{info}");
    abort()
}
