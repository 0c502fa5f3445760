//! The event queue, which decides which CPU acts next.
//!
//! It is a binary heap of (time, CPU), each packed into one word, so that the order is total: two
//! CPUs at the same time act in the order of their numbers. It is our own because the standard
//! library's heap lacks two operations. One is to read the time of the *second* event, up to which
//! the CPU at the top may continue without being queued again (most accesses are short enough). The
//! other is to replace the top.

use crate::time::Time;

/// Time at which a CPU acts next. Ordered by time, then by CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(u64);

impl Key {
    /// Later than every event.
    pub(crate) const NEVER: Self = Self(u64::MAX);
    const CPU_BITS: u32 = 12;
    /// Largest number of CPUs whose keys are distinct.
    pub(crate) const CPUS_MAX: usize = 1 << Self::CPU_BITS;

    #[inline]
    pub(crate) fn new(time: Time, cpu: usize) -> Self {
        let time = time.min(Time::END);
        Self(time.ps() << Self::CPU_BITS | cpu as u64)
    }

    #[inline]
    pub(crate) const fn cpu(self) -> usize {
        self.0 as usize & (Self::CPUS_MAX - 1)
    }

    #[inline]
    pub(crate) const fn time(self) -> Time {
        Time::from_ps(self.0 >> Self::CPU_BITS)
    }
}

/// The future events.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    heap: Vec<Key>,
}

impl EventQueue {
    /// The next event.
    #[inline]
    pub(crate) fn top(&self) -> Option<Key> {
        self.heap.first().copied()
    }

    /// The event after the next.
    #[inline]
    pub(crate) fn runner_up(&self) -> Key {
        match self.heap[..] {
            [_, a, b, ..] => a.min(b),
            [_, a] => a,
            _ => Key::NEVER,
        }
    }

    /// Adds an event.
    pub(crate) fn push(&mut self, key: Key) {
        let mut at = self.heap.len();
        self.heap.push(key);
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.heap[parent] <= key {
                break;
            }
            self.heap[at] = self.heap[parent];
            at = parent;
        }
        self.heap[at] = key;
    }

    /// Replaces the next event with a later one.
    #[inline]
    pub(crate) fn replace_top(&mut self, key: Key) {
        let heap = &mut self.heap[..];
        let mut at = 0;
        loop {
            let mut child = 2 * at + 1;
            if child >= heap.len() {
                break;
            }
            if child + 1 < heap.len() && heap[child + 1] < heap[child] {
                child += 1;
            }
            if key <= heap[child] {
                break;
            }
            heap[at] = heap[child];
            at = child;
        }
        heap[at] = key;
    }

    /// Removes the next event.
    pub(crate) fn pop(&mut self) {
        if let Some(last) = self.heap.pop()
            && !self.heap.is_empty()
        {
            self.replace_top(last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn events_are_ordered_by_time_then_cpu() {
        let mut rng = Rng::new(7);
        let mut queue = EventQueue::default();
        let mut expected = Vec::new();
        for _ in 0..1000 {
            if rng.below(3) > 0 {
                let key = Key::new(Time::from_ps(rng.below(50)), rng.below(4096) as usize);
                queue.push(key);
                expected.push(key);
            } else if let Some(top) = queue.top() {
                expected.sort();
                assert_eq!(top, expected[0]);
                assert_eq!(queue.runner_up(), expected.get(1).copied().unwrap_or(Key::NEVER));
                if rng.below(2) == 0 {
                    queue.pop();
                    expected.remove(0);
                } else {
                    expected[0] = Key::new(top.time() + Time::from_ps(rng.below(9)), top.cpu());
                    queue.replace_top(expected[0]);
                }
            }
        }
    }
}
