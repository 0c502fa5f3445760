//! Processes: their spaces, and operations on their pages.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use ostd::mm::io::util::HasVmReaderWriter;
use ostd::mm::tlb::TlbFlushOp;
use ostd::mm::vm_space::VmQueriedItem;
use ostd::mm::{
    CachePolicy, Frame, FrameAllocOptions, PAGE_SIZE, PageFlags, PageProperty, UFrame, Vaddr,
    VmReader, VmSpace,
};
use ostd::task::disable_preempt;
use ostd::user::UserMode;

use crate::measurement::add_stale_reads;
use crate::user;

/// The page that all threads of a process read.
pub const SHARED: Vaddr = 0x50_0000;
/// The pages that scenarios map and unmap.
pub const WORK: Vaddr = 0x60_0000;

/// The word of a page that was mapped and not written.
pub const FRESH: u32 = 2;
/// The word of a page that a process has written.
pub const WRITTEN: u32 = 7;
/// The word of a page that belongs to another owner.
pub const POISON: u32 = 0xdead_dead;

/// Returns a page full of `word`.
pub fn page(word: u32) -> UFrame {
    let frame = FrameAllocOptions::new().alloc_frame().expect("there is memory for a page");
    let frame: UFrame = frame.into();
    fill(&frame, word);
    frame
}

pub fn fill(frame: &UFrame, word: u32) {
    let bytes = word.to_ne_bytes().repeat(PAGE_SIZE / 4);
    write(frame, &bytes);
}

fn write(frame: &UFrame, bytes: &[u8]) {
    frame.writer().write(&mut VmReader::from(bytes));
}

/// Returns a process with its code, and a page that all its threads read.
pub fn process() -> Arc<VmSpace> {
    let space = Arc::new(VmSpace::new());
    let code = page(0);
    write(&code, user::code());
    map(&space, user::CODE, code, PageFlags::RX);
    map(&space, SHARED, page(FRESH), PageFlags::RW);
    space
}

const fn pages_at(address: Vaddr, count: usize) -> Range<Vaddr> {
    address..address + count * PAGE_SIZE
}

pub fn map(space: &VmSpace, address: Vaddr, frame: UFrame, flags: PageFlags) {
    let guard = disable_preempt();
    let range = pages_at(address, 1);
    let mut cursor = space.cursor_mut(&guard, &range).expect("the address is a user address");
    cursor.map(frame, PageProperty::new_user(flags, CachePolicy::Writeback));
}

/// Unmaps pages, and waits until no CPU can use them. Returns the number that was mapped.
pub fn unmap(space: &VmSpace, address: Vaddr, count: usize) -> usize {
    let guard = disable_preempt();
    let range = pages_at(address, count);
    let mut cursor = space.cursor_mut(&guard, &range).expect("the address is a user address");
    let unmapped = cursor.unmap(count * PAGE_SIZE);
    cursor.flusher().dispatch_tlb_flush();
    cursor.flusher().sync_tlb_flush();
    unmapped
}

/// Unmaps pages, and does not wait.
pub fn unmap_without_wait(space: &VmSpace, address: Vaddr, count: usize) {
    let guard = disable_preempt();
    let range = pages_at(address, count);
    let mut cursor = space.cursor_mut(&guard, &range).expect("the address is a user address");
    cursor.unmap(count * PAGE_SIZE);
}

/// Changes what may be done with pages, and waits until no CPU can do more.
pub fn protect(space: &VmSpace, address: Vaddr, count: usize, flags: PageFlags) {
    let guard = disable_preempt();
    let range = pages_at(address, count);
    let mut cursor = space.cursor_mut(&guard, &range).expect("the address is a user address");
    for _ in 0..count {
        let left = range.end - cursor.virt_addr();
        cursor.protect_next(left, |now, _| *now = flags).expect("the pages are mapped");
    }
    cursor.flusher().issue_tlb_flush(TlbFlushOp::for_range(range.clone()));
    cursor.flusher().dispatch_tlb_flush();
    cursor.flusher().sync_tlb_flush();
}

/// Returns the page at an address, if there is one.
pub fn mapped(space: &VmSpace, address: Vaddr) -> Option<UFrame> {
    let guard = disable_preempt();
    let range = pages_at(address, 1);
    let mut cursor = space.cursor(&guard, &range).expect("the address is a user address");
    match cursor.query().expect("the cursor is in its range").1 {
        Some(VmQueriedItem::MappedRam { frame, .. }) => {
            let frame: Frame<_> = (*frame).clone();
            Some(frame)
        }
        _ => None,
    }
}

/// Maps `count` fresh pages.
pub fn map_fresh(space: &VmSpace, address: Vaddr, count: usize) {
    for page_address in pages_at(address, count).step_by(PAGE_SIZE) {
        map(space, page_address, page(FRESH), PageFlags::RW);
    }
}

/// Writes to `count` fresh pages in user mode, and counts those that are not fresh.
pub fn touch_fresh(user: &mut UserMode, address: Vaddr, count: usize) {
    let stale = user::touch(user, address, count, FRESH, WRITTEN, |address| {
        panic!("{address:#x} is not mapped");
    });
    add_stale_reads(stale);
}

/// Copies a process as `fork` does: the copy and the original share `count` pages, which neither
/// may write.
pub fn fork(space: &Arc<VmSpace>, address: Vaddr, count: usize) -> Arc<VmSpace> {
    let child = process();
    let pages: Vec<_> = pages_at(address, count).step_by(PAGE_SIZE).collect();
    for &page_address in &pages {
        let shared = mapped(space, page_address).expect("the parent has mapped its pages");
        map(&child, page_address, shared, PageFlags::R);
    }
    protect(space, address, count, PageFlags::R);
    child
}

/// Replaces a page that is shared since a fork with a copy that may be written.
pub fn copy_on_write(space: &VmSpace, address: Vaddr) {
    let address = address & !(PAGE_SIZE - 1);
    let shared = mapped(space, address).expect("the page was shared");
    let copy = page(0);
    let mut contents = [0_u8; PAGE_SIZE];
    shared.reader().read(&mut ostd::mm::VmWriter::from(&mut contents[..]));
    write(&copy, &contents);
    unmap(space, address, 1);
    map(space, address, copy, PageFlags::RW);
}
