//! Clean pages, whose flush waits until their frames are reused.

use shootdown::{CleanBatch, CleanExtent, Space, StaleWrites};

use super::free_list::{FreeList, Freed};
use super::{EngineMachine, InFlight, Kernel, KernelSpace, page};
use crate::hardware::Entry;
use crate::interrupt_oracle::FlushScope;
use crate::machine::{HostileMachine, with_machine};
use crate::sometimes::Sometimes;

impl<const LIFETIME: u8, const WORDS: usize> Kernel<'_, LIFETIME, WORDS> {
    /// Unmaps a page, without a flush if it is read-only, and reuses its frame.
    pub(super) fn defer_and_reuse(&self, space: usize, number: usize) {
        let KernelSpace { space: own, tables, in_flight, .. } = &self.spaces[space];
        let mut batch: CleanBatch<&Space<_>, FreeList, 1> = CleanBatch::new();
        let Ok(in_batch) = batch.space(self.engine.machine(), &own) else { return };
        let change = InFlight::begin(in_flight);
        let entry = tables.swap(number, Entry::EMPTY);
        // Another CPU may have made it read-only, and not flushed that yet.
        let is_alone = change.is_alone();
        with_machine(|machine| machine.observe(u64::from(is_alone)));
        let stale_writes = if entry.is_writable() || !is_alone {
            StaleWrites::Possible
        } else {
            StaleWrites::Impossible
        };
        if entry.is_present() {
            match CleanExtent::new(page(number), stale_writes) {
                Some(clean) => in_batch.unmapped(clean),
                None => self.flush(space, page(number), self.stale_entries(space, page(number))),
            }
            let frame = entry.target();
            with_machine(|machine| machine.write_out(frame, stale_writes == StaleWrites::Possible));
            batch.defer_free(Freed::Page { space, number, frame });
        }
        drop(change);
        let mut unflushed = self.pinned(|pin| batch.defer(pin));
        let before = self.interrupts_sent();
        let reuse = || self.pinned(|pin| unflushed.reuse(pin)).wait();
        with_machine(|machine| {
            let freed = machine.flushing(tables.root(), FlushScope::Pages, reuse);
            if self.interrupts_sent() != before {
                machine.reach(Sometimes::FlushedAtReuse);
            }
            self.free(freed);
        });
    }

    fn interrupts_sent(&self) -> u64 {
        let cpu = with_machine(HostileMachine::cpu);
        self.engine.cpu(EngineMachine::<LIFETIME, WORDS>::id(cpu)).stats().interrupts_sent
    }
}
