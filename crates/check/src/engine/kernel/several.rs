//! What is taken from several spaces, and flushed together: batches, and flushes that are joined.

use shootdown::{Batch, Space, StaleWrites};

use super::bag::{Bag, Freed};
use super::{Flight, Kernel, KernelSpace, page};
use crate::flush_scope::FlushScope;
use crate::hardware::Entry;
use crate::sometimes::Sometimes;
use crate::world::with_world;

impl<const LIFETIME: u8, const WORDS: usize> Kernel<'_, LIFETIME, WORDS> {
    /// Takes a page from each space, and flushes all in one batch.
    pub(super) fn reclaim(&self, spaces: &[usize], number: usize) {
        let mut batch: Batch<&Space<_>, Bag, 2> = Batch::new();
        let mut taken = 0;
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
            with_world(|world| {
                world.flushing(tables.root(), FlushScope::Pages, unmapped);
                // Its entry did not say that it was written.
                world.write_out(frame, false);
            });
            batch.defer_free(Freed::Page { space, number, frame });
            taken += 1;
        }
        if taken == 0 {
            return drop(self.pinned(|pin| batch.send(pin)));
        }
        let send = || self.pinned(|pin| batch.send(pin)).wait();
        let bag = self.flushing_all(spaces, FlushScope::Pages, send);
        if taken == 2 {
            with_world(|world| world.reach(Sometimes::BatchedTwoSpaces));
        }
        self.free(bag);
    }

    /// Takes a page from each of two spaces: polls the first flush when it is sent, then sends the
    /// second, joins them, and waits for both.
    pub(super) fn unmap_joined(&self, spaces: [usize; 2], number: usize) {
        let [one, other] = spaces.map(|space| &self.spaces[space]);
        let _flights = [one, other].map(|it| Flight::begin(&it.flights));
        let take = |it: &KernelSpace<LIFETIME, WORDS>| it.tables.swap(number, Entry::EMPTY);
        let first = take(one);
        if !first.is_present() {
            // Another CPU has it, and relies on its own flush.
            let _ = self.unmap(spaces[1], number);
            return;
        }
        let (first_outdated, mut second_outdated) = (self.outdated(spaces[0], page(number)), None);
        let mut bag = Bag::default();
        bag.extend([Freed::Page { space: spaces[0], number, frame: first.target() }]);
        let flush = || {
            let mut pending = self.pinned(|pin| pin.flush(&one.space, page(number)));
            let is_done = pending.poll();
            with_world(|world| world.see(u64::from(is_done)));
            let second = take(other);
            if second.is_present() {
                second_outdated = Some(self.outdated(spaces[1], page(number)));
                let frame = second.target();
                bag.extend([Freed::Page { space: spaces[1], number, frame }]);
                if !is_done {
                    with_world(|world| world.reach(Sometimes::JoinedUnfinished));
                }
                pending.join(self.pinned(|pin| pin.flush(&other.space, page(number))));
            }
            pending.wait();
        };
        self.flushing_all(&spaces, FlushScope::Pages, flush);
        with_world(|world| {
            world.flush_is_done(first_outdated);
            if let Some(outdated) = second_outdated {
                world.flush_is_done(outdated);
            }
        });
        self.free(bag);
    }

    /// Flushes several spaces, as far as it is looked at who is interrupted.
    fn flushing_all<R>(&self, spaces: &[usize], scope: FlushScope, flush: impl FnOnce() -> R) -> R {
        let Some((&first, rest)) = spaces.split_first() else { return flush() };
        let root = self.spaces[first].tables.root();
        match rest {
            [] => with_world(|world| world.flushing(root, scope, flush)),
            [second, ..] => {
                let second = self.spaces[*second].tables.root();
                with_world(|world| {
                    world.flushing(root, scope, || world.flushing(second, scope, flush))
                })
            }
        }
    }

    /// All of it is somebody else's.
    pub(super) fn free(&self, bag: Bag) {
        for freed in bag {
            match freed {
                Freed::Page { space, number, frame } => self.free_frame(space, number, frame),
                Freed::Table(table) => with_world(|world| world.free_table(table)),
            }
        }
    }
}
