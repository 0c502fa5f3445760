//! The simulated machine, as the platform of the memory manager.

use core::array;
use core::ops::Range;
use core::sync::atomic::Ordering::SeqCst;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use shootdown::Word;
use shootdown_sim::machine::Storage;
use shootdown_sim::{
    Purpose, ReadMostlyLock, Sim, SimWord, SleepingLock, SpinLock, ThreadId, Time,
};
use shootdown_vm::{EntryAt, FileId, Frame, FrameUse, OutOfMemory, Platform, Work};

use crate::accounting::Accounting;

/// Physical memory, page-table entries, locks and the costs of work, on a simulated machine.
#[derive(Clone, Debug)]
pub struct SimPlatform {
    sim: Rc<Sim>,
    /// The pages that were written to files: each page's word.
    stored: Rc<RefCell<HashMap<(FileId, u64), u64>>>,
    traffic: Rc<RefCell<Traffic>>,
    reclaimers: Rc<Reclaimers>,
    accounting: Rc<Accounting>,
    /// Number of free frames of a node below which its reclaim thread is woken. This corresponds to
    /// the distance between two of Linux's watermarks.
    kept_free: usize,
    sharers: Rc<AllSharers>,
}

/// The sharers of each page table: in a kernel, a part of its structure of the frame.
#[derive(Debug, Default)]
struct AllSharers(RefCell<HashMap<Frame, Rc<[SharersLine]>>>);

/// The bits of 512 CPUs.
#[derive(Debug)]
#[repr(align(64))]
struct SharersLine([SimWord; 8]);

impl AllSharers {
    fn of(&self, table: Frame, cpu_count: usize) -> Rc<[SharersLine]> {
        let line = |_| SharersLine(array::from_fn(|_| SimWord::with(0)));
        let new = || (0..cpu_count.div_ceil(512)).map(line).collect();
        Rc::clone(self.0.borrow_mut().entry(table).or_insert_with(new))
    }
}

/// Counts of pages that were copied, written or read, in a whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Pages that were copied to another frame, mostly copies on write and private pages of files.
    pub copied: u64,
    /// Pages that were written to the device of their file, because memory was short.
    pub written_out: u64,
    /// Pages that were read again after they had been written out.
    pub read_in_again: u64,
}

/// The threads that reclaim memory, one for each node. (Linux: `kswapd`.)
#[derive(Debug, Default)]
pub(crate) struct Reclaimers {
    /// The threads that wait for work, by node.
    idle: RefCell<BTreeMap<usize, ThreadId>>,
    has_ended: Cell<bool>,
}

/// The part of a node's frames that is kept free, if no number is given. For nodes as small as a
/// simulation can afford, Linux's watermarks are some hundredths of the memory.
const KEPT_FREE: usize = 64;

/// The pause of a thread that finds no frame, before it tries again: the time of a fast device for
/// a page. (Linux wakes the thread, or it sleeps for 20 to 100 ms.)
const SHORTAGE_PAUSE: Time = Time::from_ns(20_000);

/// The longest time for which a fault waits for the flush of another call before it is retried. The
/// thread that makes that call may have to run on the same CPU.
const CLAIM_WAIT_MAX: Time = Time::from_ms(1);

impl SimPlatform {
    /// Creates the platform of a machine, whose reclaim threads keep this number of frames of each
    /// node free: see [`Settings`](crate::Settings::kept_free_frames).
    #[must_use]
    pub fn new(sim: Rc<Sim>, kept_free: Option<usize>) -> Self {
        let kept_free = kept_free.unwrap_or(sim.frames_of_node() / KEPT_FREE);
        let (stored, traffic) = (Rc::default(), Rc::default());
        let accounting = Rc::new(Accounting::new(Rc::clone(&sim)));
        let (reclaimers, sharers) = (Rc::default(), Rc::default());
        Self { sim, stored, traffic, reclaimers, accounting, kept_free, sharers }
    }

    /// Returns the traffic so far.
    pub(crate) fn traffic(&self) -> Traffic {
        *self.traffic.borrow()
    }

    /// Blocks the calling thread until a node is short of memory. Returns `false` when the run
    /// ends.
    pub(crate) fn wait_for_shortage(&self, node: usize) -> bool {
        let Some(thread) = self.sim.current_thread() else { return false };
        while !self.reclaimers.has_ended.get() {
            if self.is_short(node, self.kept_free) {
                return true;
            }
            self.reclaimers.idle.borrow_mut().insert(node, thread);
            self.sim.block();
        }
        false
    }

    /// Returns `true` if a node has less free memory than its reclaim thread leaves.
    pub(crate) fn is_below_high(&self, node: usize) -> bool {
        !self.reclaimers.has_ended.get() && self.is_short(node, 2 * self.kept_free)
    }

    /// Ends the reclaim threads.
    pub(crate) fn end_reclaimers(&self) {
        self.reclaimers.has_ended.set(true);
        let idle = self.reclaimers.idle.take();
        idle.into_values().for_each(|thread| self.sim.wake(thread));
    }

    /// Returns `true` if fewer frames of a node are free.
    fn is_short(&self, node: usize, frames: usize) -> bool {
        self.sim.free_frames(node) < frames
    }

    /// Spends the time of reading or writing a page. `wait` is the calling thread's waiting time.
    fn use_storage(&self, wait: impl FnOnce(&Storage) -> Time) {
        let Some(storage) = &self.sim.machine().storage else { return };
        self.sim.spend(storage.page);
        let wait = wait(storage);
        if wait != Time::ZERO {
            self.sim.sleep(wait);
        }
    }

    fn wake_reclaimer(&self, node: usize) {
        if !self.is_short(node, self.kept_free) {
            return;
        }
        let idle = self.reclaimers.idle.borrow_mut().remove(&node);
        if let Some(thread) = idle {
            self.sim.wake_near(thread);
        }
    }
}

impl Platform for SimPlatform {
    type SleepingLock = SleepingLock;
    type IndexLock = ReadMostlyLock;
    type SpinLock = SpinLock;

    fn allocate(&self, purpose: FrameUse) -> Result<Frame, OutOfMemory> {
        let frame = self.sim.allocate(match purpose {
            FrameUse::Table => Purpose::Table,
            FrameUse::Page => Purpose::Page,
        });
        match (purpose, frame) {
            (FrameUse::Page, Some(page)) => self.accounting.new_page(page),
            (FrameUse::Table, Some(_)) => self.accounting.charge(),
            (_, None) => {}
        }
        self.wake_reclaimer(self.sim.node());
        frame.map(Frame).ok_or(OutOfMemory)
    }
    fn allocate_large(&self) -> Result<Frame, OutOfMemory> {
        let frame = self.sim.allocate_large();
        self.wake_reclaimer(self.sim.node());
        frame.map(Frame).ok_or(OutOfMemory)
    }
    fn request_record(&self, page: Frame) {
        self.sim.request_page_record(page.0);
    }
    fn share(&self, page: Frame) {
        self.accounting.change_users(page.0);
        self.sim.share(page.0);
    }
    fn user_count(&self, page: Frame) -> u64 {
        self.sim.use_page_record(page.0, 0);
        self.sim.users(page.0)
    }
    fn release(&self, page: Frame) {
        self.accounting.change_users(page.0);
        if self.sim.release(page.0) {
            self.accounting.freed(page.0);
        }
    }
    fn empty_table(&self, table: Frame, entries: Range<usize>) {
        self.sim.empty_table(table.0, entries);
    }
    fn free_table(&self, table: Frame) {
        self.sim.free_table(table.0);
        self.sharers.0.borrow_mut().remove(&table);
    }
    fn load(&self, entry: EntryAt) -> u64 {
        self.sim.entry(entry.table.0, entry.index)
    }
    fn swap(&self, entry: EntryAt, value: u64) -> u64 {
        self.sim.update_entry(entry.table.0, entry.index, |_| value)
    }
    fn compare_exchange(&self, entry: EntryAt, current: u64, new: u64) -> Result<u64, u64> {
        let update = |found| if found == current { new } else { found };
        let found = self.sim.update_entry(entry.table.0, entry.index, update);
        if found == current { Ok(found) } else { Err(found) }
    }
    fn insert_translation(&self, entry: EntryAt, address: u64) {
        self.sim.insert_translation(entry.table.0, address);
    }
    fn wait_for_claim(&self, entry: EntryAt, claim: u64) {
        let until = self.sim.now() + CLAIM_WAIT_MAX;
        while self.sim.now() < until && self.load(entry) == claim {
            self.sim.flush_wait_hint();
        }
    }
    fn lock_table(&self, table: Frame) {
        self.sim.lock_table(table.0);
    }
    fn try_lock_table(&self, table: Frame) -> bool {
        self.sim.try_lock_table(table.0)
    }
    fn unlock_table(&self, table: Frame) {
        self.sim.unlock_table(table.0);
    }
    fn count_resident(&self, root: Frame, change: isize) {
        self.accounting.count_resident(root.0, change);
    }
    fn clear_page(&self, page: Frame) {
        self.sim.clear_page(page.0);
    }
    fn zero_in_place(&self, page: Frame) {
        self.sim.clear_page(page.0);
    }
    fn is_zero(&self, page: Frame) -> bool {
        self.sim.is_zero_page(page.0)
    }
    fn copy_page(&self, from: Frame, to: Frame) {
        self.traffic.borrow_mut().copied += 1;
        self.sim.copy_page(from.0, to.0);
    }
    fn read_in(&self, file: FileId, number: u64, page: Frame) {
        let stored = self.stored.borrow().get(&(file, number)).copied();
        self.use_storage(|storage| if stored.is_some() { storage.read } else { Time::ZERO });
        match stored {
            // The device writes the page to memory.
            Some(word) => {
                self.traffic.borrow_mut().read_in_again += 1;
                self.sim.fill_page(page.0, word);
            }
            // A hole in the file, which the file system fills with zeros.
            None => self.sim.clear_page(page.0),
        }
    }
    fn write_out(&self, file: FileId, number: u64, page: Frame) {
        self.use_storage(|storage| storage.write);
        self.traffic.borrow_mut().written_out += 1;
        self.stored.borrow_mut().insert((file, number), self.sim.page_content(page.0));
    }
    fn truncate(&self, file: FileId, numbers: Range<u64>) {
        let mut stored = self.stored.borrow_mut();
        stored.retain(|&(of, number), _| of != file || !numbers.contains(&number));
    }
    fn node_count(&self) -> usize {
        self.sim.node_count()
    }
    fn node_of(&self, page: Frame) -> usize {
        self.sim.node_of(page.0)
    }
    fn allocate_on(&self, node: usize) -> Result<Frame, OutOfMemory> {
        let page = self.sim.allocate_page_on(node).ok_or(OutOfMemory)?;
        self.accounting.new_page(page);
        Ok(Frame(page))
    }
    fn wait_for_memory(&self) {
        self.sim.sleep(SHORTAGE_PAUSE);
    }
    fn now_ns(&self) -> u64 {
        self.sim.now().ns()
    }
    fn cpu(&self) -> usize {
        self.sim.cpu()
    }
    fn add_sharer(&self, table: Frame, cpu: usize) {
        let sharers = self.sharers.of(table, self.sim.machine().cpu_count());
        // A locked operation is a full barrier, as on x86.
        sharers[cpu / 512].0[cpu / 64 % 8].fetch_or(1 << (cpu % 64), SeqCst);
    }
    fn remove_sharer(&self, table: Frame, cpu: usize) {
        let sharers = self.sharers.of(table, self.sim.machine().cpu_count());
        sharers[cpu / 512].0[cpu / 64 % 8].fetch_and(!(1 << (cpu % 64)), SeqCst);
    }
    fn sharers(&self, table: Frame, each: &mut dyn FnMut(usize)) {
        let cpu_count = self.sim.machine().cpu_count();
        let sharers = self.sharers.of(table, cpu_count);
        for first in (0..cpu_count).step_by(64) {
            let mut members = sharers[first / 512].0[first / 64 % 8].load(SeqCst);
            while members != 0 {
                each(first + members.trailing_zeros() as usize);
                members &= members - 1;
            }
        }
    }
    fn thread(&self) -> u64 {
        self.sim.current_thread().map_or(0, |thread| thread.0.into())
    }
    fn work(&self, work: Work, count: usize) {
        let cost = &self.sim.machine().kernel;
        let each = match work {
            Work::Areas => cost.areas,
            Work::FindArea => cost.find_area,
            Work::Fault => cost.fault,
            Work::Entry => cost.entry,
            Work::AroundFault => cost.around_fault,
            Work::UnmapPage => cost.unmap_page,
            Work::ForkEntry => cost.fork_entry,
            Work::MovePage => cost.move_page,
        };
        self.sim.spend(self.sim.jittered(each * count as u64));
    }
}
