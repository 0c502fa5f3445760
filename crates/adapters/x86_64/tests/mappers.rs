//! The adapter with the mappers, on two CPUs that walk their page tables.

#![expect(unsafe_code, reason = "page tables and the machine")]

#[path = "../../tests/machine.rs"]
mod machine;

use std::sync::atomic::Ordering::SeqCst;

use machine::{ENGINE, TwoCpus, interrupts, pin};
use shootdown::{ExtentSet, Gather, Machine as _, Quarantine, Root, Space, Tag};
use shootdown_x86_64::{DeferredTables, FlushAllCpus};
use x86_64::structures::paging::mapper::{CleanUp, MapperFlush, TranslateResult};
use x86_64::structures::paging::{
    FrameAllocator, Mapper, OffsetPageTable, Page, PageTable, PageTableFlags, PhysFrame, Size2MiB,
    Size4KiB, Translate,
};
use x86_64::{PhysAddr, VirtAddr};

const WRITABLE: PageTableFlags = PageTableFlags::PRESENT.union(PageTableFlags::WRITABLE);

/// Frames for page tables from the heap, at their own addresses.
struct Frames;

// SAFETY: each frame is a new allocation of a page.
unsafe impl FrameAllocator<Size4KiB> for Frames {
    fn allocate_frame(&mut self) -> Option<PhysFrame> {
        let table = Box::leak(Box::new(PageTable::new()));
        PhysFrame::from_start_address(PhysAddr::new(std::ptr::from_mut(table) as u64)).ok()
    }
}

fn page(number: u64) -> Page {
    Page::from_start_address(VirtAddr::new(0x10_0000_0000 + (number << 12))).expect("aligned")
}

fn frame(number: u64) -> PhysFrame {
    PhysFrame::from_start_address(PhysAddr::new(0x5_0000_0000 + (number << 12))).expect("aligned")
}

/// The page table of a space that both CPUs use.
struct Bench {
    mapper: OffsetPageTable<'static>,
    space: &'static Space<TwoCpus>,
    quarantine: Quarantine<Vec<PhysFrame>>,
}

impl Bench {
    fn new() -> Self {
        let root = Box::leak(Box::new(PageTable::new()));
        let address = std::ptr::from_mut(root) as u64;
        // SAFETY: the first call, on the only thread. Frames are at their own addresses.
        let mapper = unsafe {
            ENGINE.init(TwoCpus::new());
            OffsetPageTable::new(root, VirtAddr::new(0))
        };
        let space = Box::leak(Box::new(ENGINE.space(Root(address))));
        TwoCpus::boot(space);
        Self { mapper, space, quarantine: Quarantine::new(8) }
    }

    /// The physical addresses that accesses of both CPUs find.
    fn access(&self, page: Page) -> [Option<u64>; 2] {
        let address = page.start_address();
        let walk = || match self.mapper.translate(address) {
            TranslateResult::Mapped { frame, offset, .. } => {
                Some((address.as_u64() - offset, frame.size(), frame.start_address().as_u64()))
            }
            _ => None,
        };
        [0, 1].map(|cpu| ENGINE.machine().access(cpu, address.as_u64(), walk))
    }

    /// Maps a page to the frame with its number, and has both CPUs use it.
    fn map(&mut self, number: u64) {
        // SAFETY: no program uses these addresses.
        let flush =
            unsafe { self.mapper.map_to(page(number), frame(number), WRITABLE, &mut Frames) };
        flush.expect("it is mapped").ignore();
        assert!(self.is_used(number));
    }

    /// Returns `true` if both CPUs find the frame with the number of the page.
    fn is_used(&self, number: u64) -> bool {
        self.access(page(number)) == [Some(frame(number).start_address().as_u64()); 2]
    }

    /// Unmaps a page. Both CPUs can still use it.
    fn unmap(&mut self, number: u64) -> (PhysFrame, MapperFlush<Size4KiB>) {
        let unmapped = self.mapper.unmap(page(number)).expect("it is mapped");
        assert!(self.is_used(number), "the TLBs evict nothing");
        unmapped
    }

    fn one_page(&mut self) {
        self.map(0);
        let (freed, flush) = self.unmap(0);
        assert_eq!(freed, frame(0));
        // `MapperFlush::flush`, which this crate replaces, executes `INVLPG`.
        ENGINE.machine().invalidate(Tag(0), flush.extent());
        assert_eq!(self.access(page(0)), [None, Some(freed.start_address().as_u64())]);
        flush.flush_space(&pin(), self.space).wait();
        assert_eq!(self.access(page(0)), [None; 2]);
    }

    fn several_pages_with_one_flush(&mut self) {
        let mut gather = Gather::<Vec<PhysFrame>>::new();
        for number in 1..4 {
            self.map(number);
            let (freed, flush) = self.unmap(number);
            flush.gather_page(&mut gather, freed);
        }
        let before = interrupts();
        assert_eq!(self.send(gather), [frame(1), frame(2), frame(3)]);
        assert!((1..4).all(|number| self.access(page(number)) == [None; 2]));
        assert_eq!(interrupts() - before, 1);
    }

    /// Flushes, and returns what can be freed.
    fn send(&mut self, gather: Gather<Vec<PhysFrame>>) -> Vec<PhysFrame> {
        let mut freed = Vec::new();
        let flushed = gather.send(&pin(), self.space).wait();
        flushed.release(&mut self.quarantine, |frames| freed.extend(frames)).expect("room");
        freed
    }

    /// CPUs use the last part of the page.
    fn large_page(&mut self) {
        let large = Page::<Size2MiB>::containing_address(page(512).start_address());
        let to = PhysFrame::<Size2MiB>::containing_address(PhysAddr::new(0x6_0000_0000));
        // SAFETY: no program uses these addresses.
        let flush = unsafe {
            let flags = WRITABLE | PageTableFlags::HUGE_PAGE;
            self.mapper.map_to(large, to, flags, &mut Frames)
        };
        flush.expect("it is mapped").ignore();
        assert_eq!(self.access(page(1023)), [Some(0x6_001f_f000); 2]);
        let mut extents = ExtentSet::new();
        self.mapper.unmap(large).expect("it is mapped").1.gather(&mut extents);
        pin().flush_gathered(self.space, &extents).wait();
        assert_eq!(self.access(page(1023)), [None; 2]);
    }

    fn upper_level_drops_everything(&mut self) {
        self.map(5);
        let before = full_flushes();
        // SAFETY: no program uses these addresses.
        let flush = unsafe { self.mapper.set_flags_p4_entry(page(5), WRITABLE) };
        flush.expect("there is an entry").flush_space(&pin(), self.space).wait();
        assert_eq!(full_flushes() - before, 2);
        assert!(self.is_used(5));
    }

    /// Page tables are kept until no CPU can walk them.
    fn page_tables(&mut self) {
        self.unmap(5).1.flush_space(&pin(), self.space).wait();
        let mut gather = Gather::new();
        let range = Page::range_inclusive(page(0), page(1023));
        // SAFETY: the tables are those of this mapper alone, and stay allocated.
        unsafe {
            self.mapper.clean_up_addr_range(range, &mut DeferredTables::new(&mut gather, range));
        }
        assert_eq!(gather.table_count(), 3);
        assert!(gather.extents().free_tables());
        let before = full_flushes();
        assert_eq!((self.send(gather).len(), full_flushes() - before), (3, 2));
    }

    fn kernel_page(&mut self) {
        self.map(6);
        self.unmap(6).1.flush_kernel(&pin()).wait();
        assert_eq!(self.access(page(6)), [None; 2]);
    }
}

/// Number of times that a CPU dropped everything under a tag.
fn full_flushes() -> u64 {
    ENGINE.machine().full_flushes.load(SeqCst)
}

/// One test, because the machine and its engine are statics.
#[test]
fn mappers_flush_on_both_cpus() {
    let mut bench = Bench::new();
    bench.one_page();
    bench.several_pages_with_one_flush();
    bench.large_page();
    bench.upper_level_drops_everything();
    bench.page_tables();
    bench.kernel_page();
}
