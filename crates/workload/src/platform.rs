//! The simulated machine, as the memory manager sees it.

use std::rc::Rc;

use shootdown_sim::{Purpose, Sim, SleepingLock, SpinLock};
use shootdown_vm::{EntryAt, Frame, FrameUse, OutOfMemory, Platform, Work};

/// Physical memory, page-table entries, locks and the time that work takes, on the machine of a
/// simulation.
#[derive(Clone, Debug)]
pub struct SimPlatform {
    sim: Rc<Sim>,
}

impl SimPlatform {
    /// On this machine.
    #[must_use]
    pub const fn new(sim: Rc<Sim>) -> Self {
        Self { sim }
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
        self.sim.allocate(purpose).map(Frame).ok_or(OutOfMemory)
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
        self.sim.copy_page(from.0, to.0);
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
