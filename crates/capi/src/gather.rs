//! One flush for all that an operation has unmapped, page tables included.

#![expect(unsafe_code, reason = "the C interface: the kernel promises what Rust's types enforce")]

use shootdown::{Extent, ExtentSet, Horizon, PageSize, Pending};

use crate::engine::{pin, try_pin};
use crate::extent::ExtentWord;
use crate::storage::{ExtentsStorage, PendingStorage, SpaceStorage, Storage};

/// The page tables that no CPU can walk any more, as numbers of flushes of one space.
///
/// Keep unhooked page tables on a list of their space, each with the `flush` that unhooked it. When
/// a later flush of the space is done, free those whose number is at most its `cleared`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct HorizonNumbers {
    /// Number of this flush, among those of its space.
    pub flush: u64,
    /// Number of the last flush whose unhooked tables no CPU can walk any more; 0 if there is none.
    pub cleared: u64,
}

impl From<Horizon> for HorizonNumbers {
    #[inline]
    fn from(horizon: Horizon) -> Self {
        Self { flush: horizon.flush(), cleared: horizon.cleared() }
    }
}

/// Initialises an empty set of extents.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 128.
///
/// # Safety
///
/// `extents` must be valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_extents_init(extents: *mut ExtentsStorage) {
    // SAFETY: the caller's promise.
    unsafe { ExtentsStorage::init(extents, ExtentSet::new()) };
}

/// Adds an extent. Adjacent extents are joined. A set of more than four joins the closest ones, so
/// it may cover more than was added, and never less. For each unhooked page table, add a page below
/// it: `shootdown_freeing_tables(shootdown_page(address))`.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 128.
///
/// # Safety
///
/// `extents` must be initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_extents_add(extents: *mut ExtentsStorage, extent: ExtentWord) {
    // SAFETY: the caller's promise.
    unsafe { ExtentsStorage::get_mut(extents) }.add(extent.extent());
}

/// Flushes all extents in one flush; nothing if there are none.
///
/// As `shootdown_flush`, except where page tables were unhooked: CPUs that are lazy on the space
/// are not interrupted, and may still walk these tables when the flush is done. `shootdown_horizon`
/// tells which tables can be freed then.
///
/// Interrupts: yes. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 2048.
///
/// # Safety
///
/// As `shootdown_flush`. `extents` must be initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_flush_gathered(
    space: *const SpaceStorage,
    extents: *const ExtentsStorage,
    pending: *mut PendingStorage,
) {
    // SAFETY: the caller's promises.
    unsafe {
        let extents = ExtentsStorage::get(extents);
        let value = pin().flush_gathered(SpaceStorage::get(space), extents);
        PendingStorage::init(pending, Some(value));
    }
}

/// Flushes pages whose page tables were unhooked as well, and waits: as `shootdown_flush_gathered`
/// and `shootdown_wait`, for one range that is given as to `shootdown_flush_and_wait`. Returns
/// which tables can be freed.
///
/// Interrupts: yes. Waits: yes. Reclaims: no. Callable: before shootdown_online. Stack: 2048.
///
/// # Safety
///
/// As `shootdown_flush` and `shootdown_wait`.
///
/// # Panics
///
/// As `shootdown_range`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_flush_tables_and_wait(
    space: *const SpaceStorage,
    start: u64,
    end: u64,
    page_shift: u8,
) -> HorizonNumbers {
    let mut extents = ExtentSet::new();
    extents.add(Extent::range(start..end, PageSize::from_shift(page_shift)).freeing_tables());
    // SAFETY: the caller's promises.
    unsafe { pin().flush_gathered_and_wait(SpaceStorage::get(space), &extents) }.into()
}

/// Flushes all extents of the kernel's own pages in one flush, which interrupts each CPU once;
/// nothing if there are none. For a kernel that collects the ranges that it unmaps.
///
/// Interrupts: yes. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 1664.
///
/// # Safety
///
/// As `shootdown_flush_kernel`. `extents` must be initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_flush_kernel_gathered(
    extents: *const ExtentsStorage,
    pending: *mut PendingStorage,
) {
    // SAFETY: the caller's promises.
    unsafe {
        let extents = ExtentsStorage::get(extents);
        PendingStorage::init(pending, try_pin().map(|pin| pin.flush_kernel_gathered(extents)));
    }
}

/// Notifies every CPU that could still walk unhooked page tables of `space`. When `pending` is
/// done, the tables of every earlier flush can be freed. For a kernel that keeps too many of them.
///
/// Interrupts: yes. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 1152.
///
/// # Safety
///
/// As `shootdown_flush`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_flush_walkers(
    space: *const SpaceStorage,
    pending: *mut PendingStorage,
) {
    // SAFETY: the caller's promises.
    unsafe {
        PendingStorage::init(pending, Some(pin().flush_walkers(SpaceStorage::get(space))));
    }
}

/// Returns which page tables no CPU can walk any more when `pending` is done.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 128.
///
/// # Safety
///
/// `pending` must be the result of `shootdown_flush_gathered`, `shootdown_flush_walkers`, or of a
/// flush that frees tables.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_horizon(pending: *const PendingStorage) -> HorizonNumbers {
    // SAFETY: the caller's promise.
    let pending = unsafe { PendingStorage::get(pending) };
    pending.as_ref().map_or(Horizon::UNKNOWN, Pending::horizon).into()
}

/// Returns true if the tables of this flush itself can be freed when it is done.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 0.
#[unsafe(no_mangle)]
pub extern "C" fn shootdown_tables_are_clear(horizon: HorizonNumbers) -> bool {
    Horizon::new(horizon.flush, horizon.cleared).is_clear()
}
