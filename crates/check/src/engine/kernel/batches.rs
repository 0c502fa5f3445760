//! Operations on several spaces that flush together: batches, and joined flushes.

use shootdown::{Batch, Space, StaleWrites};

use super::free_list::{FreeList, Freed};
use super::{InFlight, Kernel, KernelSpace, Wait, page};
use crate::hardware::Entry;
use crate::interrupt_oracle::FlushScope;
use crate::machine::with_machine;
use crate::sometimes::Sometimes;

impl<const LIFETIME: u8, const WORDS: usize> Kernel<'_, LIFETIME, WORDS> {
    /// Unmaps a page of each space, and flushes all of them in one batch.
    pub(super) fn reclaim(&self, spaces: &[usize], number: usize) {
        let mut batch: Batch<&Space<_>, FreeList, 2> = Batch::new();
        let mut unmapped_count = 0;
        for &space in spaces {
            let KernelSpace { space: own, tables, .. } = &self.spaces[space];
            let Ok(in_batch) = batch.space(self.engine.machine(), &own) else { continue };
            let entry = tables.swap(number, Entry::EMPTY);
            if !entry.is_present() {
                continue;
            }
            let unmapped = || {
                let stale_writes = StaleWrites::Possible;
                self.pinned(|pin| in_batch.unmapped(pin, page(number), stale_writes)).wait();
            };
            let frame = entry.target();
            with_machine(|machine| {
                machine.flushing(tables.root(), FlushScope::Pages, unmapped);
                // The dirty bit of its entry was clear.
                machine.write_out(frame, false);
            });
            batch.defer_free(Freed::Page { space, number, frame });
            unmapped_count += 1;
        }
        if unmapped_count == 0 {
            return drop(self.pinned(|pin| batch.send(pin)));
        }
        let send = || self.pinned(|pin| batch.send(pin)).wait();
        let freed_later = self.flushing_all(spaces, FlushScope::Pages, send);
        if unmapped_count == 2 {
            with_machine(|machine| machine.reach(Sometimes::BatchedTwoSpaces));
        }
        self.free(freed_later);
    }

    /// Unmaps a page of each of two spaces: sends the first flush, polls it, sends the second
    /// flush, joins them, and waits for both.
    pub(super) fn unmap_joined(&self, spaces: [usize; 2], number: usize) {
        let [one, other] = spaces.map(|space| &self.spaces[space]);
        let _in_flight = [one, other].map(|it| InFlight::begin(&it.in_flight));
        let unmap = |it: &KernelSpace<LIFETIME, WORDS>| it.tables.swap(number, Entry::EMPTY);
        let first = unmap(one);
        if !first.is_present() {
            // Another CPU unmapped the page, and that CPU's flush covers it.
            let _ = self.unmap(spaces[1], number, Wait::Polling);
            return;
        }
        let (first_stale, mut second_stale) = (self.stale_entries(spaces[0], page(number)), None);
        let mut freed_later = FreeList::default();
        freed_later.extend([Freed::Page { space: spaces[0], number, frame: first.target() }]);
        let flush = || {
            let mut pending = self.pinned(|pin| pin.flush(&one.space, page(number)));
            let is_done = pending.poll();
            with_machine(|machine| machine.observe(u64::from(is_done)));
            let second = unmap(other);
            if second.is_present() {
                second_stale = Some(self.stale_entries(spaces[1], page(number)));
                let frame = second.target();
                freed_later.extend([Freed::Page { space: spaces[1], number, frame }]);
                if !is_done {
                    with_machine(|machine| machine.reach(Sometimes::JoinedUnfinished));
                }
                pending.join(self.pinned(|pin| pin.flush(&other.space, page(number))));
            }
            pending.wait();
        };
        self.flushing_all(&spaces, FlushScope::Pages, flush);
        with_machine(|machine| {
            machine.complete_flush(first_stale);
            if let Some(stale) = second_stale {
                machine.complete_flush(stale);
            }
        });
        self.free(freed_later);
    }

    /// Flushes several spaces. The machine checks which CPUs are interrupted.
    fn flushing_all<R>(&self, spaces: &[usize], scope: FlushScope, flush: impl FnOnce() -> R) -> R {
        let Some((&first, rest)) = spaces.split_first() else { return flush() };
        let root = self.spaces[first].tables.root();
        match rest {
            [] => with_machine(|machine| machine.flushing(root, scope, flush)),
            [second, ..] => {
                let second = self.spaces[*second].tables.root();
                with_machine(|machine| {
                    machine.flushing(root, scope, || machine.flushing(second, scope, flush))
                })
            }
        }
    }

    /// Frees all entries of the list.
    pub(super) fn free(&self, list: FreeList) {
        for freed in list {
            match freed {
                Freed::Page { space, number, frame } => self.free_frame(space, number, frame),
                Freed::Table(table) => with_machine(|machine| machine.free_table(table)),
            }
        }
    }
}
