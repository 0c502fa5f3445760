//! The areas of a space behind the lock of the space. A writer attaches the areas that it has
//! detached before it unlocks them.

use core::ops::{Deref, DerefMut};

use lock_api::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::areas::Areas;
use crate::platform::Platform;

/// The areas of a space, behind a lock whose waiters sleep.
pub(crate) struct LockedAreas<P: Platform>(RwLock<P::SleepingLock, Areas<P>>);

/// The areas of a space, locked for reading.
pub(crate) type ReadGuard<'s, P> = RwLockReadGuard<'s, <P as Platform>::SleepingLock, Areas<P>>;

/// The areas of a space, locked for writing.
pub(crate) struct WriteGuard<'s, P: Platform> {
    /// `None` when the lock was downgraded.
    guard: Option<RwLockWriteGuard<'s, P::SleepingLock, Areas<P>>>,
}

impl<P: Platform> LockedAreas<P> {
    pub(crate) const fn new(areas: Areas<P>) -> Self {
        Self(RwLock::new(areas))
    }

    pub(crate) fn read(&self) -> ReadGuard<'_, P> {
        self.0.read()
    }

    /// Locks the areas for reading, if this does not have to wait.
    pub(crate) fn try_read(&self) -> Option<ReadGuard<'_, P>> {
        self.0.try_read()
    }

    pub(crate) fn write(&self) -> WriteGuard<'_, P> {
        WriteGuard { guard: Some(self.0.write()) }
    }

    pub(crate) fn get_mut(&mut self) -> &mut Areas<P> {
        self.0.get_mut()
    }
}

impl<'s, P: Platform> WriteGuard<'s, P> {
    /// Becomes a lock for reading. No other writer gets the lock in between.
    pub(crate) fn downgrade(mut self) -> ReadGuard<'s, P> {
        let mut guard = self.guard.take().expect(TAKEN_LAST);
        guard.attach();
        RwLockWriteGuard::downgrade(guard)
    }
}

const TAKEN_LAST: &str = "only `downgrade` takes the guard out, and it takes `self`";

impl<P: Platform> Deref for WriteGuard<'_, P> {
    type Target = Areas<P>;

    fn deref(&self) -> &Areas<P> {
        self.guard.as_ref().expect(TAKEN_LAST)
    }
}

impl<P: Platform> DerefMut for WriteGuard<'_, P> {
    fn deref_mut(&mut self) -> &mut Areas<P> {
        self.guard.as_mut().expect(TAKEN_LAST)
    }
}

impl<P: Platform> Drop for WriteGuard<'_, P> {
    fn drop(&mut self) {
        if let Some(guard) = &mut self.guard {
            guard.attach();
        }
    }
}
