//! What makes entries old: stores into page tables, and frames that get new owners.

use std::sync::atomic::Ordering;

use super::{Event, Host, PAGE_BYTES, Sanitizer};
use crate::arch::Context;
use crate::cpu::{Changed, Cpu, mode};
use crate::frames;
use crate::report::{Act, Change, Deed};
use crate::shadow::Entry;
use crate::speculation::Changes;
use crate::translation::{Access, Kind, Pointer, Slot, Translation};

/// User pages up to this size are listed by frame. So are small kernel pages, and no larger ones:
/// they map all of memory.
const LISTED_MAX: u64 = 1 << 30;

/// Returns `true` if the frames of a page of this size are listed.
pub(super) fn is_listed(is_user: bool, bytes: u64) -> bool {
    bytes == PAGE_BYTES || is_user && bytes <= LISTED_MAX
}

/// What the page tables have of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// All that it allows.
    Kept,
    /// The same frame, for fewer accesses or in smaller pages.
    Restricted,
    /// Nothing, or another frame.
    Gone,
}

impl<H: Host> Sanitizer<H> {
    /// CPUs may hold entries without a use that the tables do not have any more.
    fn speculate(&self, change: Change, found: &Changes) -> Vec<Changed> {
        let mut changed = Vec::new();
        if found.is_new {
            self.clear_all_fast();
        }
        if found.removed.is_empty() {
            return changed;
        }
        for (index, cpu) in self.cpus[..self.count()].iter().enumerate() {
            let Some(cpu) = cpu.get() else { continue };
            let mut state = cpu.lock();
            for removed in &found.removed {
                if let Some(tag) = state.speculate(removed, change) {
                    let (slot, frame) = (removed.slot, removed.frame);
                    let is_page = slot.kind == Kind::Page && is_listed(true, slot.bytes());
                    self.frames.hold(index, frame, if is_page { slot.bytes() } else { PAGE_BYTES });
                    changed.push(Changed { cpu: index, tag, slot, frame, change });
                }
            }
        }
        changed
    }

    /// A store into a page table: entries that were read from its words may be old now.
    pub(super) fn store_into_table(&self, event: Event, physical: u64, bytes: u64) {
        let at = self.now(event.pc);
        let change = Change { at, cpu: event.cpu };
        let table = physical & !(PAGE_BYTES - 1);
        let mut found = Changes::default();
        let words = (physical & !7..physical + bytes).step_by(8);
        self.look(|tables, look| {
            words.clone().for_each(|source| tables.store(look, source, &mut found));
        });
        let mut changed = self.speculate(change, &found);
        for index in self.frames.holders(physical, self.count()) {
            let Some(cpu) = self.cpu(index) else { continue };
            let mut state = cpu.lock();
            if !state.tlb.uses_table(table) {
                continue;
            }
            let context = state.context;
            for source in words.clone() {
                state.tlb.change_source(source, |tag, slot, entry| {
                    let is_old = self.standing(&context, slot, entry) != Standing::Kept;
                    if is_old && entry.change.is_none() {
                        entry.change = Some(change);
                        let (slot, frame) = (*slot, entry.frame);
                        changed.push(Changed { cpu: index, tag, slot, frame, change });
                    } else if !is_old && entry.act.is_none() {
                        entry.change = None;
                    }
                });
            }
        }
        if !changed.is_empty() {
            self.note_callers(event.cpu, at);
            self.lose(&changed);
        }
        // Without entries, the frame may have become anything. Another CPU may walk it now.
        if !self.is_used_as_table(table) {
            self.frames.is_no_table(table);
            if self.is_used_as_table(table) {
                self.frames.becomes_table(table);
            }
        }
        if let Some(cpu) = self.cpu(event.cpu) {
            let mut state = cpu.lock();
            state.counts.table_stores += 1;
            if self.options.settles {
                state.changed.append(&mut changed);
            }
        }
    }

    /// Returns `true` if a CPU holds entries of this table, or a pointer to it.
    fn is_used_as_table(&self, table: u64) -> bool {
        let mut holders = self.frames.holders(table, self.count());
        self.tables.as_ref().is_some_and(|tables| tables.has(table))
            || holders.any(|cpu| self.cpu(cpu).is_some_and(|cpu| cpu.lock().tlb.uses_table(table)))
    }

    /// What the page tables have of an entry. The root of a kernel page may be gone: each root has
    /// the pages of the kernel.
    fn standing(&self, context: &Context, slot: &Slot, entry: &Entry) -> Standing {
        let mut half = context.halves[(slot.start >> 63) as usize];
        if slot.start >> 63 == 0 {
            half.root = entry.root;
        }
        let (mut pointers, read) = (Default::default(), |at| self.host.read(at));
        let found = self.arch.walk_from(&half, 0, slot.start, &read, &mut pointers);
        let is_pointer = |found: &Pointer| (found.shift, found.table) == (slot.shift, entry.frame);
        match (slot.kind, found) {
            (Kind::Page, Some(found)) => {
                let within = slot.start & ((1 << found.shift) - 1);
                match found.frame + within == entry.frame {
                    true if found.shift >= slot.shift && found.access.has(entry.access) => {
                        Standing::Kept
                    }
                    true => Standing::Restricted,
                    false => Standing::Gone,
                }
            }
            (Kind::Table, _) if pointers.iter().any(is_pointer) => Standing::Kept,
            _ => Standing::Gone,
        }
    }

    /// Pages have lost a mapping. If new owners are inferred, the kernel's stores into their frames
    /// are events from now on.
    fn lose(&self, changed: &[Changed]) {
        let mut new = Vec::new();
        for Changed { slot, frame, .. } in changed {
            if self.options.infers
                && slot.kind == Kind::Page
                && is_listed(slot.start >> 63 == 0, slot.bytes())
            {
                for frame in (*frame..frame + slot.bytes()).step_by(PAGE_BYTES as usize) {
                    self.gone.forget(frame);
                    new.extend(self.frames.becomes_gone(frame).then_some(frame));
                }
            }
        }
        self.observe_stores(&new);
    }

    /// The kernel stores into a frame that has lost a mapping, by another one. A frame of which it
    /// has stored every word has a new owner.
    pub(super) fn store_into_gone(&self, event: Event, physical: u64, bytes: u64) {
        if self.gone.store(physical, bytes) {
            self.infer(event, physical & !(PAGE_BYTES - 1), Deed::Overwritten);
        }
    }

    /// A walk has found page tables: as pages, these frames are lost.
    pub(super) fn infer_from_tables(&self, event: Event, new_tables: &[u64]) {
        for &table in new_tables.iter().filter(|table| self.frames.is_gone(**table)) {
            self.infer(event, table, Deed::Walked);
        }
    }

    /// A walk has found a page of user mode: its frame is not a page table, and belongs to this
    /// mapping if the kernel has stored into it since another one was lost.
    pub(super) fn infer_from_page(&self, event: Event, found: &Translation, physical: u64) {
        let frame = physical & !(PAGE_BYTES - 1);
        if found.access.has(Access::USER)
            && (self.frames.is_table(frame)
                || self.frames.is_gone(frame) && self.gone.is_stored(frame))
        {
            self.infer(event, frame, Deed::Mapped);
        }
    }

    /// A frame has a new owner, by what the kernel does with it.
    fn infer(&self, event: Event, frame: u64, deed: Deed) {
        let act = Act { deed, at: self.now(event.pc), cpu: event.cpu };
        self.gone.forget(frame);
        self.frames.is_not_gone(frame);
        self.reused.fetch_add(1, Ordering::Relaxed);
        self.change_owner(frame, act);
    }

    /// Frames get a new owner. A page of the kernel is concerned if its page table has changed: the
    /// kernel keeps all of memory mapped.
    pub fn reuse(&self, event: Event, first: u64, frames: u64, hook: usize) {
        let act = Act { deed: Deed::Reused(hook), at: self.now(event.pc), cpu: event.cpu };
        if first >= frames::LIMIT {
            let pc = event.pc;
            return self.refuse(|| format!("the hook at {pc:#x} names a frame at {first:#x}"));
        }
        self.reused.fetch_add(frames, Ordering::Relaxed);
        let first = first & !(PAGE_BYTES - 1);
        for frame in (0..frames).map(|number| first + number * PAGE_BYTES) {
            let mut found = Changes::default();
            self.look(|tables, look| tables.free(look, frame, &mut found));
            self.speculate(Change { at: act.at, cpu: act.cpu }, &found);
            self.change_owner(frame, act);
        }
    }

    /// Marks the entries that name the frame. An inferred act concerns only those that the page
    /// tables do not have any more.
    fn change_owner(&self, frame: u64, act: Act) {
        let mut is_noted = false;
        for index in self.frames.holders(frame, self.count()) {
            let Some(cpu) = self.cpu(index) else { continue };
            let mut state = cpu.lock();
            let context = state.context;
            let is_concerned = |_, slot: &Slot, entry: &Entry| {
                let is_user = entry.access.has(Access::USER) && slot.start >> 63 == 0;
                let is_concerned = match (slot.kind, act.deed) {
                    (Kind::Page, Deed::Reused(_)) => is_user || entry.change.is_some(),
                    (Kind::Table, Deed::Reused(_)) => slot.start >> 63 == 0,
                    (kind, _) => {
                        (kind == Kind::Page || slot.start >> 63 == 0)
                            && entry.change.is_some()
                            && self.standing(&context, slot, entry) == Standing::Gone
                    }
                };
                (is_concerned && self.is_wanted(slot, entry.is_unused, act)).then_some(act)
            };
            let used = state.tlb.mark_frame(frame, is_concerned);
            match used.max(state.unused.mark_frame(frame, is_concerned)) {
                // The bit may also stand for entries that were read from the frame.
                None if !self.frames.is_table(frame) => {
                    self.frames.release(index, frame, self.count());
                }
                None | Some(0) => {}
                Some(_) => {
                    if !std::mem::replace(&mut is_noted, true) {
                        self.note_callers(act.cpu, act.at);
                    }
                    self.attend(index, cpu);
                }
            }
        }
    }

    fn is_wanted(&self, slot: &Slot, is_unused: bool, act: Act) -> bool {
        self.options.modes.contains(&mode(slot, act, is_unused))
    }

    fn attend(&self, index: usize, cpu: &Cpu) {
        cpu.attention.store(true, Ordering::SeqCst);
        cpu.clear_fast();
        self.host.attend(index);
    }

    /// The kernel relies on all changes of page tables that this CPU has made: their flushes are
    /// complete.
    pub fn settle(&self, event: Event, hook: usize) {
        let act = Act { deed: Deed::Settled(hook), at: self.now(event.pc), cpu: event.cpu };
        self.settled.fetch_add(1, Ordering::Relaxed);
        let Some(cpu) = self.cpu(event.cpu) else { return };
        let changed = std::mem::take(&mut cpu.lock().changed);
        for Changed { cpu: index, tag, slot, change, .. } in changed {
            let Some(cpu) = self.cpu(index) else { continue };
            let mut state = cpu.lock();
            let is_marked = self.is_wanted(&slot, false, act)
                && state.tlb.mark(tag, &slot, &change, act)
                || self.is_wanted(&slot, true, act) && state.unused.mark(tag, &slot, &change, act);
            if is_marked {
                self.note_callers(act.cpu, act.at);
                self.attend(index, cpu);
            }
        }
    }
}
