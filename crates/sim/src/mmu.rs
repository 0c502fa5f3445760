//! The memory management unit: translates addresses by walking x86-64 page tables in simulated
//! memory, and executes the kernel's invalidations and loads of roots.
//!
//! The decoder of page-table entries is separate from the memory manager's code, so that it detects
//! a memory manager that writes wrong entries.

use core::ops::Range;
use std::rc::Rc;

use crate::causes::Cause;
use crate::clock::{Flushed, Flushing};
use crate::holders::Marking;
use crate::lines::{Access, LineId};
use crate::machine::{Refill, StaleWrites};
use crate::memory::{FrameNumber, Memory};
use crate::oracle::{FlushRecord, Violation, ViolationKind};
use crate::sim::Sim;
use crate::time::Time;
use crate::tlb::{SpaceKey, Translation, Upper};

/// An access of a thread to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// Reads the word.
    Read,
    /// Writes the word.
    Write(u64),
}

/// A page fault: the page tables do not allow the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFault;

/// Treatment of the entries of a tag when a root is loaded under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagEntries {
    /// The entries stay.
    Kept,
    /// The entries are dropped.
    Discarded,
}

impl Sim {
    /// Reads or writes the word of the page at a user address, through the loaded page tables.
    /// Returns the word that it read or wrote.
    ///
    /// This is one instruction: interrupts are taken before or after it.
    ///
    /// # Errors
    ///
    /// If the page tables do not allow the access. The caller must handle the fault and try again.
    pub fn touch(&self, address: u64, touch: Touch) -> Result<u64, PageFault> {
        self.touch_with(address, touch, |_| {})
    }

    /// Reads or writes a word like [`touch`](Self::touch), and calls `observe` with it. No other
    /// CPU acts between the access and that call.
    ///
    /// # Errors
    ///
    /// Same as [`touch`](Self::touch). `observe` is not called then.
    pub fn touch_with(
        &self,
        address: u64,
        touch: Touch,
        observe: impl FnOnce(u64),
    ) -> Result<u64, PageFault> {
        self.count(|counts| counts.accesses += 1);
        self.classify_access(address);
        let use_frame = |frame| {
            let word = self.use_frame(frame, touch);
            observe(word);
            word
        };
        let result = match self.look_up(address, touch) {
            Some(frame) => Ok(use_frame(frame)),
            None => {
                // Interrupts wait for the end of the instruction, including its access: a CPU never
                // handles a flush between a walk and the use of its result.
                let before = self.begin_walk();
                self.spend(self.machine.tlb.walk);
                let walked = self.walk(address, touch);
                let result = walked.map(use_frame);
                self.end_walk(before);
                result
            }
        };
        self.spend(self.machine.cache.hit);
        result
    }

    /// Counts a walk, masks interrupts, and returns the cause of the time before.
    #[inline]
    fn begin_walk(&self) -> Cause {
        let cpu = &mut self.clock.borrow_mut().cpus[self.cpu()];
        cpu.counts.walks += 1;
        cpu.masks += 1;
        cpu.causes.change(Cause::Refills, cpu.now)
    }

    #[inline]
    fn end_walk(&self, before: Cause) {
        {
            let cpu = &mut self.clock.borrow_mut().cpus[self.cpu()];
            cpu.causes.change(before, cpu.now);
        }
        self.unmask();
    }

    #[inline]
    fn use_frame(&self, frame: FrameNumber, touch: Touch) -> u64 {
        let mut memory = self.memory.borrow_mut();
        match touch {
            Touch::Read => memory.read(frame),
            Touch::Write(value) => {
                memory.write(frame, value);
                value
            }
        }
    }

    /// Loads a root under a tag (a write to CR3).
    pub fn load_root(&self, root: FrameNumber, tag: u16, entries: TagEntries) {
        let cost = &self.machine.tlb;
        let kept = entries == TagEntries::Kept;
        if kept {
            self.spend(cost.load_root);
        } else {
            self.spend_invalidating(cost.load_root_and_discard);
        }
        let of = self.replicas.borrow().get(&root).copied();
        let key = |root| SpaceKey::new(root, self.memory.borrow().generation(root));
        let (space, root) = (key(of.unwrap_or(root)), key(root));
        let mut tlbs = self.tlbs.borrow_mut();
        let tlb = &mut tlbs[self.cpu()];
        tlb.load(space, root, tag);
        if !kept {
            tlb.invalidate_tag(tag, self.next_invalidation());
        }
        // A table that was freed while its tag was not loaded can be walked from now on.
        let memory = self.memory.borrow();
        let freed = |upper: &&Upper| memory.generation(upper.table) != upper.table_generation;
        let freed: Vec<FrameNumber> = tlb.uppers().filter(freed).map(|upper| upper.table).collect();
        drop((tlbs, memory));
        for table in freed {
            self.report(ViolationKind::WalkableTableFreed, self.cpu(), table << 12);
        }
        self.count(|counts| {
            counts.root_loads += 1;
            counts.root_loads_kept += u64::from(kept);
            counts.flushes_full += u64::from(!kept);
        });
    }

    #[inline]
    fn spend_invalidating(&self, time: Time) {
        self.spend_as(Cause::Invalidations, time);
    }

    /// Records that `replica` is the root of other upper tables for the space with the root `of`:
    /// from now on, a CPU that has it loaded uses that space, and flushes of the space cover the
    /// translations that it reads there.
    pub fn replicate(&self, of: FrameNumber, replica: FrameNumber) {
        self.replicas.borrow_mut().insert(replica, of);
    }

    /// Loads the kernel's own root, under tag 0, whose entries are dropped.
    pub fn load_kernel_root(&self) {
        self.spend(self.machine.tlb.load_root);
        let mut tlbs = self.tlbs.borrow_mut();
        let tlb = &mut tlbs[self.cpu()];
        tlb.load(SpaceKey::KERNEL, SpaceKey::KERNEL, 0);
        tlb.invalidate_tag(0, self.next_invalidation());
        drop(tlbs);
        self.count(|counts| counts.root_loads += 1);
    }

    /// Counts the flushes in `f` as flushes at a switch: because the CPU loads a space or resumes
    /// one.
    #[inline]
    pub fn count_at_switch<R>(&self, f: impl FnOnce() -> R) -> R {
        let cpu = self.cpu();
        let flushes =
            || self.read_counts(cpu, |counts| (counts.flushes_full, counts.flushes_ranged));
        let (full, ranged) = flushes();
        let result = f();
        let (full_after, ranged_after) = flushes();
        self.count(|counts| {
            counts.flushes_full_at_switch += full_after - full;
            counts.flushes_ranged_at_switch += ranged_after - ranged;
        });
        result
    }

    /// Drops the translations of consecutive pages under the loaded tag. Each operation drops one
    /// page (INVLPG), or as many as the machine's operations can name.
    pub fn invalidate(&self, addresses: impl Iterator<Item = u64>) {
        let tlb = &self.machine.tlb;
        let mut pages = 0;
        for address in addresses {
            if pages % tlb.pages_per_invalidation as u64 == 0 {
                self.spend_invalidating(tlb.invalidate_page);
            }
            self.tlbs.borrow_mut()[self.cpu()].invalidate(address);
            pages += 1;
        }
        self.count(|counts| {
            counts.flushes_ranged += 1;
            counts.pages_invalidated += pages;
        });
    }

    /// Drops all translations under the loaded tag (a write of the same root to CR3).
    pub fn invalidate_tag(&self) {
        self.spend_invalidating(self.machine.tlb.load_root_and_discard);
        let mut tlbs = self.tlbs.borrow_mut();
        let tlb = &mut tlbs[self.cpu()];
        tlb.invalidate_tag(tlb.tag, self.next_invalidation());
        drop(tlbs);
        self.count(|counts| counts.flushes_full += 1);
    }

    /// Drops all translations, global translations included.
    pub fn invalidate_all(&self) {
        self.spend_invalidating(self.machine.tlb.invalidate_all);
        self.tlbs.borrow_mut()[self.cpu()].invalidate_all(self.next_invalidation());
        self.count(|counts| counts.flushes_full += 1);
    }

    /// Reports the beginning of a flush to the oracle. The page tables are changed already, and the
    /// old translations must not be used after the flush has [ended](Self::flush_ended). A `range`
    /// of `None` is the whole space.
    pub fn flush_began(&self, root: FrameNumber, range: Option<Range<u64>>) -> FlushRecord {
        self.begin_flush(root, range, false)
    }

    /// Reports the beginning of a flush after which page tables of the range are freed, as
    /// [`flush_began`](Self::flush_began) does.
    pub fn flush_of_tables_began(
        &self,
        root: FrameNumber,
        range: Option<Range<u64>>,
    ) -> FlushRecord {
        self.begin_flush(root, range, true)
    }

    fn begin_flush(
        &self,
        root: FrameNumber,
        range: Option<Range<u64>>,
        frees_tables: bool,
    ) -> FlushRecord {
        let space = SpaceKey::new(root, self.memory.borrow().generation(root));
        let now = self.now();
        let record = self.oracle.borrow_mut().begin(space, range, now);
        if self.tlbs.borrow()[self.cpu()].space == space {
            self.classify_synchronisation();
        }
        let cpu = &mut self.clock.borrow_mut().cpus[self.cpu()];
        // The ranges of one operation begin at one time.
        let flushes = match cpu.flushing.take() {
            Some(before) if before.since == now => before.flushes,
            _ => Rc::default(),
        };
        let flushing = cpu.flushing.insert(Flushing { flushes, since: now });
        Rc::make_mut(&mut flushing.flushes).push(record.flushed(frees_tables));
        record
    }

    /// Reports that this CPU is about to send the interrupts of several flushes that have begun.
    pub fn batch_began<'f>(&self, flushes: impl IntoIterator<Item = &'f FlushRecord>) {
        self.sending_for(flushes.into_iter().map(|flush| flush.flushed(false)).collect());
    }

    fn sending_for(&self, flushes: Vec<Flushed>) {
        let flushing = Flushing { flushes: Rc::new(flushes), since: self.now() };
        self.clock.borrow_mut().cpus[self.cpu()].flushing = Some(flushing);
    }

    /// Reports that this CPU is about to interrupt CPUs that can walk the page tables of the space
    /// with this root, or of any space if `None`, so that they stop. No translations are flushed.
    pub fn walker_flush_began(&self, root: Option<FrameNumber>) {
        let memory = self.memory.borrow();
        let space = root.map(|root| SpaceKey::new(root, memory.generation(root)));
        drop(memory);
        let began = self.oracle.borrow().now();
        let flushed = |space| Flushed { space, range: None, began, frees_tables: true };
        self.sending_for(space.map(flushed).into_iter().collect());
    }

    /// Reports that this CPU has sent all interrupts of the flush that it began.
    #[inline]
    pub fn flush_sent(&self) {
        self.report_sending();
        let sent = self.clock.borrow_mut().cpus[self.cpu()].flushing.take();
        if let Some(sent) = sent {
            self.classify_coalesced(&sent.flushes);
        }
    }

    /// Reports to the oracle that a flush is complete, according to the design.
    pub fn flush_ended(&self, flush: FlushRecord) {
        let began_at = flush.began_at;
        self.batch_ended([flush], began_at);
    }

    /// Reports to the oracle that several flushes are complete. Waiting for all of them began at
    /// `began_at`.
    pub fn batch_ended(&self, flushes: impl IntoIterator<Item = FlushRecord>, began_at: Time) {
        let waited = self.now() - began_at;
        self.count(|counts| counts.flush_wait += waited);
        self.waits.borrow_mut().record(waited);
        for flush in flushes {
            self.oracle.borrow_mut().end(flush, &mut self.tlbs.borrow_mut());
        }
    }

    /// The frame of a page, from a cached translation that allows the access.
    #[inline]
    fn look_up(&self, address: u64, touch: Touch) -> Option<FrameNumber> {
        let mut tlbs = self.tlbs.borrow_mut();
        let tlb = &mut tlbs[self.cpu()];
        let (loaded, root) = (tlb.space, tlb.root);
        let found = tlb.find(address)?;
        if matches!(touch, Touch::Write(_)) && !found.writable {
            // A page fault drops the entry that caused it.
            tlb.invalidate(address);
            return None;
        }
        if matches!(touch, Touch::Write(_)) && !found.dirty {
            if self.machine.stale_writes == StaleWrites::Trapped {
                return None;
            }
            found.dirty = true;
            mark_written(&mut self.memory.borrow_mut(), root.root(), address, found);
        }
        let generation = self.memory.borrow().page_generation(found.frame, found.shift);
        let frame = found.frame + ((address - found.page) >> 12);
        let violation = self.oracle.borrow().check(found, loaded, generation);
        if let Some(kind) = violation {
            drop(tlbs);
            self.report(kind, self.cpu(), address);
        }
        Some(frame)
    }

    /// Walks the page tables, and caches the result. Interrupts must be masked.
    ///
    /// If another CPU invalidates entries of the loaded tag during the walk, the walk starts again,
    /// because that CPU does not wait for it.
    fn walk(&self, address: u64, touch: Touch) -> Result<FrameNumber, PageFault> {
        loop {
            if let Some(result) = self.walk_once(address, touch, Marking::Set) {
                return result;
            }
        }
    }

    pub(crate) fn walk_once(
        &self,
        address: u64,
        touch: Touch,
        marking: Marking,
    ) -> Option<Result<FrameNumber, PageFault>> {
        let keeps_upper = self.machine.refill == Refill::Hardware;
        let (space, root, cached, invalidation_count) = {
            let mut tlbs = self.tlbs.borrow_mut();
            let tlb = &mut tlbs[self.cpu()];
            let cached = if keeps_upper { tlb.find_upper(address) } else { None };
            (tlb.space, tlb.root, cached, tlb.invalidation_count)
        };
        if space == SpaceKey::KERNEL {
            return Some(Err(PageFault));
        }
        let (mut table, mut generation, mut shift) = match cached {
            Some(upper) => (upper.table, upper.table_generation, upper.shift - LEVEL_BITS),
            None => (root.root(), root.root_generation(), TOP_SHIFT),
        };
        loop {
            let index = (address >> shift) as usize & (ENTRIES_PER_TABLE - 1);
            self.access_entry(table, index, Access::Load, invalidation_count)?;
            if self.memory.borrow().generation(table) != generation {
                self.report(ViolationKind::FreedTable, self.cpu(), table << 12);
            }
            let entry = self.memory.borrow().entry(table, index);
            if entry & PRESENT == 0 {
                return Some(Err(PageFault));
            }
            if shift == PAGE_SHIFT || entry & LARGE != 0 {
                return self.finish_walk(
                    address,
                    (touch, marking),
                    (space, invalidation_count),
                    (table, index, shift),
                );
            }
            (table, generation) = {
                let next = entry_frame(entry);
                (next, self.memory.borrow().generation(next))
            };
            self.classify_walk(space, shift, address >> shift);
            if keeps_upper {
                let prefix = address >> shift;
                let upper = Upper { shift, prefix, table, table_generation: generation };
                self.tlbs.borrow_mut()[self.cpu()].insert_upper(upper, self.last_invalidation());
            }
            shift -= LEVEL_BITS;
        }
    }

    /// Checks the entry that maps a page, sets its accessed and dirty bits, and caches the
    /// translation, in one step of simulated time.
    fn finish_walk(
        &self,
        address: u64,
        (touch, marking): (Touch, Marking),
        (space, invalidation_count): (SpaceKey, u64),
        (table, index, shift): (FrameNumber, usize, u8),
    ) -> Option<Result<FrameNumber, PageFault>> {
        let is_write = matches!(touch, Touch::Write(_));
        let marks = match marking {
            Marking::Clear => 0,
            Marking::Set if is_write => ACCESSED | DIRTY,
            Marking::Set => ACCESSED,
        };
        if self.memory.borrow().entry(table, index) & marks != marks {
            self.access_entry(table, index, Access::Atomic, invalidation_count)?;
        }
        let mut memory = self.memory.borrow_mut();
        let Some(entry) = memory.entry_mut(table, index) else { return Some(Err(PageFault)) };
        if *entry & PRESENT == 0 || *entry & USER == 0 || is_write && *entry & WRITABLE == 0 {
            return Some(Err(PageFault));
        }
        *entry |= marks;
        let entry = *entry;
        match marking {
            Marking::Set => self.entry_accessed(table, index),
            Marking::Clear => self.entry_inserted(table, index),
        }
        let frame = page_frame(entry, shift);
        let translation = Translation {
            page: address & !((1 << shift) - 1),
            shift,
            writable: entry & WRITABLE != 0,
            dirty: entry & DIRTY != 0,
            frame,
            frame_generation: memory.page_generation(frame, shift),
            space,
            clean_since: self.oracle.borrow().now(),
        };
        self.tlbs.borrow_mut()[self.cpu()].insert(translation, self.last_invalidation());
        Some(Ok(frame + ((address - translation.page) >> PAGE_SHIFT)))
    }

    /// One access of a walk. Returns `None` if entries were invalidated since the walk began.
    fn access_entry(
        &self,
        table: FrameNumber,
        index: usize,
        access: Access,
        invalidation_count: u64,
    ) -> Option<()> {
        self.access(LineId::of_physical((table << 12) | (index as u64 * 8)), access, None);
        (self.tlbs.borrow()[self.cpu()].invalidation_count == invalidation_count).then_some(())
    }

    pub(crate) fn report(&self, kind: ViolationKind, cpu: usize, address: u64) {
        let violation = Violation { kind, at: self.now(), cpu, address };
        self.oracle.borrow_mut().report(violation);
    }
}

/// Sets the dirty bit of the entry for `address`, if the entry still maps the same page as `found`.
fn mark_written(memory: &mut Memory, root: FrameNumber, address: u64, found: &Translation) {
    let (mut table, mut shift) = (root, TOP_SHIFT);
    loop {
        let index = (address >> shift) as usize & (ENTRIES_PER_TABLE - 1);
        let Some(entry) = memory.entry_mut(table, index) else { return };
        if *entry & PRESENT == 0 {
            return;
        }
        if shift == PAGE_SHIFT || *entry & LARGE != 0 {
            if shift == found.shift && page_frame(*entry, shift) == found.frame {
                *entry |= DIRTY;
            }
            return;
        }
        (table, shift) = (entry_frame(*entry), shift - LEVEL_BITS);
    }
}

/// The first frame of the page of 2^`shift` bytes that an entry maps.
pub(crate) const fn page_frame(entry: u64, shift: u8) -> FrameNumber {
    entry_frame(entry) & !((1 << (shift - PAGE_SHIFT)) - 1)
}

pub(crate) const fn entry_frame(entry: u64) -> FrameNumber {
    (entry & 0x000f_ffff_ffff_f000) >> PAGE_SHIFT
}

// Intel 64 and IA-32 Architectures Software Developer's Manual, volume 3, section 4.5.
pub(crate) const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
pub(crate) const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
pub(crate) const LARGE: u64 = 1 << 7;
pub(crate) const PAGE_SHIFT: u8 = 12;
pub(crate) const LEVEL_BITS: u8 = 9;
pub(crate) const TOP_SHIFT: u8 = 39;
pub(crate) const ENTRIES_PER_TABLE: usize = 512;
