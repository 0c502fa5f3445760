//! What a kernel does with the hardware, as seen by what is checked: each a step, before which all
//! others may do theirs.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed};

use shootdown::Word;

use super::World;
use crate::flush_scope::{FlushScope, Use};
use crate::hardware::{
    Access, Entry, Hardware, Keeps, Moment, Outdated, PAGE_NUMBERS, PAGES, Reach, SLOTS,
    Translation, What, Wrong,
};
use crate::hash::mix;
use crate::history::LineKind;
use crate::kernel_pages::KernelPages;
use crate::memory::Memory;
use crate::world::CheckWord;

/// A root, with a table below each of its entries and a frame in each page.
#[derive(Debug)]
pub struct PageTables {
    root: usize,
    slots: Vec<CheckWord>,
    tables: Vec<(usize, Vec<CheckWord>)>,
}

impl PageTables {
    /// Full ones: every page is mapped to a frame of its own, and can be written.
    #[must_use]
    pub fn new(world: &World) -> Self {
        let words = |count, name: &dyn Fn(usize) -> String| -> Vec<_> {
            (0..count).map(|index| CheckWord::named(0, || name(index))).collect()
        };
        let number = world.hardware.borrow().root_count();
        let slots = words(SLOTS, &|slot| format!("entry {slot} of root {number}"));
        let root = world.hardware.borrow_mut().add_root(numbers(&slots));
        let tables = (0..SLOTS).map(|slot| {
            let entries =
                words(PAGES, &|index| format!("page {} of space {root}", slot * PAGES + index));
            for entry in &entries {
                let frame = world.hardware.borrow_mut().add_frame();
                entry.store(Entry::to(frame).writable().0, Relaxed);
            }
            let table = world.hardware.borrow_mut().add_table(numbers(&entries));
            slots[slot].store(Entry::to(table).0, Relaxed);
            (table, entries)
        });
        let tables = tables.collect();
        Self { root, slots, tables }
    }

    /// The number of the root.
    #[must_use]
    pub const fn root(&self) -> usize {
        self.root
    }

    /// The entry of a page, as a walker of this CPU's program finds it.
    #[must_use]
    pub fn entry(&self, page: usize) -> Entry {
        Entry(self.word(page).load(Acquire))
    }

    /// Changes the entry of a page, and returns what it was: by one locked operation, as kernels do
    /// because hardware may be marking it; with release and acquire, as the engine asks of them,
    /// for others go by what they find there.
    pub fn swap(&self, page: usize, entry: Entry) -> Entry {
        Entry(self.word(page).swap(entry.0, AcqRel))
    }

    /// Changes the entry of a page if it is still that one. Returns whether it was.
    pub fn replace(&self, page: usize, from: Entry, to: Entry) -> bool {
        self.word(page).compare_exchange(from.0, to.0, AcqRel, Acquire).is_ok()
    }

    /// Changes the entry of a page by a store.
    pub fn store(&self, page: usize, entry: Entry) {
        self.store_in_order(page, entry, Relaxed);
    }

    /// The same, in an order with stores before it.
    pub fn store_in_order(&self, page: usize, entry: Entry, order: Ordering) {
        self.word(page).store(entry.0, order);
    }

    /// Takes a table out of the root, with whatever is in it, and returns its number.
    pub fn unhook(&self, slot: usize) -> Option<usize> {
        let entry = Entry(self.slots[slot].swap(Entry::EMPTY.0, Relaxed));
        entry.is_present().then(|| entry.target())
    }

    /// The same, unless there is none, or it is another CPU's by then: as kernels do that may find
    /// a large page there instead.
    pub fn take_table(&self, slot: usize) -> Option<usize> {
        let entry = Entry(self.slots[slot].load(Acquire));
        let is_taken = entry.is_table() && self.replace_slot(slot, entry, Entry::EMPTY, Relaxed);
        is_taken.then(|| entry.target())
    }

    /// Takes a large page out of the root, and returns its frame, if it is there.
    pub fn take_large(&self, slot: usize) -> Option<usize> {
        let entry = Entry(self.slots[slot].load(Acquire));
        let is_taken = entry.is_large() && self.replace_slot(slot, entry, Entry::EMPTY, AcqRel);
        is_taken.then(|| entry.target())
    }

    /// Puts a large page into the root, where nothing is.
    pub fn map_large(&self, slot: usize, frame: usize) {
        self.slots[slot].swap(Entry::to(frame).writable().large().0, AcqRel);
    }

    fn replace_slot(&self, slot: usize, from: Entry, to: Entry, order: Ordering) -> bool {
        self.slots[slot].compare_exchange(from.0, to.0, order, Acquire).is_ok()
    }

    /// Whether the root still has the table that a page is in.
    #[must_use]
    pub fn is_hooked(&self, page: usize) -> bool {
        Entry(self.slots[page / PAGES].load(Acquire)).is_table()
    }

    /// Puts a table into the root once more.
    pub fn hook(&self, slot: usize, order: Ordering) {
        self.slots[slot].store(Entry::to(self.tables[slot].0).0, order);
    }

    fn word(&self, page: usize) -> &CheckWord {
        &self.tables[page / PAGES].1[page % PAGES]
    }
}

/// The kernel's own page table: [`SLOTS`] pages, each with a frame of the same number.
#[derive(Debug)]
pub struct KernelTable(Vec<CheckWord>);

impl KernelTable {
    /// A full one. There is one at most.
    #[must_use]
    pub fn new(world: &World) -> Self {
        let page =
            |page| CheckWord::named(Entry::to(page).writable().0, || format!("kernel page {page}"));
        let words: Vec<_> = (0..SLOTS).map(page).collect();
        world.kernel_pages(|kernel, memory| kernel.set_words(memory, numbers(&words)));
        Self(words)
    }

    /// Changes the entry of a page, and returns what it was.
    pub fn swap(&self, page: usize, entry: Entry) -> Entry {
        Entry(self.0[page].swap(entry.0, AcqRel))
    }
}

impl World {
    /// Loads a root under a tag, or the kernel's.
    pub fn load_root(&self, root: Option<usize>, tag: u16, keeps: Keeps) {
        self.step();
        self.say(|| match root {
            Some(root) => {
                let kept = if keeps == Keeps::Nothing { "drops what" } else { "keeps what" };
                format!("loads space {root} under tag {tag}, {kept} is there of it")
            }
            None => "loads the kernel's root".to_owned(),
        });
        let cpu = self.cpu();
        self.hardware(|hardware, memory| hardware.load(memory, cpu, root, tag, keeps));
    }

    /// Drops pages of the space that is loaded.
    pub fn drop_pages(&self, pages: impl Fn(usize) -> bool, upper: Upper) {
        self.step();
        self.say(|| {
            let pages: Vec<_> = (0..PAGE_NUMBERS).filter(|&page| pages(page)).collect();
            let tables = if upper == Upper::Dropped { ", and the way to them" } else { "" };
            format!("drops pages {pages:?}{tables}")
        });
        let (cpu, upper) = (self.cpu(), upper == Upper::Dropped);
        self.hardware(|hardware, memory| hardware.drop_pages(memory, cpu, &pages, upper));
    }

    /// Drops all of a tag, or everything.
    pub fn drop_tag(&self, tag: Option<u16>) {
        self.step();
        self.say(|| match tag {
            Some(tag) => format!("drops all of tag {tag}"),
            None => "drops everything".to_owned(),
        });
        let cpu = self.cpu();
        self.hardware(|hardware, memory| hardware.drop_tag(memory, cpu, tag));
        if tag.is_none() {
            self.kernel_pages(|kernel, memory| kernel.drop_all(memory, cpu));
        }
    }

    /// Drops pages of the kernel's own, under every tag.
    pub fn drop_kernel_pages(&self, pages: impl Fn(usize) -> bool) {
        self.step();
        self.say(|| "drops kernel pages".to_owned());
        let cpu = self.cpu();
        self.kernel_pages(|kernel, memory| kernel.drop_pages(memory, cpu, &pages));
    }

    /// Begins to have all CPUs drop pages of whatever they have loaded, and the way to them: it is
    /// done when this CPU [completes](Self::complete_broadcasts) it, and maybe no sooner.
    pub fn issue_broadcast(&self, pages: impl Fn(usize) -> bool) {
        self.issue(Reach::Everybody, pages);
    }

    /// The same of all CPUs, or of this one alone.
    pub fn issue(&self, reach: Reach, pages: impl Fn(usize) -> bool) {
        self.issue_what(reach, What::Pages(as_bits(pages)));
    }

    /// The same of all of a tag.
    pub fn issue_tag(&self, reach: Reach, tag: u16) {
        self.issue_what(reach, What::Tag(tag));
    }

    /// Begins to have all CPUs drop pages under a tag, and the way to them if that is asked for.
    pub fn broadcast_under(&self, tag: u16, pages: impl Fn(usize) -> bool, upper: Upper) {
        let (pages, upper) = (as_bits(pages), upper == Upper::Dropped);
        self.issue_what(Reach::Everybody, What::PagesUnder { tag, pages, upper });
    }

    fn issue_what(&self, reach: Reach, what: What) {
        self.step();
        self.say(|| match reach {
            Reach::Own => format!("issues an invalidation of {what}"),
            Reach::Everybody => format!("broadcasts an invalidation of {what}"),
        });
        let cpu = self.cpu();
        self.hardware(|hardware, _| {
            hardware.issue(cpu, reach, what);
            None
        });
    }

    /// The same for pages of the kernel's own.
    pub fn broadcast_kernel(&self, pages: impl Fn(usize) -> bool) {
        self.step();
        self.say(|| "broadcasts an invalidation of kernel pages".to_owned());
        let cpu = self.cpu();
        self.kernel_pages(|kernel, _| {
            kernel.issue_broadcast(cpu, &pages);
            None
        });
    }

    /// Returns when what *this* CPU has broadcast, or issued, is done.
    pub fn complete_broadcasts(&self) {
        self.step();
        self.say(|| "completes its invalidations".to_owned());
        let cpu = self.cpu();
        self.hardware(|hardware, memory| hardware.complete_issued(memory, cpu));
        self.kernel_pages(|kernel, memory| kernel.complete_broadcasts(memory, cpu));
        // It waits for loads, and for stores that are visible, too: `dsb ish`.
        self.publish_tables();
        self.order_invalidations();
    }

    /// Keeps from now on what CPUs may have found early: for programs that ask for
    /// [translations](Self::translations).
    pub fn track_in_flight(&self) {
        self.hardware.borrow_mut().track_in_flight(&self.memory.borrow());
    }

    /// What an access of this CPU to a page may find, if its address was known at some moment: at
    /// present, for what comes next is no step of its own.
    ///
    /// # Panics
    ///
    /// If that is not [kept](Self::track_in_flight).
    pub fn translations(
        &self,
        page: usize,
        since: Moment,
        access: Access,
    ) -> BTreeSet<Translation> {
        let found = self.hardware.borrow().translations(self.cpu(), page, since, access);
        assert!(!found.is_empty(), "there is an entry, or a fault");
        self.see(found.iter().fold(5, |hash, found| mix(hash, found.bits())));
        found
    }

    /// This CPU's page-table writes are visible to walkers before its later invalidations.
    pub(crate) fn publish_tables(&self) {
        let cpu = self.cpu();
        self.hardware.borrow_mut().publish(cpu);
        self.kernel_pages.borrow_mut().publish(cpu);
    }

    /// This CPU's later invalidations come after what it has done so far.
    pub(crate) fn order_invalidations(&self) {
        self.kernel_pages.borrow_mut().order_invalidations(&self.memory.borrow(), self.cpu());
    }

    /// This CPU's loads behind this are not done yet.
    pub(crate) fn order_loads(&self) {
        self.hardware.borrow_mut().order_loads(self.cpu());
    }

    /// The present moment of this CPU's program: an address that depends on what it has just read
    /// is known from here on.
    pub fn moment(&self) -> Moment {
        let cpu = self.cpu();
        self.hardware.borrow_mut().moment(&self.memory.borrow(), cpu)
    }

    /// This CPU synchronises its context: what it has found early is forgotten. Nobody else can see
    /// that, and who does it sooner finds more afterwards, so it is no step.
    pub fn synchronise(&self) {
        self.say(|| "synchronises its context".to_owned());
        self.forget_in_flight();
    }

    /// The same, as a part of an exception.
    pub(crate) fn forget_in_flight(&self) {
        let cpu = self.cpu();
        self.hardware.borrow_mut().synchronise(&self.memory.borrow(), cpu);
        self.see(6);
    }

    /// Runs in user mode for a while, and uses whatever it likes.
    pub fn stay_in_user_mode(&self) {
        let cpu = self.cpu();
        self.step();
        self.say_as(LineKind::EntersUserMode, || "goes to user mode".to_owned());
        self.forget_in_flight();
        self.hardware(|hardware, _| hardware.set_user_mode(cpu, true));
        self.step();
        self.say_as(LineKind::LeavesUserMode, || "comes back from user mode".to_owned());
        self.hardware(|hardware, _| hardware.set_user_mode(cpu, false));
        self.forget_in_flight();
    }

    /// What CPUs may hold of pages of a root that have just been changed, by this CPU or another.
    pub fn outdated(&self, root: usize, pages: impl Fn(usize) -> bool) -> Outdated {
        self.hardware.borrow().outdated(&self.memory.borrow(), root, pages)
    }

    /// A flush of that is said to be done.
    pub fn flush_is_done(&self, outdated: Outdated) {
        self.say(|| "takes the flush to be done".to_owned());
        self.hardware(|hardware, _| hardware.flush_is_done(outdated));
    }

    /// A frame is somebody else's from now on.
    pub fn reuse_frame(&self, frame: usize) {
        self.say(|| format!("gives frame {frame} away"));
        self.hardware(|hardware, _| hardware.reuse_frame(frame));
    }

    /// What is in a frame was written out, or needs no writing.
    pub fn write_out(&self, frame: usize, was_written: bool) {
        self.say(|| format!("takes frame {frame} to be stored"));
        self.hardware(|hardware, _| hardware.write_out(frame, was_written));
    }

    /// A table is free.
    pub fn free_table(&self, table: usize) {
        self.say(|| format!("frees table {table}"));
        self.hardware(|hardware, memory| hardware.free_table(memory, table));
    }

    /// A root is free.
    pub fn free_root(&self, root: usize) {
        self.say(|| format!("frees root {root}"));
        self.hardware(|hardware, memory| hardware.free_root(memory, root));
    }

    /// A frame of the kernel's is somebody else's from now on.
    pub fn reuse_kernel_frame(&self, frame: usize) {
        self.say(|| format!("gives frame {frame} of the kernel away"));
        self.kernel_pages(|kernel, _| kernel.reuse(frame));
    }

    /// A device translates by a root under a tag from now on, and uses all that it finds. It is no
    /// CPU: broadcasts reach it, and interrupts do not. Returns `false` if it does so already.
    pub fn attach_device(&self, root: usize, tag: u16) -> bool {
        self.step();
        let is_free = !self.hardware.borrow().has_device();
        self.see(u64::from(is_free));
        if is_free {
            self.say(|| format!("has a device translate by space {root} under tag {tag}"));
            self.hardware(|hardware, memory| hardware.attach_device(memory, root, tag));
        }
        is_free
    }

    /// The device stops, and drops what it holds.
    pub fn detach_device(&self) {
        self.step();
        self.say(|| "has the device stop".to_owned());
        self.hardware(|hardware, _| {
            hardware.detach_device();
            None
        });
    }

    /// A frame that nothing is in yet.
    pub(crate) fn add_frame(&self) -> usize {
        self.hardware.borrow_mut().add_frame()
    }

    /// The calling CPU is online from now on, and uses the kernel's pages; or it is not, and uses
    /// none but those that are never flushed.
    pub fn set_online(&self, is_online: bool) {
        let cpu = self.cpu();
        self.kernel_pages(|kernel, _| kernel.set_online(cpu, is_online));
    }

    /// The calling CPU does something else with spaces from now on.
    pub fn uses(&self, what: Use) {
        let (memory, cpu) = (self.memory.borrow(), self.cpu());
        self.flush_scope.borrow_mut().changes(&memory, cpu, what);
    }

    /// Flushes a space, and waits for it: meanwhile this CPU interrupts none but those that use it.
    pub fn flushing<R>(&self, root: usize, scope: FlushScope, flush: impl FnOnce() -> R) -> R {
        let cpu = self.cpu();
        self.flush_scope.borrow_mut().begin_flush(cpu, root, scope);
        let result = flush();
        self.flush_scope.borrow_mut().end_flush(cpu);
        result
    }

    /// Whether anybody flushes.
    #[must_use]
    pub fn is_any_flushing(&self) -> bool {
        self.flush_scope.borrow().is_any_flushing()
    }

    fn kernel_pages(&self, f: impl FnOnce(&mut KernelPages, &Memory) -> Option<Wrong>) {
        let found = f(&mut self.kernel_pages.borrow_mut(), &self.memory.borrow());
        if let Some(wrong) = found {
            self.wrong(wrong);
        }
        self.see(5);
    }

    fn hardware(&self, f: impl FnOnce(&mut Hardware, &Memory) -> Option<Wrong>) {
        let found = f(&mut self.hardware.borrow_mut(), &self.memory.borrow());
        if let Some(wrong) = found {
            self.wrong(wrong);
        }
        self.see(4);
    }
}

fn numbers(words: &[CheckWord]) -> Vec<u32> {
    words.iter().map(CheckWord::number).collect()
}

fn as_bits(pages: impl Fn(usize) -> bool) -> u64 {
    (0..PAGE_NUMBERS).filter(|&page| pages(page)).fold(0, |set, page| set | 1 << page)
}

/// Whether what is cached of upper levels goes, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upper {
    /// It may stay.
    Kept,
    /// It goes.
    Dropped,
}
