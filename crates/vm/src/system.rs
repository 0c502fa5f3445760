//! The parts that a memory manager is built of.

use lock_api::Mutex;

use crate::coherence::{Batching, Coherence, Defer, Flush};
use crate::format::Format;
use crate::locked_areas;
use crate::platform::Platform;

/// The platform, the coherence and the page-table format of a memory manager, in one parameter.
///
/// A tuple of the three is a system. A kernel that names its system often usually declares a type
/// of its own.
pub trait System: 'static {
    /// Provides frames, page-table entries and locks.
    type Platform: Platform + 'static;
    /// Removes translations from CPUs.
    type Coherence: Coherence + 'static;
    /// Encodes page-table entries.
    type Format: Format + 'static;
}

impl<P, C, F> System for (P, C, F)
where
    P: Platform + 'static,
    C: Coherence + 'static,
    F: Format + 'static,
{
    type Platform = P;
    type Coherence = C;
    type Format = F;
}

/// The coherence's record of one address space.
pub(crate) type Coherent<S> = <<S as System>::Coherence as Flush>::Space;
/// A flush that was sent, and may not be complete.
pub(crate) type Pending<S> = <<S as System>::Coherence as Flush>::Pending;
/// A flush that CPUs perform by themselves later.
pub(crate) type Deferred<S> = <<S as System>::Coherence as Defer>::Deferred;
/// Pages that reclaim has unmapped, and whose flush is still due.
pub(crate) type Batch<S> = <<S as System>::Coherence as Batching>::Batch;

/// The platform's lock of structures that are read often and changed rarely.
pub(crate) type IndexLock<S> = <<S as System>::Platform as Platform>::IndexLock;
/// A value behind a spin lock of the platform.
pub(crate) type SpinMutex<S, T> = Mutex<<<S as System>::Platform as Platform>::SpinLock, T>;
/// The areas of a space, behind a lock whose waiters sleep.
pub(crate) type LockedAreas<S> = locked_areas::LockedAreas<<S as System>::Platform>;
/// The areas of a space, locked for reading.
pub(crate) type ReadGuard<'s, S> = locked_areas::ReadGuard<'s, <S as System>::Platform>;
/// The areas of a space, locked for writing.
pub(crate) type WriteGuard<'s, S> = locked_areas::WriteGuard<'s, <S as System>::Platform>;
