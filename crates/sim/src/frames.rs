//! Physical memory, as the memory manager uses it: frames, their users, and page-table entries.

use core::ops::Range;
use core::panic::Location;

use crate::causes::Cause;
use crate::hot::{PAGE_RECORDS, TABLE_LOCKS};
use crate::lines::{Access, LineId};
use crate::lock::queued::QueuedLock;
use crate::machine::Refill;
use crate::memory::{FrameNumber, Purpose};
use crate::oracle::ViolationKind;
use crate::sim::Sim;
use crate::time::Time;
use crate::tlb::SpaceKey;

impl Sim {
    /// Allocates a frame; `None` if none is left.
    #[must_use]
    pub fn allocate(&self, purpose: Purpose) -> Option<FrameNumber> {
        let node = self.node();
        if purpose == Purpose::Table {
            let kept = self.memory.borrow_mut().take_table(node, self.cpu());
            if kept.is_some() {
                self.spend(self.machine.kernel.entry);
                return kept;
            }
        }
        self.begin_allocation(node);
        let frame = self.memory.borrow_mut().allocate(purpose, node, self.cpu())?;
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
        self.begin_allocation(node);
        self.memory.borrow_mut().allocate_on(Purpose::Page, node, self.cpu())
    }

    /// Spends the time of an allocation. If this CPU keeps no frame of the node, it takes many,
    /// with the node locked. (Linux: `rmqueue_bulk`, under the lock of the zone.)
    fn begin_allocation(&self, node: usize) {
        self.spend(self.machine.kernel.frame);
        if self.memory.borrow().keeps_none(node, self.cpu()) {
            self.hold(&self.zones[node], || {
                let frames = self.memory.borrow_mut().keep_batch(node, self.cpu()).to_vec();
                self.time_of_page_records(&frames)
            });
        }
    }

    /// Spends the time of freeing a frame, and returns many to the node if this CPU keeps too many.
    /// (Linux: `free_pcppages_bulk`.)
    fn end_release(&self, frame: FrameNumber) {
        self.spend(self.machine.kernel.frame);
        let node = self.node_of(frame);
        let returned = self.memory.borrow_mut().return_batch(node, self.cpu());
        if !returned.is_empty() {
            self.hold(&self.zones[node], || self.time_of_page_records(&returned));
        }
    }

    /// Waits for a lock, with interrupts masked, and holds it for the time that `work` returns.
    /// (Linux: `spin_lock_irqsave`.)
    #[track_caller]
    pub fn hold(&self, lock: &QueuedLock, work: impl FnOnce() -> Time) {
        let site = Location::caller();
        if !self.is_in_context() {
            work();
            return;
        }
        self.masked(|| {
            self.access(lock.line(), Access::Atomic, Some(site));
            let now = self.now();
            let starts_at = lock.reserve(now, work());
            if starts_at != now {
                self.spend_as(Cause::LockWait, starts_at - now);
                self.waited_for_lock(lock.line(), starts_at - now);
                self.count(|counts| {
                    counts.lock_waits += 1;
                    counts.lock_spin += starts_at - now;
                });
            }
            self.spend(lock.free_at() - starts_at);
        });
    }

    /// Time until this CPU has the lines of the records of frames, which it writes one after the
    /// other. Most of the time under the lock of a zone is that of these lines (Aaron Lu,
    /// "eliminate zone->lock contention", 2018).
    pub fn time_of_page_records(&self, frames: &[FrameNumber]) -> Time {
        let mut lines = self.lines.borrow_mut();
        let began = self.now();
        let use_record = |now, &frame| now + lines.use_page_record(frame, self.cpu(), now);
        let time = frames.iter().fold(began, use_record) - began;
        self.clock.borrow_mut().cpus[self.cpu()].count_line_wait(time);
        time
    }

    /// Writes the record of a frame, with some locked operations: `struct page`, which has one
    /// cache line, with the counts of users and mappings, the links of lists, and the lock of a
    /// page table.
    pub fn use_page_record(&self, frame: FrameNumber, locked_operations: u64) {
        self.use_record_as(PAGE_RECORDS, frame, locked_operations);
    }

    fn use_record_as(&self, name: u16, frame: FrameNumber, locked_operations: u64) {
        if self.is_in_context() {
            let (cpu, now) = (self.cpu(), self.now());
            let transfer = self.lines.borrow_mut().use_record_as(name, frame, cpu, now);
            self.clock.borrow_mut().cpus[cpu].count_line_wait(transfer);
            self.spend(transfer + self.machine.cache.atomic * locked_operations);
        }
    }

    /// Requests the line of the record of a frame, which is used soon, without waiting for it.
    pub fn request_page_record(&self, frame: FrameNumber) {
        if self.is_in_context() {
            let (cpu, now) = (self.cpu(), self.now());
            let time = self.lines.borrow_mut().request_page_record(frame, cpu, now);
            self.spend(time);
        }
    }

    /// Locks a page table, as Linux does when it changes entries (`pte_offset_map_lock`). Spins as
    /// long as another CPU has the lock.
    pub fn lock_table(&self, table: FrameNumber) {
        if self.try_lock_table(table) {
            return;
        }
        let began = self.now();
        self.attribute(Cause::LockWait, || {
            while !self.try_lock_table(table) {
                while self.memory.borrow().is_locked(table) {
                    self.spin_hint();
                }
            }
        });
        let spun = self.now() - began;
        self.lines.borrow_mut().hot.waited_for_lock(TABLE_LOCKS, spun);
        self.count(|counts| {
            counts.lock_waits += 1;
            counts.lock_spin += spun;
        });
    }

    /// Locks a page table if no CPU has locked it. Returns `true` if it is locked now.
    pub fn try_lock_table(&self, table: FrameNumber) -> bool {
        self.use_record_as(TABLE_LOCKS, table, 1);
        let is_taken = self.memory.borrow_mut().try_lock(table);
        if is_taken {
            self.spin_lock_taken();
        }
        is_taken
    }

    /// Unlocks a page table.
    pub fn unlock_table(&self, table: FrameNumber) {
        self.memory.borrow_mut().unlock(table);
        self.spend(self.machine.cache.store);
        self.spin_lock_released();
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

    /// Removes a user of a page, and frees the page if it was the last. Returns `true` if the page
    /// is free now.
    pub fn release(&self, page: FrameNumber) -> bool {
        let is_free = self.memory.borrow_mut().release(page, self.cpu());
        if is_free {
            self.end_release(page);
        }
        is_free
    }

    /// Frees a page table. If a CPU can still walk it, a hazard is counted. This CPU keeps a table
    /// that was [emptied](Self::empty_table), unless it keeps 256.
    pub fn free_table(&self, table: FrameNumber) {
        self.forget_holders(table);
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
        let is_kept = {
            let mut memory = self.memory.borrow_mut();
            let space = SpaceKey::new(table, memory.generation(table));
            self.oracle.borrow_mut().forget(space);
            self.replicas.borrow_mut().remove(&table);
            let is_kept = memory.keep_table(table, self.cpu());
            if !is_kept {
                memory.release(table, self.cpu());
            }
            is_kept
        };
        if is_kept {
            return self.spend(self.machine.kernel.entry);
        }
        lines_of(table).for_each(|line| self.forget_line(line));
        self.end_release(table);
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
        self.access(LineId::of_physical((table << 12) | (index as u64 * 8)), Access::Load, None);
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
        self.access(LineId::of_physical((table << 12) | (index as u64 * 8)), Access::Atomic, None);
        let mut memory = self.memory.borrow_mut();
        let entry = memory.entry_mut(table, index).expect("the frame is a table");
        let before = *entry;
        *entry = update(before);
        self.entry_written(table, index, *entry);
        before
    }

    /// Empties entries of a table, after which all its entries stay empty. A CPU
    /// [keeps](Self::free_table) the table when it frees it, as long as it keeps few, and allocates
    /// it again in the time for one entry.
    ///
    /// # Panics
    ///
    /// If the frame is not a table.
    pub fn empty_table(&self, table: FrameNumber, entries: Range<usize>) {
        let bytes =
            (table << 12) + entries.start as u64 * 8..(table << 12) + entries.end as u64 * 8;
        let lines = bytes.start / 64..bytes.end.div_ceil(64);
        let all = self.machine.kernel.clear_page.ps();
        self.spend(Time::from_ps(all * (lines.end - lines.start) / 64));
        lines.for_each(|line| self.access(LineId::of_physical(line * 64), Access::Store, None));
        let mut memory = self.memory.borrow_mut();
        for index in entries {
            *memory.entry_mut(table, index).expect("the frame is a table") = 0;
        }
        memory.set_emptied(table);
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
