//! Accesses and fetches: the entries that they use and fill.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, OnceLock};

use smallvec::SmallVec;

use super::owners::is_listed;
use super::{Event, Host, PAGE_BYTES, PAGE_SHIFT, Sanitizer};
use crate::arch::Context;
use crate::cpu::{Cpu, State, Use};
use crate::frames;
use crate::translation::{Access, Kind, Slot, Translation};

/// The result of a walk.
#[derive(Debug, Default)]
struct Filled {
    /// The translation and the physical address, if the page tables still have them.
    found: Option<(Translation, u64)>,
    /// The frames that are now known to be page tables.
    new_tables: NewTables,
}

type NewTables = SmallVec<[u64; 4]>;
/// For more frames than these, the whole cache is cleared: the same work as looking for each.
const OBSERVED_MAX: usize = 32;

impl<H: Host> Sanitizer<H> {
    /// Returns `true` if this use of the address needs no call of [`access`](Self::access).
    #[inline]
    pub fn is_fast(&self, cpu: usize, address: u64, wanted: Use) -> bool {
        self.cpu(cpu).is_none_or(|cpu| cpu.is_fast(address, wanted))
    }

    /// A load or store of this many bytes that was executed.
    ///
    /// The page tables are read after the access. If another CPU has changed them in between, the
    /// entry is the new one, which the CPU may hold as well.
    pub fn access(&self, event: Event, address: u64, bytes: u64, wanted: Use) {
        let Some(cpu) = self.cpu(event.cpu) else { return };
        let address = self.arch.canonical(address);
        if wanted == Use::Store
            && let Some(physical) = cpu.gone_at(address)
            && self.frames.is_gone_page(physical)
        {
            return self.store_into_gone(event, physical, bytes);
        }
        let state = cpu.lock();
        if !state.context.is_on {
            return;
        }
        let used = self.use_entry(event, cpu, state, (address, wanted));
        if wanted == Use::Store
            && let Some((physical, access)) = used
        {
            if self.frames.is_table(physical) {
                self.store_into_table(event, physical, bytes);
            } else if self.frames.is_gone(physical) && !access.has(Access::USER) {
                self.store_into_gone(event, physical, bytes);
            }
        }
    }

    /// Before a CPU executes a block: on another page than the last block, in another mode, or
    /// after [`Host::attend`].
    pub fn fetch(&self, event: Event) {
        let Some(cpu) = self.cpu(event.cpu) else { return };
        if cpu.is_fast(event.pc, Use::Fetch) {
            return;
        }
        let address = self.arch.canonical(event.pc);
        let mut state = cpu.lock();
        if !state.context.is_on {
            return;
        }
        if event.in_user_mode {
            cpu.ran_user_code.store(true, Ordering::Relaxed);
        }
        if cpu.attention.load(Ordering::SeqCst) {
            self.report_possible(event, cpu, &mut state);
        }
        self.use_entry(event, cpu, state, (address, Use::Fetch));
    }

    /// Uses the entry that the CPU holds for an address, or fills one. An entry that does not allow
    /// the use is removed: the CPU has walked again, since the access was executed.
    fn use_entry(
        &self,
        event: Event,
        cpu: &Cpu,
        mut state: MutexGuard<'_, State>,
        (address, wanted): (u64, Use),
    ) -> Option<(u64, Access)> {
        let filled = match state.tlb.find(state.context.tag, address) {
            Some((tag, slot, entry)) if entry.access.has(wanted.needs()) => {
                let physical = entry.frame + (address - slot.start);
                match entry.act {
                    None => self.allow_fast(cpu, (address, wanted), physical, entry.access),
                    Some(act) if !entry.is_reported => {
                        state.tlb.set_reported(tag, &slot);
                        let place = (event.cpu, self.now(event.pc), event.in_user_mode, true);
                        self.report(state.report(place, (tag, &slot, &entry, act)));
                    }
                    Some(_) => {}
                }
                return Some((physical, entry.access));
            }
            refused => {
                if let Some((tag, slot, _)) = refused {
                    state.tlb.remove(tag, &slot);
                }
                self.fill(event, cpu, &mut state, (address, wanted))
            }
        };
        drop(state);
        self.observe_stores(&filled.new_tables);
        if self.options.infers {
            self.infer_from_tables(event, &filled.new_tables);
        }
        let (found, physical) = filled.found?;
        if self.options.infers {
            self.infer_from_page(event, &found, physical);
        }
        Some((physical, found.access))
    }

    /// Lets later uses of the address's 4 KiB pass, except stores that are events. The caller has
    /// the lock.
    fn allow_fast(&self, cpu: &Cpu, (address, wanted): (u64, Use), physical: u64, access: Access) {
        if wanted != Use::Store || !self.frames.is_observed(physical) {
            cpu.set_fast(address, wanted, physical >> 12 << 12);
        } else if self.frames.is_gone_page(physical) && !access.has(Access::USER) {
            cpu.set_gone(address, physical);
        }
    }

    /// Reports the marked entries that the CPU could use now: in user mode the pages of user mode,
    /// and in any mode pointers to tables of user addresses, which the CPU may follow by itself.
    fn report_possible(&self, event: Event, cpu: &Cpu, state: &mut State) {
        let at = self.now(event.pc);
        let kinds: &[Kind] =
            if event.in_user_mode { &[Kind::Table, Kind::Page] } else { &[Kind::Table] };
        let mut found = Vec::new();
        let tag = state.context.tag;
        for tlb in [&mut state.tlb, &mut state.unused] {
            tlb.report_pending(tag, kinds, |tag, slot, entry| {
                found.extend(entry.act.map(|act| (tag, *slot, *entry, act)));
            });
        }
        // The order of a hash table is another in each run.
        found.sort_by_key(|(_, slot, entry, _)| (slot.start, slot.shift, entry.filled.time));
        for (tag, slot, entry, act) in &found {
            let place = (event.cpu, at, event.in_user_mode, false);
            self.report(state.report(place, (*tag, slot, entry, *act)));
        }
        cpu.attention.store(state.pending() != 0, Ordering::SeqCst);
    }

    /// Keeps the translation of an address, as the page tables have it now.
    fn fill(
        &self,
        event: Event,
        cpu: &Cpu,
        state: &mut State,
        (address, wanted): (u64, Use),
    ) -> Filled {
        let read = |address| self.host.read(address);
        let context = state.context;
        let found = self.arch.walk(&context, address, &read);
        let Some(found) = found.filter(|found| found.access.has(wanted.needs())) else {
            // Another CPU has removed the translation since the access.
            state.counts.not_in_tables += 1;
            return Filled::default();
        };
        state.counts.fills += 1;
        let half = &context.halves[(address >> 63) as usize];
        state.tlb.fill((context.tag, half.root), address, &found, self.now(event.pc));
        let new_tables = self.hold(event.cpu, &context, address, &found);
        let slot = Slot::covering(Kind::Page, found.shift, address);
        // A store into the tables after the walk may have found no bit of this CPU.
        if self.arch.walk(&context, address, &read) != Some(found) {
            state.tlb.remove(found.tag, &slot);
            state.counts.not_in_tables += 1;
            return Filled { found: None, new_tables };
        }
        let physical = found.frame + (address - slot.start);
        self.allow_fast(cpu, (address, wanted), physical, found.access);
        Filled { found: Some((found, physical)), new_tables }
    }

    /// Records the frames that a translation names and was read from. Returns the new tables.
    fn hold(&self, cpu: usize, context: &Context, address: u64, found: &Translation) -> NewTables {
        let bytes = 1 << found.shift;
        let is_user = found.access.has(Access::USER);
        let half = &context.halves[(address >> 63) as usize];
        if half.page_shift != PAGE_SHIFT {
            self.refuse(|| "the kernel's smallest page is not one of 4 KiB".to_owned());
        }
        let is_listed = is_listed(is_user, bytes);
        if found.entry >= frames::LIMIT || is_listed && found.frame >= frames::LIMIT {
            self.refuse(|| format!("the guest uses memory at {:#x}", found.frame));
        }
        if is_listed {
            self.frames.hold(cpu, found.frame, bytes);
        }
        for pointer in found.pointers() {
            self.frames.hold(cpu, pointer.table, PAGE_BYTES);
            self.frames.hold(cpu, pointer.entry & !(PAGE_BYTES - 1), PAGE_BYTES);
        }
        self.frames.hold(cpu, found.entry & !(PAGE_BYTES - 1), PAGE_BYTES);
        // After the bits of this CPU: see `store_into_table`.
        let below = found.pointers().map(|pointer| pointer.table);
        let tables = std::iter::once(half.root).chain(below);
        tables.filter(|table| self.frames.becomes_table(*table)).collect()
    }

    /// Makes the next store into each of these frames an event.
    pub(super) fn observe_stores(&self, frames: &[u64]) {
        if frames.len() > OBSERVED_MAX {
            return self.clear_all_fast();
        }
        for cpu in self.cpus[..self.count()].iter().filter_map(OnceLock::get) {
            if frames.is_empty() {
                return;
            }
            let _state = cpu.lock();
            cpu.observe_stores(frames);
        }
    }

    /// Makes the next store of every CPU an event: it may be one into a page table.
    pub(super) fn clear_all_fast(&self) {
        for cpu in self.cpus[..self.count()].iter().filter_map(OnceLock::get) {
            let _state = cpu.lock();
            cpu.clear_fast();
        }
    }
}
