//! Loops that load a word until another CPU changes it, without an event for each iteration.
//!
//! While no other CPU accesses the word, all iterations are hits, and their times are known in
//! advance. The CPU that polls is woken by the first access to the word, or by an interrupt, and
//! then computes the iteration in which it is.

use crate::clock::{Clock, Poll};
use crate::lines::Access;
use crate::queue::Key;
use crate::sim::Sim;
use crate::time::Time;

impl Sim {
    /// Lets the iterations pass of a loop that waits until other CPUs have flushed, whose load is a
    /// hit. Returns at the end of such a load (`true`), or before the next load (`false`), which
    /// may be different; at `until` at the latest, or when the thread is preempted.
    pub(crate) fn skip_polls(&self, word: usize, owned: bool, until: Option<Time>) -> bool {
        let me = self.cpu();
        let began = {
            let mut clock = self.clock.borrow_mut();
            // Broadcasts and remote fences take time from a CPU that polls.
            let has_thieves =
                self.machine.broadcast.is_some() || self.machine.remote_fence.is_some();
            if has_thieves || clock.cpus[me].masks > 0 {
                return false;
            }
            clock.queue.pop();
            clock.cpus[me].key = Key::NEVER;
            clock.cpus[me].poll = Poll::Of(word);
            let arrival = clock.cpus[me].arrivals.front().map(|arrival| arrival.at);
            if let Some(at) = arrival.into_iter().chain(until).min() {
                clock.wake_at(me, at);
            }
            clock.cpus[me].now
        };
        self.suspend();
        let hit = self.lines.borrow().hit(owned, Access::Load);
        let (end, is_loading) = {
            let mut clock = self.clock.borrow_mut();
            let mut end = began + hit;
            loop {
                if !clock.is_unchanged_until(me, end) {
                    break (end, true);
                }
                let pause = self.machine.cache.pause;
                end += clock.cpus[me].wait_loop.next_pause(end, pause);
                if !clock.is_unchanged_until(me, end) {
                    break (end, false);
                }
                end += hit;
            }
        };
        self.clock.borrow_mut().cpus[me].poll = Poll::None;
        let left = self.advance(end.min(Time::END));
        is_loading && left == Time::ZERO
    }

    /// Wakes a CPU that polls a word which this CPU is about to access.
    #[inline]
    pub(crate) fn end_polls(&self, poller: usize, word: usize) {
        let mut clock = self.clock.borrow_mut();
        if clock.cpus[poller].poll != Poll::Of(word) {
            return;
        }
        let (me, now) = (self.cpu(), clock.cpus[self.cpu()].now);
        clock.cpus[poller].poll = Poll::Ended(Key::new(now, me));
        // The poller cannot act before this CPU, which acts now.
        let at = if poller > me { now } else { now + Time::TICK };
        clock.wake_at(poller, at);
    }
}

impl Clock {
    /// Whether the CPU, which polled and was woken, would have acted at `at` before any interrupt
    /// and before another CPU accessed the word.
    fn is_unchanged_until(&self, number: usize, at: Time) -> bool {
        let cpu = &self.cpus[number];
        let is_before_access = match cpu.poll {
            Poll::Ended(access) => Key::new(at, number) < access,
            Poll::None | Poll::Of(_) => at < cpu.now,
        };
        is_before_access && cpu.arrivals.front().is_none_or(|arrival| at < arrival.at)
    }
}
