//! The statements at which threads wait for each other: barriers, and pipes.

use std::rc::Rc;

use shootdown_program::operation::Operation;

use super::super::error::TextError;
use super::super::expression::Expression;
use super::super::syntax::{End, Indexed};
use super::super::world::Pipe;
use super::Running;

/// The event that a thread waits for.
#[derive(Clone, Copy)]
pub(super) enum Waiting {
    /// The end of a barrier's round.
    Barrier((usize, u64), u64),
    /// Room or a message in a pipe.
    Pipe((usize, u64), End),
}

/// The result of a wake during a wait.
enum Woken {
    /// The wait is over.
    Done,
    /// Another thread was faster.
    Again,
    /// The wake was meant for a `block`.
    Stray,
}

impl Running {
    /// Returns the next operation of a thread that waits, after it was woken.
    pub(super) fn continue_waiting(&mut self) -> Option<Operation> {
        match self.woken(self.waiting?) {
            Woken::Done => {
                self.waiting = None;
                // A `block` that follows finds the wakes that arrived in the meantime.
                let strays = core::mem::take(&mut self.stray_wakes);
                self.queue.extend((0..strays).map(|_| Operation::Wake(self.program)));
                return self.queue.pop_front();
            }
            Woken::Again => {}
            Woken::Stray => self.stray_wakes += 1,
        }
        Some(Operation::Block)
    }

    fn woken(&mut self, waiting: Waiting) -> Woken {
        let shared = Rc::clone(&self.shared);
        let state = &mut *shared.state.borrow_mut();
        match waiting {
            Waiting::Barrier(key, round) => match state.barriers.get(&key) {
                Some(barrier) if barrier.round == round => Woken::Stray,
                _ => Woken::Done,
            },
            Waiting::Pipe(key, end) => {
                let pipe = state.pipes.entry(key).or_default();
                match () {
                    () if pipe.waiting(end).contains(&self.program) => Woken::Stray,
                    () if self.pass(pipe, key, end) => Woken::Done,
                    () => Woken::Again,
                }
            }
        }
    }

    /// Arrives at a barrier. The last thread wakes the others.
    pub(super) fn arrive(&mut self, barrier: &Indexed, size: &Expression) -> Result<(), TextError> {
        let (key, size) = (self.key(barrier)?, self.value(size)?);
        let shared = Rc::clone(&self.shared);
        let state = &mut *shared.state.borrow_mut();
        let barrier = state.barriers.entry(key).or_default();
        if size == 0 || !barrier.waiting.is_empty() && barrier.size != size {
            let cause = format!("the barrier is for {size} threads, and was for {}", barrier.size);
            return self.error(cause, "give the same number, at least 1, wherever it is used");
        }
        barrier.size = size;
        if (barrier.waiting.len() as u64) < size - 1 {
            barrier.waiting.push(self.program);
            self.waiting = Some(Waiting::Barrier(key, barrier.round));
            self.queue.push_back(Operation::Block);
        } else {
            barrier.round += 1;
            self.queue.extend(barrier.waiting.drain(..).map(Operation::Wake));
        }
        Ok(())
    }

    /// Sends or receives a message, in one system call, or waits until it can.
    pub(super) fn use_pipe(&mut self, pipe: &Indexed, end: End) -> Result<(), TextError> {
        let key = self.key(pipe)?;
        let shared = Rc::clone(&self.shared);
        let state = &mut *shared.state.borrow_mut();
        if !self.pass(state.pipes.entry(key).or_default(), key, end) {
            self.waiting = Some(Waiting::Pipe(key, end));
            self.queue.push_back(Operation::Block);
        } else if self.queue.is_empty() {
            self.queue.push_back(Operation::SystemCall);
        }
        Ok(())
    }

    /// Returns `true` if the thread has sent or received a message. It wakes a thread at the other
    /// end then; otherwise, it is among the threads that wait.
    fn pass(&mut self, pipe: &mut Pipe, (name, _): (usize, u64), end: End) -> bool {
        let (capacity, kind) = self.shared.pipes[name];
        match pipe.pass(end, capacity, kind) {
            Some(woken) => {
                self.queue.extend(woken.map(Operation::Wake));
                true
            }
            None => {
                pipe.waiting(end).push_back(self.program);
                false
            }
        }
    }
}
