//! The queue between the thread that empties the kernel's buffers and the thread that writes the
//! recording.
//!
//! The first thread must be fast, or the kernel loses events. The second one takes longer, and
//! should not delay the recorded program. It therefore runs at a low priority until half of
//! the queue's memory is used.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shootdown_recording::Ended;

use super::counted::Counted;

/// Pages of the kernel's buffers.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Pages, each with the index of its buffer.
    pub(super) pages: Vec<(usize, Box<[u8]>)>,
    /// The time up to which all events of all buffers are in this batch or an earlier one.
    pub(super) complete_to_ns: u64,
    /// The kernel's own counters, if they were read.
    pub(super) counted: Option<Counted>,
}

/// The end of the queue.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// Tracing has stopped.
    Complete {
        ended: Ended,
        /// Number of lost events of each buffer.
        lost: Vec<u64>,
    },
    /// The recording is not wanted.
    Discarded,
}

/// An item of the queue.
#[derive(Debug)]
pub(super) enum Item {
    Batch(Batch),
    End(End),
}

/// The other thread has stopped.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stopped;

/// The queue.
#[derive(Debug)]
pub(super) struct Queue {
    bytes_max: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    batches: VecDeque<Batch>,
    bytes: usize,
    end: Option<End>,
    /// `true` after the writing thread has ended.
    is_stopped: bool,
    /// Number of events that were written.
    events: u64,
}

impl Queue {
    /// Creates a queue whose pages need at most `bytes_max`, or one batch if that is larger.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Adds a batch. Waits while there is no room for it. Returns `true` if half of the memory is
    /// used.
    pub(super) fn push(&self, batch: Batch) -> Result<bool, Stopped> {
        let bytes = bytes(&batch);
        let mut state = self.state();
        while !state.is_stopped && state.bytes > 0 && state.bytes + bytes > self.bytes_max {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_stopped {
            return Err(Stopped);
        }
        state.bytes += bytes;
        state.batches.push_back(batch);
        self.changed.notify_all();
        Ok(state.bytes > self.bytes_max / 2)
    }

    /// Ends the queue. If `end` discards the recording, the batches are dropped.
    pub(super) fn end(&self, end: End) {
        let mut state = self.state();
        if matches!(end, End::Discarded) {
            state.batches.clear();
        }
        state.end = Some(end);
        self.changed.notify_all();
    }

    /// Waits for the next item.
    pub(super) fn pop(&self) -> Item {
        let mut state = self.state();
        loop {
            if let Some(batch) = state.batches.pop_front() {
                state.bytes -= bytes(&batch);
                self.changed.notify_all();
                return Item::Batch(batch);
            }
            if let Some(end) = &state.end {
                return Item::End(end.clone());
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Notes the number of events that were written so far.
    pub(super) fn wrote(&self, events: u64) {
        self.state().events = events;
    }

    /// Notes when the result is dropped, at the end of the writing thread, that the thread has
    /// ended.
    pub(super) fn stop_at_end(&self) -> impl Drop + '_ {
        StopAtEnd(self)
    }

    /// Waits until the writing thread has ended, at most for `patience`. Returns the number of
    /// events that it has written as an error if it still runs.
    pub(super) fn wait_for_stop(&self, patience: Duration) -> Result<(), u64> {
        let state = self.state();
        let (state, _) = self
            .changed
            .wait_timeout_while(state, patience, |state| !state.is_stopped)
            .unwrap_or_else(PoisonError::into_inner);
        if state.is_stopped { Ok(()) } else { Err(state.events) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct StopAtEnd<'q>(&'q Queue);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.state().is_stopped = true;
        self.0.changed.notify_all();
    }
}

fn bytes(batch: &Batch) -> usize {
    batch.pages.iter().map(|(_, page)| page.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn batch(bytes: usize) -> Batch {
        Batch { pages: vec![(0, vec![0; bytes].into())], ..Batch::default() }
    }

    #[test]
    fn full_queue_waits_for_the_writer() {
        let queue = Queue::new(1000);
        assert_eq!(queue.push(batch(400)), Ok(false));
        assert_eq!(queue.push(batch(400)), Ok(true));
        thread::scope(|scope| {
            let third = scope.spawn(|| queue.push(batch(400)));
            thread::sleep(Duration::from_millis(20));
            assert!(!third.is_finished());
            assert!(matches!(queue.pop(), Item::Batch(_)));
            assert_eq!(third.join().expect("room"), Ok(true));
        });
        queue.end(End::Complete { ended: Ended::Exited(0), lost: Vec::new() });
        assert!(matches!(queue.pop(), Item::Batch(_)));
        assert!(matches!(queue.pop(), Item::Batch(_)));
        assert!(matches!(queue.pop(), Item::End(End::Complete { .. })));
    }

    #[test]
    fn batch_beyond_the_bound_is_accepted_alone() {
        let queue = Queue::new(10);
        assert_eq!(queue.push(batch(100)), Ok(true));
        queue.end(End::Discarded);
        assert!(matches!(queue.pop(), Item::End(End::Discarded)));
    }

    #[test]
    fn stopped_writer_ends_the_wait() {
        let queue = Queue::new(10);
        assert_eq!(queue.push(batch(10)), Ok(true));
        queue.wrote(7);
        assert_eq!(queue.wait_for_stop(Duration::ZERO), Err(7));
        thread::scope(|scope| {
            let second = scope.spawn(|| queue.push(batch(10)));
            thread::sleep(Duration::from_millis(10));
            drop(queue.stop_at_end());
            assert_eq!(second.join().expect("an end"), Err(Stopped));
        });
        assert_eq!(queue.wait_for_stop(Duration::from_secs(60)), Ok(()));
    }
}
