//! Unmapping many pages of running programs with one flush.

#![expect(unsafe_code, reason = "the C interface: the kernel promises what Rust's types enforce")]

use core::mem::MaybeUninit;

use shootdown::{Batch, SentBatch, StaleWrites};

use crate::engine::{engine, pin};
use crate::extent::ExtentWord;
use crate::machine::Machine;
use crate::storage::{
    BatchStorage, CBatch, CSentBatch, NoBag, PendingStorage, SentBatchStorage, SpaceRef,
    SpaceStorage, Storage,
};

impl CBatch {
    /// The batch, if it was not sent, or if the wait for it is over.
    ///
    /// # Panics
    ///
    /// Otherwise.
    #[inline]
    fn unsent(&mut self) -> &mut Batch<SpaceRef, NoBag> {
        assert!(!self.is_sent, "a batch that was sent is used before shootdown_batch_wait");
        &mut self.batch
    }
}

/// Initialises an empty batch.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 128.
///
/// # Safety
///
/// `batch` must be valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_batch_init(batch: *mut BatchStorage) {
    // SAFETY: the caller's promise.
    unsafe { BatchStorage::init(batch, CBatch { batch: Batch::new(), is_sent: false }) };
}

/// `shootdown_batch_add_space`: the batch has 32 other spaces. Send it first.
pub const SHOOTDOWN_BATCH_FULL: u32 = 0;
/// `shootdown_batch_add_space`: the space was in the batch already.
pub const SHOOTDOWN_BATCH_HAS_SPACE: u32 = 1;
/// `shootdown_batch_add_space`: the space was added. Keep it until the batch is done, for instance
/// by a reference.
pub const SHOOTDOWN_BATCH_ADDED: u32 = 2;

/// Adds a space to a batch, unless it is in it. Returns one of `SHOOTDOWN_BATCH_…`; 0 if the batch
/// is full.
///
/// Call this before you clear the first entry of the space. If a lock protects the entry, it is
/// enough to call this under the lock under which you clear it, after that: an operation that finds
/// the entry clear holds the lock later, and `shootdown_flush_if_batched` then finds the batch.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// `batch` is initialised, and was not sent without a wait. `space` is initialised, and stays in
/// place until the batch is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_batch_add_space(
    batch: *mut BatchStorage,
    space: *const SpaceStorage,
) -> u32 {
    // SAFETY: the caller's promises.
    let (batch, space) = unsafe { (BatchStorage::get_mut(batch), SpaceStorage::get(space)) };
    let batch = batch.unsent();
    if batch.find(&space).is_some() {
        return SHOOTDOWN_BATCH_HAS_SPACE;
    }
    let added = batch.space(engine().machine(), &space);
    added.map_or(SHOOTDOWN_BATCH_FULL, |_| SHOOTDOWN_BATCH_ADDED)
}

/// Adds `extent` of `space`, in which entries were cleared. `was_writable` is true if an entry was
/// writable, whether dirty or not.
///
/// Where a CPU could still write to such a page unnoticed, it is flushed immediately: wait for
/// `pending` before you read whether the pages are dirty. Otherwise `pending` is done.
///
/// Until the batch is done, keep the pages, and write none of them back.
///
/// Interrupts: yes. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 2048.
///
/// # Safety
///
/// Masked. `batch` and `space` as for `shootdown_batch_add_space`, and `pending` as for
/// `shootdown_flush`.
///
/// # Panics
///
/// If the space was not added, or if the batch was sent and not waited for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_batch_unmapped(
    batch: *mut BatchStorage,
    space: *const SpaceStorage,
    extent: ExtentWord,
    was_writable: bool,
    pending: *mut PendingStorage,
) {
    let stale_writes = if was_writable { StaleWrites::Possible } else { StaleWrites::Impossible };
    // SAFETY: the caller's promises.
    unsafe {
        let (batch, space) = (BatchStorage::get_mut(batch), SpaceStorage::get(space));
        let Some(entry) = batch.unsent().find(&space) else {
            panic!("shootdown_batch_unmapped: the space was not added to the batch");
        };
        let value = entry.unmapped(&pin(), extent.extent(), stale_writes);
        PendingStorage::init(pending, Some(value));
    }
}

/// Sends a batch: interrupts each CPU once that could be using one of its pages.
///
/// Interrupts: yes. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 1920.
///
/// # Safety
///
/// Masked. `batch` is initialised, and neither moved nor used until `shootdown_batch_wait`. `sent`
/// is valid for writes.
///
/// # Panics
///
/// If the batch was sent already, and not waited for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_batch_send(
    batch: *mut BatchStorage,
    sent: *mut SentBatchStorage,
) {
    // SAFETY: the caller's promises. The flag is not accessed by the batch that was sent.
    unsafe {
        let CBatch { batch, is_sent } = BatchStorage::get_mut(batch);
        assert!(!*is_sent, "a batch is sent twice");
        *is_sent = true;
        let place = SentBatchStorage::uninit(sent).as_mut_ptr();
        (&raw mut (*place).is_sent).write(Some(is_sent));
        send(batch, &mut *(&raw mut (*place).sent).cast());
    }
}

/// Sends a batch in place, masked. Not inlined: this has the largest frame of the library, and the
/// checks before it need none.
#[inline(never)]
fn send(
    batch: &'static mut Batch<SpaceRef, NoBag>,
    sent: &mut MaybeUninit<SentBatch<'static, 'static, Machine, SpaceRef, NoBag>>,
) {
    // SAFETY: the caller is masked.
    sent.write(batch.send(&unsafe { pin() }));
}

/// Returns true if the flush of a batch is done, without waiting for other CPUs. Call
/// `shootdown_batch_wait` then, which does not wait any more.
///
/// Interrupts: yes. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 640.
///
/// # Safety
///
/// `sent` is the result of `shootdown_batch_send`, or is zero. Otherwise as `shootdown_wait`.
///
/// # Panics
///
/// If the batch was waited for already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_batch_poll(sent: *mut SentBatchStorage) -> bool {
    // SAFETY: the caller's promise.
    let CSentBatch { sent, is_sent } = unsafe { SentBatchStorage::get_mut(sent) };
    assert!(is_sent.is_some(), "{NOT_SENT}");
    // SAFETY: there is a flag.
    unsafe { sent.assume_init_mut() }.poll()
}

/// Waits until no CPU can use the pages of the batch, which is empty then and can be used again.
///
/// Interrupts: yes. Waits: yes. Reclaims: no. Callable: before shootdown_online. Stack: 1792.
///
/// # Safety
///
/// `sent` is the result of `shootdown_batch_send`, or is zero. Otherwise as `shootdown_wait`.
///
/// # Panics
///
/// If the batch was waited for already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_batch_wait(sent: *mut SentBatchStorage) {
    // SAFETY: the caller's promise.
    let CSentBatch { sent, is_sent } = unsafe { SentBatchStorage::get_mut(sent) };
    let is_sent = is_sent.take().expect(NOT_SENT);
    // SAFETY: there was a flag, and there is none from now on.
    unsafe { sent.assume_init_read() }.wait();
    *is_sent = false;
}

const NOT_SENT: &str = "there is no batch to wait for: it was not sent, or was waited for already";

/// Returns true if a batch has unmapped pages of `space` whose flush is not yet done.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// `space` is initialised, and not reclaimed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_is_batched(space: *const SpaceStorage) -> bool {
    // SAFETY: the caller's promise.
    unsafe { SpaceStorage::get(space) }.is_batched(engine().machine())
}

/// Flushes `extent` of `space`, if a batch has unflushed pages of the space. Call this after an
/// operation (munmap, mprotect) that found nothing to flush where reclaim may just have unmapped a
/// page.
///
/// Interrupts: yes. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 2048.
///
/// # Safety
///
/// As `shootdown_flush`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_flush_if_batched(
    space: *const SpaceStorage,
    extent: ExtentWord,
    pending: *mut PendingStorage,
) {
    // SAFETY: the caller's promises.
    unsafe {
        let value = pin().flush_if_batched(SpaceStorage::get(space), extent.extent());
        PendingStorage::init(pending, Some(value));
    }
}
