//! The memory manager's platform: frames, page-table entries that the MMU also writes, and locks.

use core::sync::atomic::Ordering;
use shootdown_vm::{EntryAt, FileId, Frame, FrameUse, OutOfMemory, Platform};

use crate::kernel::arch::{Arch, Architecture};
use crate::kernel::contents::word_of_file;
use crate::kernel::counts::{self, CPUS_MAX};
use crate::kernel::load::DiscardMode;
use crate::kernel::machine::{discards, full_barrier};
use crate::kernel::memory::{NODES, frames, page};
use crate::kernel::scheduler;
use crate::kernel::scheduler::SleepingLock;
use crate::kernel::sync::{SpinLock, SpinRwLock};

/// The memory manager's platform on this kernel.
#[derive(Clone, Copy)]
pub(crate) struct KernelPlatform;

/// The file whose only page is the code of user threads.
pub(crate) const USER_CODE: FileId = FileId(u64::MAX);

/// Time that a thread sleeps before it tries again to allocate a frame.
const SHORTAGE_PAUSE_NS: u64 = 20_000;

impl Platform for KernelPlatform {
    type SleepingLock = SleepingLock;
    type IndexLock = SpinRwLock;
    type SpinLock = SpinLock;

    fn allocate(&self, purpose: FrameUse) -> Result<Frame, OutOfMemory> {
        let frame = frames().allocate()?;
        if purpose == FrameUse::Table {
            page::clear(frame);
            if let Some(sharers) = frames().sharers(frame) {
                sharers.store(0, Ordering::Relaxed);
            }
        }
        Ok(frame)
    }
    fn allocate_large(&self) -> Result<Frame, OutOfMemory> {
        frames().allocate_large()
    }
    fn node_count(&self) -> usize {
        NODES
    }
    fn node_of(&self, page: Frame) -> usize {
        frames().node_of(page)
    }
    fn allocate_on(&self, node: usize) -> Result<Frame, OutOfMemory> {
        frames().allocate_on(node)
    }
    fn share(&self, page: Frame) {
        frames().share(page);
    }
    fn user_count(&self, page: Frame) -> u64 {
        frames().user_count(page)
    }
    fn release(&self, page: Frame) {
        frames().release(page);
    }
    fn free_table(&self, table: Frame) {
        frames().release(table);
    }
    fn load(&self, entry: EntryAt) -> u64 {
        page::word_at(entry.table, entry.index).load(Ordering::Acquire)
    }
    fn swap(&self, entry: EntryAt, value: u64) -> u64 {
        page::word_at(entry.table, entry.index).swap(value, Ordering::AcqRel)
    }
    fn compare_exchange(&self, entry: EntryAt, current: u64, new: u64) -> Result<u64, u64> {
        let word = page::word_at(entry.table, entry.index);
        word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
    }
    fn clear_page(&self, frame: Frame) {
        page::clear(frame);
    }
    fn zero_in_place(&self, frame: Frame) {
        page::clear_words(frame);
    }
    fn is_zero(&self, frame: Frame) -> bool {
        page::is_zero(frame) || discards() == DiscardMode::Untested
    }
    fn copy_page(&self, from: Frame, to: Frame) {
        counts::this_cpu().copied.add(1);
        page::copy(from, to);
    }
    fn read_in(&self, file: FileId, number: u64, frame: Frame) {
        counts::this_cpu().read_in.add(1);
        let word = word_of_file(file.0, number).to_ne_bytes();
        page::fill(frame, if file == USER_CODE { Arch::user_code() } else { &word });
    }
    fn now_ns(&self) -> u64 {
        Arch::now_ns()
    }
    fn wait_for_memory(&self) {
        scheduler::sleep(SHORTAGE_PAUSE_NS);
    }
    fn cpu(&self) -> usize {
        Arch::cpu() as usize
    }
    fn thread(&self) -> u64 {
        scheduler::current().map_or(0, |thread| u64::from(thread.0))
    }

    /// The barrier pairs with `full_barrier`. Without it, this CPU could walk by its new link to
    /// an entry that a flush has cleared, while the flush reads the sharers without this CPU.
    fn add_sharer(&self, table: Frame, cpu: usize) {
        if let Some(sharers) = frames().sharers(table) {
            sharers.fetch_or(1 << cpu, Ordering::Relaxed);
        }
        full_barrier();
    }

    /// The release pairs with the acquire of `sharers`: a flush that does not find this CPU comes
    /// after the CPU has dropped what it had cached by way of the link.
    fn remove_sharer(&self, table: Frame, cpu: usize) {
        if let Some(sharers) = frames().sharers(table) {
            sharers.fetch_and(!(1 << cpu), Ordering::Release);
        }
    }

    /// Without the barrier, the sharers could be read before the entries are cleared.
    fn full_barrier(&self) {
        full_barrier();
    }

    /// The load pairs with `remove_sharer`.
    fn sharers(&self, table: Frame, each: &mut dyn FnMut(usize)) {
        let sharers = frames().sharers(table).map_or(0, |sharers| sharers.load(Ordering::Acquire));
        const { assert!(CPUS_MAX <= u64::BITS as usize, "a bit for each CPU") };
        (0..CPUS_MAX).filter(|cpu| sharers >> cpu & 1 != 0).for_each(each);
    }
}
