//! Clean pages that are flushed when their frames are reused.

#![expect(unsafe_code, reason = "the C interface: the kernel promises what Rust's types enforce")]

use core::mem::MaybeUninit;

use shootdown::{CleanBatch, CleanExtent, SentBatch, StaleWrites, Unflushed};

use crate::batch::{SHOOTDOWN_BATCH_ADDED, SHOOTDOWN_BATCH_FULL, SHOOTDOWN_BATCH_HAS_SPACE};
use crate::engine::{engine, pin};
use crate::extent::ExtentWord;
use crate::machine::Machine;
use crate::storage::{
    CUnflushed, NoBag, SentBatchStorage, SpaceRef, SpaceStorage, Storage, UnflushedStorage,
};

impl CUnflushed {
    /// The batch, to which pages may be added.
    ///
    /// # Panics
    ///
    /// If it was deferred.
    #[inline]
    fn collecting(&mut self) -> &mut CleanBatch<SpaceRef, NoBag> {
        assert!(!self.is_deferred, "pages are added to a collection that was deferred");
        &mut self.batch
    }

    /// The deferred flush, and the flag that it was sent.
    ///
    /// # Panics
    ///
    /// If it was not deferred, or if it was sent and not waited for.
    #[inline]
    fn deferred(&mut self) -> (&mut Unflushed<SpaceRef, NoBag>, &mut bool) {
        assert!(self.is_deferred, "a collection is used before shootdown_unflushed_defer");
        assert!(!self.is_sent, "a collection that was sent is used before shootdown_batch_wait");
        (self.batch.deferred(), &mut self.is_sent)
    }
}

/// Initialises an empty collection of pages that no CPU can write, and whose flush waits until
/// their frames are reused. In a library with the feature `reuse`, like the functions below. The
/// chapter "Flush when a frame is reused" of the book has what your code promises.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 128.
///
/// # Safety
///
/// `unflushed` must be valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_unflushed_init(unflushed: *mut UnflushedStorage) {
    let (is_deferred, is_sent) = (false, false);
    // SAFETY: the caller's promise.
    unsafe {
        let value = CUnflushed { batch: CleanBatch::new(), is_deferred, is_sent };
        UnflushedStorage::init(unflushed, value);
    };
}

/// Adds a space to a collection, as `shootdown_batch_add_space` does to a batch.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// As `shootdown_batch_add_space`.
///
/// # Panics
///
/// If the collection was deferred.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_unflushed_add_space(
    unflushed: *mut UnflushedStorage,
    space: *const SpaceStorage,
) -> u32 {
    // SAFETY: the caller's promises.
    let (unflushed, space) =
        unsafe { (UnflushedStorage::get_mut(unflushed), SpaceStorage::get(space)) };
    let batch = unflushed.collecting();
    if batch.find(&space).is_some() {
        return SHOOTDOWN_BATCH_HAS_SPACE;
    }
    let added = batch.space(engine().machine(), &space);
    added.map_or(SHOOTDOWN_BATCH_FULL, |_| SHOOTDOWN_BATCH_ADDED)
}

/// Adds `extent` of `space`, in which entries were cleared that no CPU can have cached as writable.
/// An entry that was made read-only counts as writable until that change is flushed.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// `unflushed` is initialised, and `space` was added to it.
///
/// # Panics
///
/// If the space was not added, if the extent frees tables, or if the collection was deferred.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_unflushed_unmapped(
    unflushed: *mut UnflushedStorage,
    space: *const SpaceStorage,
    extent: ExtentWord,
) {
    // SAFETY: the caller's promises.
    let (unflushed, space) =
        unsafe { (UnflushedStorage::get_mut(unflushed), SpaceStorage::get(space)) };
    let Some(entry) = unflushed.collecting().find(&space) else {
        panic!("shootdown_unflushed_unmapped: the space was not added to the collection");
    };
    let Some(extent) = CleanExtent::new(extent.extent(), StaleWrites::Impossible) else {
        panic!("shootdown_unflushed_unmapped: an extent that frees tables must be flushed");
    };
    entry.unmapped(extent);
}

/// Counts the flush of each space, and interrupts no CPU. From here on, write nothing to the frames
/// and give none away, until `shootdown_unflushed_reuse` was waited for.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 896.
///
/// # Safety
///
/// Masked. `unflushed` is initialised, and does not move from here on.
///
/// # Panics
///
/// If the collection was deferred already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_unflushed_defer(unflushed: *mut UnflushedStorage) {
    // SAFETY: the caller's promises.
    let unflushed = unsafe { UnflushedStorage::get_mut(unflushed) };
    // SAFETY: the caller is masked.
    unflushed.collecting().defer_in_place(&unsafe { pin() });
    unflushed.is_deferred = true;
}

/// Returns true if `shootdown_unflushed_reuse` would notify a CPU now. Reuse first the collections
/// that are not due.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 512.
///
/// # Safety
///
/// Masked. `unflushed` is initialised.
///
/// # Panics
///
/// If the collection was not deferred, or if it was sent and not waited for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_unflushed_is_due(unflushed: *mut UnflushedStorage) -> bool {
    // SAFETY: the caller's promises.
    unsafe { UnflushedStorage::get_mut(unflushed).deferred().0.is_due(&pin()) }
}

/// Flushes what is still due, and interrupts each CPU at most once. Pass `sent` to
/// `shootdown_batch_wait`: then no CPU can use the frames, and the collection is done. Look for
/// pins of the pages after that. Initialise the collection before you use it again.
///
/// Interrupts: yes. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 1280.
///
/// # Safety
///
/// Masked. `unflushed` is initialised, and neither moved nor used until the wait. `sent` is valid
/// for writes.
///
/// # Panics
///
/// As `shootdown_unflushed_is_due`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_unflushed_reuse(
    unflushed: *mut UnflushedStorage,
    sent: *mut SentBatchStorage,
) {
    // SAFETY: the caller's promises. The flag is not accessed by the flush that was sent.
    unsafe {
        let (unflushed, is_sent) = UnflushedStorage::get_mut(unflushed).deferred();
        *is_sent = true;
        let place = SentBatchStorage::uninit(sent).as_mut_ptr();
        (&raw mut (*place).is_sent).write(Some(is_sent));
        reuse(unflushed, &mut *(&raw mut (*place).sent).cast());
    }
}

/// Sends the flush in place, masked. Not inlined, as for a batch.
#[inline(never)]
fn reuse(
    unflushed: &'static mut Unflushed<SpaceRef, NoBag>,
    sent: &mut MaybeUninit<SentBatch<'static, 'static, Machine, SpaceRef, NoBag>>,
) {
    // SAFETY: the caller is masked.
    sent.write(unflushed.reuse(&unsafe { pin() }));
}
