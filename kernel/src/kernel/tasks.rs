//! What threads do to each other: they wait for one another, wake each other, and lock each other
//! out.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use lock_api::RawRwLock;
use shootdown_program::StepError;
use shootdown_program::operation::{LockId, ProgramId};

use crate::kernel::scheduler::{self, SleepingLock, ThreadId, Waits};
use crate::kernel::world::World;

/// A thread, as others know it.
#[derive(Default)]
pub(crate) struct Task {
    pub(crate) thread: Option<ThreadId>,
    /// Wakes that it has not waited for yet.
    tokens: u64,
    pub(crate) done: bool,
    pub(crate) joining: Vec<ThreadId>,
}

/// A lock of the program's own, and who has it: its program's number and 1, or 0.
pub(crate) struct UserLock {
    lock: SleepingLock,
    holder: AtomicU32,
}

impl World {
    pub(crate) fn join(&self, other: ProgramId) {
        let Some(me) = scheduler::current() else { return };
        while !self.task(other, |task| {
            if !task.done && !task.joining.contains(&me) {
                task.joining.push(me);
            }
            task.done
        }) {
            scheduler::block(Waits::Join(other.0));
        }
    }

    pub(crate) fn block(&self, program: ProgramId) {
        while !self.task(program, |task| {
            let has_token = task.tokens > 0;
            task.tokens = task.tokens.saturating_sub(1);
            has_token
        }) {
            scheduler::block(Waits::Wake);
        }
    }

    pub(crate) fn wake(&self, other: ProgramId) {
        let thread = self.task(other, |task| {
            task.tokens += 1;
            task.thread
        });
        thread.into_iter().for_each(scheduler::wake);
    }

    pub(crate) fn lock(&self, lock: LockId, program: ProgramId) {
        let new = || {
            let (lock, holder) = (SleepingLock::INIT, AtomicU32::new(0));
            Arc::new(UserLock { lock, holder })
        };
        let held = Arc::clone(self.locks.lock().entry(lock).or_insert_with(new));
        held.lock.lock_exclusive();
        held.holder.store(program.0.wrapping_add(1), Ordering::Relaxed);
    }

    pub(crate) fn unlock(&self, lock: LockId, program: ProgramId) -> Result<(), StepError> {
        let held = self.locks.lock().get(&lock).cloned();
        let is_ours =
            |held: &Arc<UserLock>| held.holder.load(Ordering::Relaxed) == program.0.wrapping_add(1);
        let held = held.filter(is_ours).ok_or(StepError::NotHeld(lock))?;
        held.holder.store(0, Ordering::Relaxed);
        // SAFETY: this thread holds it.
        #[expect(unsafe_code, reason = "a raw lock: who takes it and who lets go are two steps")]
        unsafe {
            held.lock.unlock_exclusive();
        }
        Ok(())
    }

    pub(crate) fn task<R>(&self, program: ProgramId, f: impl FnOnce(&mut Task) -> R) -> R {
        f(self.tasks.lock().entry(program).or_default())
    }
}
