//! The simulated machine, as the memory manager sees it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use shootdown_sim::machine::Storage;
use shootdown_sim::{Purpose, Sim, SleepingLock, SpinLock, ThreadId, Time};
use shootdown_vm::{EntryAt, FileId, Frame, FrameUse, OutOfMemory, Platform, Work};

/// Physical memory, page-table entries, locks and the time that work takes, on the machine of a
/// simulation.
#[derive(Clone, Debug)]
pub struct SimPlatform {
    sim: Rc<Sim>,
    /// What was written to files: the word of each page.
    stored: Rc<RefCell<HashMap<(FileId, u64), u64>>>,
    traffic: Rc<Cell<Traffic>>,
    reclaimers: Rc<Reclaimers>,
}

/// What became of pages, in all of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Copied to another frame: copies on write, and private pages of files, for the most part.
    pub copied: u64,
    /// Written to where a file is stored, because memory was short.
    pub written_out: u64,
    /// Read in again, after they had been written out.
    pub read_in_again: u64,
}

/// The threads that reclaim memory, one for each node. (Linux: `kswapd`.)
#[derive(Debug, Default)]
pub(crate) struct Reclaimers {
    /// Those that wait for work, by node.
    idle: RefCell<BTreeMap<usize, ThreadId>>,
    is_over: Cell<bool>,
}

/// When the reclaim thread of a node is woken, and how far it goes: the second and third of Linux's
/// watermarks, which are, for nodes as small as a simulation can afford, some hundredths of the
/// memory.
const LOW: usize = 64;
const HIGH: usize = 32;

/// How long who finds no frame sleeps before it looks again whether others have freed one: as long
/// as a fast device takes for a page. (Linux is woken, or sleeps for 20 to 100 ms.)
const SHORTAGE_PAUSE: Time = Time::from_ns(20_000);

impl SimPlatform {
    /// On this machine.
    #[must_use]
    pub fn new(sim: Rc<Sim>) -> Self {
        let (stored, traffic) = (Rc::default(), Rc::default());
        Self { sim, stored, traffic, reclaimers: Rc::default() }
    }

    /// What became of pages so far.
    pub(crate) fn traffic(&self) -> Traffic {
        self.traffic.get()
    }

    fn count(&self, count: impl FnOnce(&mut Traffic)) {
        let mut traffic = self.traffic.get();
        count(&mut traffic);
        self.traffic.set(traffic);
    }

    /// The calling thread waits until a node is short of memory. Returns whether it is, or all is
    /// over.
    pub(crate) fn wait_for_shortage(&self, node: usize) -> bool {
        let Some(thread) = self.sim.current_thread() else { return false };
        while !self.reclaimers.is_over.get() {
            if self.is_short(node, LOW) {
                return true;
            }
            self.reclaimers.idle.borrow_mut().insert(node, thread);
            self.sim.block();
        }
        false
    }

    /// Whether a node has less free memory than its reclaim thread leaves.
    pub(crate) fn is_below_high(&self, node: usize) -> bool {
        !self.reclaimers.is_over.get() && self.is_short(node, HIGH)
    }

    /// Nobody needs memory any more.
    pub(crate) fn end_reclaimers(&self) {
        self.reclaimers.is_over.set(true);
        let idle = self.reclaimers.idle.take();
        idle.into_values().for_each(|thread| self.sim.wake(thread));
    }

    /// Whether less than one frame in so many is free.
    fn is_short(&self, node: usize, part: usize) -> bool {
        self.sim.free_frames(node) < self.sim.frames_of_node() / part
    }

    /// A page is read or written, for which the calling thread waits so long.
    fn use_storage(&self, wait: impl FnOnce(&Storage) -> Time) {
        let Some(storage) = &self.sim.machine().storage else { return };
        self.sim.spend(storage.page);
        let wait = wait(storage);
        if wait != Time::ZERO {
            self.sim.sleep(wait);
        }
    }

    fn wake_reclaimer(&self, node: usize) {
        if !self.is_short(node, LOW) {
            return;
        }
        let idle = self.reclaimers.idle.borrow_mut().remove(&node);
        if let Some(thread) = idle {
            self.sim.wake(thread);
        }
    }
}

impl Platform for SimPlatform {
    type SleepingLock = SleepingLock;
    type SpinLock = SpinLock;

    fn allocate(&self, purpose: FrameUse) -> Result<Frame, OutOfMemory> {
        let purpose = match purpose {
            FrameUse::Table => Purpose::Table,
            FrameUse::Page => Purpose::Page,
        };
        let frame = self.sim.allocate(purpose);
        self.wake_reclaimer(self.sim.node());
        frame.map(Frame).ok_or(OutOfMemory)
    }
    fn allocate_large(&self) -> Result<Frame, OutOfMemory> {
        let frame = self.sim.allocate_large();
        self.wake_reclaimer(self.sim.node());
        frame.map(Frame).ok_or(OutOfMemory)
    }
    fn share(&self, page: Frame) {
        self.sim.share(page.0);
    }
    fn user_count(&self, page: Frame) -> u64 {
        self.sim.users(page.0)
    }
    fn release(&self, page: Frame) {
        self.sim.release(page.0);
    }
    fn free_table(&self, table: Frame) {
        self.sim.free_table(table.0);
    }
    fn load(&self, entry: EntryAt) -> u64 {
        self.sim.entry(entry.table.0, entry.index)
    }
    fn swap(&self, entry: EntryAt, value: u64) -> u64 {
        self.sim.update_entry(entry.table.0, entry.index, |_| value)
    }
    fn compare_exchange(&self, entry: EntryAt, current: u64, new: u64) -> Result<u64, u64> {
        let update = |held| if held == current { new } else { held };
        let held = self.sim.update_entry(entry.table.0, entry.index, update);
        if held == current { Ok(held) } else { Err(held) }
    }
    fn clear_page(&self, page: Frame) {
        self.sim.clear_page(page.0);
    }
    fn copy_page(&self, from: Frame, to: Frame) {
        self.count(|traffic| traffic.copied += 1);
        self.sim.copy_page(from.0, to.0);
    }
    fn read_in(&self, file: FileId, number: u64, page: Frame) {
        let stored = self.stored.borrow().get(&(file, number)).copied();
        self.use_storage(|storage| if stored.is_some() { storage.read } else { Time::ZERO });
        match stored {
            // A device puts it there.
            Some(word) => {
                self.count(|traffic| traffic.read_in_again += 1);
                self.sim.fill_page(page.0, word);
            }
            // A hole, which the file system fills with zeros.
            None => self.sim.clear_page(page.0),
        }
    }
    fn write_out(&self, file: FileId, number: u64, page: Frame) {
        self.use_storage(|storage| storage.write);
        self.count(|traffic| traffic.written_out += 1);
        self.stored.borrow_mut().insert((file, number), self.sim.page_content(page.0));
    }
    fn node_count(&self) -> usize {
        self.sim.node_count()
    }
    fn node_of(&self, page: Frame) -> usize {
        self.sim.node_of(page.0)
    }
    fn allocate_on(&self, node: usize) -> Result<Frame, OutOfMemory> {
        self.sim.allocate_page_on(node).map(Frame).ok_or(OutOfMemory)
    }
    fn wait_for_memory(&self) {
        self.sim.sleep(SHORTAGE_PAUSE);
    }
    fn work(&self, work: Work, count: usize) {
        let cost = &self.sim.machine().kernel;
        let each = match work {
            Work::Areas => cost.areas,
            Work::Fault => cost.fault,
            Work::Entry => cost.entry,
            Work::UnmapPage => cost.unmap_page,
            Work::ForkEntry => cost.fork_entry,
        };
        self.sim.spend(each * count as u64);
    }
}
