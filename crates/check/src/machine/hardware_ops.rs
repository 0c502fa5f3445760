//! The operations of a kernel on the hardware. Each is a step, before which other CPUs may act.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed};

use shootdown::Word;

use super::{HostileMachine, with_machine};
use crate::hardware::{
    AccessTiming, Entry, Hardware, Moment, OnLoad, PAGE_NUMBERS, PAGES, Reach, SLOTS, StaleEntries,
    Translation, Violation, What,
};
use crate::hash::mix;
use crate::history::LineKind;
use crate::interrupt_oracle::{FlushScope, SpaceUse};
use crate::kernel_pages::KernelPages;
use crate::machine::CheckWord;
use crate::memory::Memory;
use crate::profile::Erratum;

/// A root, with a table below each entry and a frame in each page.
#[derive(Debug)]
pub struct PageTables {
    root: usize,
    slots: Vec<CheckWord>,
    tables: Vec<(usize, Vec<CheckWord>)>,
}

impl PageTables {
    /// Creates full page tables: every page maps a frame of its own, writable.
    pub fn new(machine: &HostileMachine) -> Self {
        let words = |count, name: &dyn Fn(usize) -> String| -> Vec<_> {
            (0..count).map(|index| CheckWord::named(0, || name(index))).collect()
        };
        let number = machine.hardware.borrow().root_count();
        let slots = words(SLOTS, &|slot| format!("entry {slot} of root {number}"));
        let root = machine.hardware.borrow_mut().add_root(numbers(&slots));
        let tables = (0..SLOTS).map(|slot| {
            let entries =
                words(PAGES, &|index| format!("page {} of space {root}", slot * PAGES + index));
            for entry in &entries {
                let frame = machine.hardware.borrow_mut().add_frame();
                entry.store(Entry::to(frame).writable().0, Relaxed);
            }
            let table = machine.hardware.borrow_mut().add_table(numbers(&entries));
            slots[slot].store(Entry::to(table).0, Relaxed);
            (table, entries)
        });
        let tables = tables.collect();
        Self { root, slots, tables }
    }

    /// The number of the root.
    pub const fn root(&self) -> usize {
        self.root
    }

    /// Loads the entry of a page, as a walk of the CPU's program does.
    pub fn entry(&self, page: usize) -> Entry {
        Entry(self.word(page).load(Acquire))
    }

    /// Exchanges the entry of a page and returns the old entry. This is one locked operation, as in
    /// kernels whose hardware may set bits of the entry concurrently. It releases and acquires, as
    /// the engine asks, because other CPUs rely on the entry that they find.
    pub fn swap(&self, page: usize, entry: Entry) -> Entry {
        Entry(self.word(page).swap(entry.0, AcqRel))
    }

    /// Marks the entry of a page as accessed, as this CPU's walker does before it uses the page.
    ///
    /// Only a mark that remains after its entry was removed has an effect here: see
    /// [`Erratum::MarksLate`].
    pub fn mark(&self, page: usize) {
        let is_late = with_machine(|machine| machine.profile().erratum == Some(Erratum::MarksLate));
        if is_late && self.entry(page).is_present() {
            self.replace(page, Entry::EMPTY, Entry::STRAY_MARK);
        }
    }

    /// Replaces the entry of a page if it is still `from`. Returns `true` if it was.
    pub fn replace(&self, page: usize, from: Entry, to: Entry) -> bool {
        self.word(page).compare_exchange(from.0, to.0, AcqRel, Acquire).is_ok()
    }

    /// Stores the entry of a page.
    pub fn store(&self, page: usize, entry: Entry) {
        self.store_in_order(page, entry, Relaxed);
    }

    /// Stores the entry of a page with a memory ordering.
    pub fn store_in_order(&self, page: usize, entry: Entry, order: Ordering) {
        self.word(page).store(entry.0, order);
    }

    /// Removes a table with its entries from the root, and returns its number if it was there.
    pub fn unlink_table(&self, slot: usize) -> Option<usize> {
        let entry = Entry(self.slots[slot].swap(Entry::EMPTY.0, Relaxed));
        entry.is_present().then(|| entry.target())
    }

    /// Removes a table from the root and returns its number, unless the slot has no table or
    /// another CPU removes it first. Kernels do this where they may find a large page instead.
    pub fn remove_table(&self, slot: usize) -> Option<usize> {
        let entry = Entry(self.slots[slot].load(Acquire));
        let is_taken = entry.is_table() && self.replace_slot(slot, entry, Entry::EMPTY, Relaxed);
        is_taken.then(|| entry.target())
    }

    /// Removes a large page from the root, and returns its frame if it was there.
    pub fn remove_large(&self, slot: usize) -> Option<usize> {
        let entry = Entry(self.slots[slot].load(Acquire));
        let is_taken = entry.is_large() && self.replace_slot(slot, entry, Entry::EMPTY, AcqRel);
        is_taken.then(|| entry.target())
    }

    /// Maps a large page in an empty slot of the root.
    pub fn map_large(&self, slot: usize, frame: usize) {
        self.slots[slot].swap(Entry::to(frame).writable().large().0, AcqRel);
    }

    fn replace_slot(&self, slot: usize, from: Entry, to: Entry, order: Ordering) -> bool {
        self.slots[slot].compare_exchange(from.0, to.0, order, Acquire).is_ok()
    }

    /// Returns `true` if the root still has the table of a page.
    pub fn has_table(&self, page: usize) -> bool {
        Entry(self.slots[page / PAGES].load(Acquire)).is_table()
    }

    /// The number of the table in a slot, as a walk by software reads it.
    pub fn linked_table(&self, slot: usize) -> Option<usize> {
        let entry = Entry(self.slots[slot].load(Acquire));
        entry.is_table().then(|| entry.target())
    }

    /// Links the slot's own table into the root again.
    pub fn link_table(&self, slot: usize, order: Ordering) {
        self.slots[slot].store(Entry::to(self.tables[slot].0).0, order);
    }

    /// Links the table of another root's slot in place of the slot's own.
    pub fn share_table(&self, slot: usize, of: &Self) {
        self.slots[slot].store(Entry::to(of.table(slot)).0, Ordering::Release);
    }

    /// The number of a slot's own table, linked or not.
    pub fn table(&self, slot: usize) -> usize {
        self.tables[slot].0
    }

    fn word(&self, page: usize) -> &CheckWord {
        &self.tables[page / PAGES].1[page % PAGES]
    }
}

/// The kernel's own page table: [`SLOTS`] pages, each with a frame of the same number.
#[derive(Debug)]
pub struct KernelTable {
    pages: Vec<CheckWord>,
    /// The entry, common to all roots, that points to the table.
    link: CheckWord,
}

impl KernelTable {
    /// Creates a full kernel page table. A machine has at most one.
    pub fn new(machine: &HostileMachine) -> Self {
        let page =
            |page| CheckWord::named(Entry::to(page).writable().0, || format!("kernel page {page}"));
        let pages: Vec<_> = (0..SLOTS).map(page).collect();
        let link = CheckWord::named(Entry::to(0).0, || "link to the kernel's table".to_owned());
        machine.kernel_pages(|kernel, memory, _| {
            kernel.set_words(memory, numbers(&pages), link.number())
        });
        Self { pages, link }
    }

    /// Exchanges the entry of a page and returns the old entry.
    pub fn swap(&self, page: usize, entry: Entry) -> Entry {
        Entry(self.pages[page].swap(entry.0, AcqRel))
    }

    /// Removes the table from all roots. Returns `true` if it was there.
    pub fn unlink(&self) -> bool {
        Entry(self.link.swap(Entry::EMPTY.0, AcqRel)).is_present()
    }
}

impl HostileMachine {
    /// Loads a root under a tag; `None` is the kernel's root.
    pub fn load_root(&self, root: Option<usize>, tag: u16, on_load: OnLoad) {
        let text = || match root {
            Some(root) => {
                let kept = if on_load == OnLoad::Flush {
                    "invalidates the tag"
                } else {
                    "keeps its entries"
                };
                format!("loads space {root} under tag {tag}, and {kept}")
            }
            None => "loads the kernel's root".to_owned(),
        };
        self.hardware_step(text, |hardware, memory, cpu| {
            hardware.load(memory, cpu, root, tag, on_load)
        });
        self.kernel_pages.borrow_mut().note_tag(self.cpu(), tag);
    }

    /// The tag under which this CPU has loaded its root.
    pub fn loaded_tag(&self) -> u16 {
        self.hardware.borrow().tag(self.cpu())
    }

    /// Invalidates pages of the loaded space.
    pub fn invalidate_pages(&self, pages: impl Fn(usize) -> bool, upper: WalkCaches) {
        let is_upper = upper == WalkCaches::Invalidate;
        let text = || {
            let pages: Vec<_> = (0..PAGE_NUMBERS).filter(|&page| pages(page)).collect();
            let tables = if is_upper { ", and pointers to tables" } else { "" };
            format!("invalidates pages {pages:?}{tables}")
        };
        self.hardware_step(text, |hardware, memory, cpu| {
            hardware.invalidate_pages(memory, cpu, &pages, is_upper)
        });
    }

    /// Invalidates all entries of a tag, or all entries.
    pub fn invalidate_tag(&self, tag: Option<u16>) {
        let text = || match tag {
            Some(tag) => format!("invalidates tag {tag}"),
            None => "invalidates everything".to_owned(),
        };
        self.hardware_step(text, |hardware, memory, cpu| hardware.invalidate_tag(memory, cpu, tag));
        if tag.is_none() {
            self.kernel_pages(KernelPages::invalidate_all);
        }
    }

    /// Invalidates kernel pages, under every tag.
    pub fn invalidate_kernel_pages(&self, pages: impl Fn(usize) -> bool, upper: WalkCaches) {
        self.step();
        self.record(|| "invalidates kernel pages".to_owned());
        let is_upper = upper == WalkCaches::Invalidate;
        self.kernel_pages(|kernel, memory, cpu| {
            kernel.invalidate_pages(memory, cpu, &pages, is_upper)
        });
    }

    /// Uses a page that the kernel has mapped.
    pub fn touch_kernel_page(&self, page: usize) {
        self.step();
        self.record(|| format!("uses kernel page {page}"));
        self.kernel_pages(|kernel, memory, cpu| kernel.touch(memory, cpu, page));
    }

    /// Begins an invalidation on all CPUs, of pages under each CPU's loaded tag and of cached
    /// pointers to tables. The invalidation is complete when this CPU
    /// [completes](Self::complete_broadcasts) it, and maybe no sooner.
    pub fn issue_broadcast(&self, pages: impl Fn(usize) -> bool) {
        self.issue(Reach::Everybody, pages);
    }

    /// Begins the invalidation of [`issue_broadcast`](Self::issue_broadcast) on all CPUs, or on
    /// this one only.
    pub fn issue(&self, reach: Reach, pages: impl Fn(usize) -> bool) {
        self.issue_what(reach, What::Pages { tag: None, pages: as_bits(pages), upper: true });
    }

    /// Begins an invalidation of all entries of a tag, on all CPUs or on this one only.
    pub fn issue_tag(&self, reach: Reach, tag: u16) {
        self.issue_what(reach, What::Tag(tag));
    }

    /// Begins an invalidation on all CPUs or on this one only, of pages under a tag, and of cached
    /// pointers to tables as `upper` asks.
    pub fn broadcast_under(
        &self,
        reach: Reach,
        tag: u16,
        pages: impl Fn(usize) -> bool,
        upper: WalkCaches,
    ) {
        let (pages, upper) = (as_bits(pages), upper == WalkCaches::Invalidate);
        self.issue_what(reach, What::Pages { tag: Some(tag), pages, upper });
    }

    /// Begins an invalidation on all CPUs of the pages that `count` addresses name, each `stride`
    /// pages after the previous one. Each address names the one page, small or large, that
    /// translates it.
    pub fn broadcast_strided(&self, first: usize, count: usize, stride: usize) {
        let is_named = |page| (0..count).any(|index| first + index * stride == page);
        self.issue_broadcast(|page| match page.checked_sub(SLOTS * PAGES) {
            None => is_named(page),
            Some(slot) => (slot * PAGES..(slot + 1) * PAGES).any(is_named),
        });
    }

    /// Begins an invalidation on all CPUs that removes nothing.
    pub fn broadcast_nothing(&self) {
        self.issue_what(Reach::Everybody, What::Pages { tag: None, pages: 0, upper: false });
    }

    /// Begins an invalidation on all CPUs of a guest's entries that combine two stages.
    pub fn broadcast_combined(&self, tag: u16) {
        self.issue_what(Reach::Everybody, What::Combined(tag));
    }

    fn issue_what(&self, reach: Reach, what: What) {
        let text = || match reach {
            Reach::Own => format!("issues an invalidation of {what}"),
            Reach::Cpus(cpus) => {
                let cpus: Vec<_> = (0..64).filter(|cpu| cpus >> cpu & 1 == 1).collect();
                format!("issues an invalidation of {what} in the domains of CPUs {cpus:?}")
            }
            Reach::Everybody => format!("broadcasts an invalidation of {what}"),
        };
        self.hardware_step(text, |hardware, _, cpu| {
            hardware.issue(cpu, reach, what);
            None
        });
    }

    /// Begins an invalidation of kernel pages on all CPUs.
    pub fn broadcast_kernel(&self, pages: impl Fn(usize) -> bool, upper: WalkCaches) {
        self.step();
        self.record(|| "broadcasts an invalidation of kernel pages".to_owned());
        self.hardware.borrow_mut().note_broadcast(self.cpu());
        let is_upper = upper == WalkCaches::Invalidate;
        self.kernel_pages(|kernel, _, cpu| {
            kernel.issue_broadcast(cpu, &pages, is_upper);
            None
        });
    }

    /// Waits until all invalidations that *this* CPU has issued are complete.
    pub fn complete_broadcasts(&self) {
        self.step();
        self.record(|| "completes its invalidations".to_owned());
        let completion = self.hardware.borrow_mut().completion(self.cpu());
        self.hardware(|hardware, memory, cpu| hardware.complete_issued(memory, cpu, completion));
        self.kernel_pages(|kernel, memory, cpu| {
            kernel.complete_broadcasts(memory, cpu, completion)
        });
        // This waits for earlier loads and visible stores as well: `dsb ish`.
        self.publish_tables();
        self.order_invalidations();
    }

    /// Tracks translations in flight from now on, for programs that ask for
    /// [translations](Self::translations).
    pub fn track_in_flight(&self) {
        self.hardware.borrow_mut().track_in_flight(&self.memory.borrow());
    }

    /// Returns the translations that an access of this CPU to a page may use now, if its address
    /// was known at `since`. The access is not a step of its own.
    ///
    /// # Panics
    ///
    /// If translations in flight are not [tracked](Self::track_in_flight).
    pub fn translations(
        &self,
        page: usize,
        since: Moment,
        access: AccessTiming,
    ) -> BTreeSet<Translation> {
        let found = self.hardware.borrow().translations(self.cpu(), page, since, access);
        assert!(!found.is_empty(), "every page has an entry or a fault");
        self.observe(found.iter().fold(5, |hash, found| mix(hash, found.bits())));
        found
    }

    /// Orders this CPU's page-table writes before its later invalidations.
    pub(crate) fn publish_tables(&self) {
        let cpu = self.cpu();
        self.hardware.borrow_mut().publish(cpu);
        self.kernel_pages.borrow_mut().publish(cpu);
    }

    /// Orders this CPU's earlier accesses before its later invalidations.
    pub(crate) fn order_invalidations(&self) {
        self.kernel_pages.borrow_mut().order_invalidations(&self.memory.borrow(), self.cpu());
    }

    /// Orders this CPU's later loads: none of them has executed yet.
    pub(crate) fn order_loads(&self) {
        self.hardware.borrow_mut().order_loads(self.cpu());
    }

    /// Returns the current moment of this CPU's program. An address that depends on a value that
    /// was just read is known from here on.
    pub fn moment(&self) -> Moment {
        let cpu = self.cpu();
        self.hardware.borrow_mut().moment(&self.memory.borrow(), cpu)
    }

    /// Synchronises this CPU's context: discards the translations that it has found early. This is
    /// not a step: no other CPU can observe it, and a CPU that synchronises earlier can find more
    /// afterwards.
    pub fn synchronise(&self) {
        self.record(|| "synchronises its context".to_owned());
        self.forget_in_flight();
    }

    /// Discards the translations that this CPU has found early, as an exception does.
    pub(crate) fn forget_in_flight(&self) {
        let cpu = self.cpu();
        self.hardware.borrow_mut().synchronise(&self.memory.borrow(), cpu);
        self.observe(6);
    }

    /// Enters user mode, where the CPU may use every translation that it can find, and returns.
    pub fn stay_in_user_mode(&self) {
        self.enter_user_mode();
        self.leave_user_mode();
    }

    /// Enters user mode until [`leave_user_mode`](Self::leave_user_mode).
    pub fn enter_user_mode(&self) {
        self.step();
        self.record_as(LineKind::EntersUserMode, || "enters user mode".to_owned());
        self.forget_in_flight();
        self.hardware(|hardware, memory, cpu| hardware.set_user_mode(memory, cpu, true));
    }

    /// Returns from user mode.
    pub fn leave_user_mode(&self) {
        self.step();
        self.record_as(LineKind::LeavesUserMode, || "returns from user mode".to_owned());
        self.hardware(|hardware, memory, cpu| hardware.set_user_mode(memory, cpu, false));
        self.forget_in_flight();
    }

    /// Returns the entries that CPUs may hold of pages of a root that this CPU or another has just
    /// changed.
    pub fn stale_entries(&self, root: usize, pages: impl Fn(usize) -> bool) -> StaleEntries {
        self.hardware.borrow().stale_entries(&self.memory.borrow(), root, pages)
    }

    /// Claims that a flush of these entries is complete: from now on, a CPU in user mode that can
    /// use one is a violation.
    pub fn complete_flush(&self, stale_entries: StaleEntries) {
        self.record(|| "claims that the flush is complete".to_owned());
        self.hardware(|hardware, _, _| hardware.complete_flush(stale_entries));
    }

    /// Reuses a frame.
    pub fn reuse_frame(&self, frame: usize) {
        self.record(|| format!("reuses frame {frame}"));
        self.hardware(|hardware, _, _| hardware.reuse_frame(frame));
    }

    /// Claims that a frame was written out, or needs no writing. `was_written` is the dirty bit of
    /// its removed entry.
    pub fn write_out(&self, frame: usize, was_written: bool) {
        self.record(|| format!("claims that frame {frame} is written out"));
        self.hardware(|hardware, _, _| hardware.write_out(frame, was_written));
    }

    /// Frees a table.
    pub fn free_table(&self, table: usize) {
        self.record(|| format!("frees table {table}"));
        self.hardware(|hardware, memory, _| hardware.free_table(memory, table));
    }

    /// Frees a root.
    pub fn free_root(&self, root: usize) {
        self.record(|| format!("frees root {root}"));
        self.hardware(|hardware, memory, _| hardware.free_root(memory, root));
    }

    /// Frees the kernel's page table.
    pub fn free_kernel_table(&self) {
        self.record(|| "frees the kernel's page table".to_owned());
        self.kernel_pages(|kernel, _, _| kernel.free_table());
    }

    /// Reuses a frame of the kernel's.
    pub fn reuse_kernel_frame(&self, frame: usize) {
        self.record(|| format!("reuses kernel frame {frame}"));
        self.kernel_pages(|kernel, _, _| kernel.reuse(frame));
    }

    /// Reads a table, as a walk by software does. A violation if the table was freed.
    pub fn read_table(&self, table: usize) {
        let text = || format!("reads table {table} by software");
        self.hardware_step(text, |hardware, _, cpu| hardware.read_table(cpu, table));
    }

    /// Stops the calling CPU, or lets it run again. A CPU that is stopped walks no page table, and
    /// uses no page.
    pub fn set_stopped(&self, is_stopped: bool) {
        let what = if is_stopped { "does not run" } else { "runs again" };
        self.hardware_step(
            || what.to_owned(),
            |hardware, memory, cpu| hardware.set_stopped(memory, cpu, is_stopped),
        );
        self.set_online(!is_stopped);
    }

    /// Adds an unused frame, and returns its number.
    pub(crate) fn add_frame(&self) -> usize {
        self.hardware.borrow_mut().add_frame()
    }

    /// Sets whether the calling CPU is online. An online CPU uses the kernel's pages. An offline
    /// CPU uses only kernel pages that are never flushed.
    pub fn set_online(&self, is_online: bool) {
        self.kernel_pages(|kernel, _, cpu| kernel.set_online(cpu, is_online));
    }

    /// Sets whether the calling CPU is in user mode without interrupts for the kernel. There, it
    /// uses only the kernel page of its entry path, and pages that are never flushed.
    pub fn set_in_user(&self, is_in_user: bool) {
        self.kernel_pages(|kernel, _, cpu| kernel.set_in_user(cpu, is_in_user));
    }

    /// Announces the calling CPU's new use of spaces.
    pub fn set_use(&self, space_use: SpaceUse) {
        let (memory, cpu) = (self.memory.borrow(), self.cpu());
        self.interrupt_oracle.borrow_mut().set_use(&memory, cpu, space_use);
    }

    /// Calls `flush`, which flushes a space and waits. During the call, this CPU may interrupt only
    /// CPUs that use the space.
    pub fn flushing<R>(&self, root: usize, scope: FlushScope, flush: impl FnOnce() -> R) -> R {
        let cpu = self.cpu();
        self.interrupt_oracle.borrow_mut().begin_flush(cpu, root, scope);
        let result = flush();
        self.interrupt_oracle.borrow_mut().end_flush(cpu);
        result
    }

    /// Returns `true` if any CPU is flushing.
    pub fn is_any_flushing(&self) -> bool {
        self.interrupt_oracle.borrow().is_any_flushing()
    }

    /// Performs a step of the calling CPU on the hardware.
    pub(super) fn hardware_step(
        &self,
        text: impl FnOnce() -> String,
        f: impl FnOnce(&mut Hardware, &Memory, usize) -> Option<Violation>,
    ) {
        self.step();
        self.record(text);
        self.hardware(f);
    }

    pub(super) fn kernel_pages(
        &self,
        f: impl FnOnce(&mut KernelPages, &Memory, usize) -> Option<Violation>,
    ) {
        let found = f(&mut self.kernel_pages.borrow_mut(), &self.memory.borrow(), self.cpu());
        if let Some(violation) = found {
            self.report(violation);
        }
        self.observe(5);
    }

    pub(super) fn hardware(
        &self,
        f: impl FnOnce(&mut Hardware, &Memory, usize) -> Option<Violation>,
    ) {
        let found = f(&mut self.hardware.borrow_mut(), &self.memory.borrow(), self.cpu());
        if let Some(violation) = found {
            self.report(violation);
        }
        self.observe(4);
    }
}

fn numbers(words: &[CheckWord]) -> Vec<u32> {
    words.iter().map(CheckWord::number).collect()
}

pub(super) fn as_bits(pages: impl Fn(usize) -> bool) -> u64 {
    (0..PAGE_NUMBERS).filter(|&page| pages(page)).fold(0, |set, page| set | 1 << page)
}

/// The treatment of cached pointers to tables by an invalidation of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkCaches {
    /// The invalidation may leave them.
    Keep,
    /// The invalidation removes them.
    Invalidate,
}
