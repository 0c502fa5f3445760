//! Physical memory, as the memory manager uses it: frames, their users, and page-table entries.

use crate::lines::{Access, LineId};
use crate::machine::Refill;
use crate::memory::{FrameNumber, Purpose};
use crate::oracle::ViolationKind;
use crate::sim::Sim;
use crate::tlb::SpaceKey;

impl Sim {
    /// Allocates a frame; `None` if none is left.
    #[must_use]
    pub fn allocate(&self, purpose: Purpose) -> Option<FrameNumber> {
        self.spend(self.machine.kernel.frame);
        let node = self.node();
        let frame = self.memory.borrow_mut().allocate(purpose, node)?;
        if purpose == Purpose::Table {
            self.spend(self.machine.kernel.clear_page);
            let mut lines = self.lines.borrow_mut();
            lines_of(frame).for_each(|line| lines.own(line, self.cpu()));
        }
        Some(frame)
    }

    /// Allocates a page's frame in the memory of a node; `None` if the node has none left.
    #[must_use]
    pub fn allocate_page_on(&self, node: usize) -> Option<FrameNumber> {
        self.spend(self.machine.kernel.frame);
        self.memory.borrow_mut().allocate_on(Purpose::Page, node)
    }

    /// Allocates the 512 consecutive frames of a large page (2 MiB), and returns the first; `None`
    /// if there are not enough. Each frame is then shared and released separately.
    #[must_use]
    pub fn allocate_large(&self) -> Option<FrameNumber> {
        self.spend(self.machine.kernel.frame);
        self.memory.borrow_mut().allocate_large()
    }

    /// The node whose memory contains a frame.
    #[must_use]
    pub fn node_of(&self, frame: FrameNumber) -> usize {
        self.memory.borrow().node_of(frame)
    }

    /// Number of nodes.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.memory.borrow().node_count()
    }

    /// Number of frames of each node.
    #[must_use]
    pub fn frames_of_node(&self) -> usize {
        self.memory.borrow().frames_of_node()
    }

    /// Number of a node's frames that are not in use.
    #[must_use]
    pub fn free_frames(&self, node: usize) -> usize {
        self.memory.borrow().free_of(node)
    }

    /// The node to which this CPU belongs.
    #[must_use]
    pub fn node(&self) -> usize {
        let socket = self.machine.topology.socket_of(self.cpu());
        socket * self.node_count() / self.machine.topology.sockets
    }

    /// Adds a user of a page.
    #[inline]
    pub fn share(&self, page: FrameNumber) {
        self.memory.borrow_mut().share(page);
    }

    /// Number of users of a page.
    #[inline]
    #[must_use]
    pub fn users(&self, page: FrameNumber) -> u64 {
        self.memory.borrow().users(page)
    }

    /// Removes a user of a page, and frees the page if it was the last.
    pub fn release(&self, page: FrameNumber) {
        if self.memory.borrow_mut().release(page) {
            self.spend(self.machine.kernel.frame);
        }
    }

    /// Frees a page table. If a CPU can still walk it, a hazard is counted.
    pub fn free_table(&self, table: FrameNumber) {
        let walkers: Vec<usize> = {
            let (tlbs, scheduler) = (self.tlbs.borrow(), self.scheduler.borrow());
            // Where the kernel walks the tables, it does so only for its user threads.
            let walks = |&cpu: &usize| {
                self.machine.refill == Refill::Hardware || scheduler.runs_user_thread(cpu)
            };
            let can_walk = |&cpu: &usize| tlbs[cpu].can_walk(table);
            (0..tlbs.len()).filter(can_walk).filter(walks).collect()
        };
        for cpu in walkers {
            self.report(ViolationKind::WalkableTableFreed, cpu, table << 12);
        }
        {
            let mut memory = self.memory.borrow_mut();
            let space = SpaceKey::new(table, memory.generation(table));
            self.oracle.borrow_mut().forget(space);
            memory.release(table);
        }
        lines_of(table).for_each(|line| self.forget_line(line));
        self.spend(self.machine.kernel.frame);
    }

    /// Number of frames in use.
    #[must_use]
    pub fn frames_in_use(&self) -> usize {
        self.memory.borrow().in_use()
    }

    /// Reads a page-table entry.
    #[inline]
    #[must_use]
    pub fn entry(&self, table: FrameNumber, index: usize) -> u64 {
        self.access(LineId::of_physical((table << 12) | (index as u64 * 8)), Access::Load);
        self.memory.borrow().entry(table, index)
    }

    /// Changes a page-table entry in one step. Returns the entry before.
    ///
    /// # Panics
    ///
    /// If the frame is not a table.
    pub fn update_entry(
        &self,
        table: FrameNumber,
        index: usize,
        update: impl FnOnce(u64) -> u64,
    ) -> u64 {
        self.access(LineId::of_physical((table << 12) | (index as u64 * 8)), Access::Atomic);
        let mut memory = self.memory.borrow_mut();
        let entry = memory.entry_mut(table, index).expect("the frame is a table");
        let before = *entry;
        *entry = update(before);
        before
    }

    /// Fills a page with data that a device has read, by DMA.
    pub fn fill_page(&self, page: FrameNumber, word: u64) {
        self.memory.borrow_mut().write(page, word);
    }

    /// The word that a device would read from a page, by DMA.
    #[inline]
    #[must_use]
    pub fn page_content(&self, page: FrameNumber) -> u64 {
        self.memory.borrow().read(page)
    }

    /// Fills a page with zeros.
    pub fn clear_page(&self, page: FrameNumber) {
        self.spend(self.machine.kernel.clear_page);
        self.memory.borrow_mut().write(page, 0);
    }

    /// Returns `true` if a page is zero. Reading a page of zeros to its end takes as long as
    /// filling it; a page that is in use has another word near its beginning.
    pub fn is_zero_page(&self, page: FrameNumber) -> bool {
        let is_zero = self.page_content(page) == 0;
        let kernel = &self.machine.kernel;
        self.spend(if is_zero { kernel.clear_page } else { kernel.entry });
        is_zero
    }

    /// Copies a page.
    pub fn copy_page(&self, from: FrameNumber, to: FrameNumber) {
        self.spend(self.machine.kernel.copy_page);
        let mut memory = self.memory.borrow_mut();
        let value = memory.read(from);
        memory.write(to, value);
    }
}

/// The cache lines of a frame.
fn lines_of(frame: FrameNumber) -> impl Iterator<Item = LineId> {
    (0..4096 / 64).map(move |line| LineId::of_physical((frame << 12) | (line << 6)))
}
