//! The beginning and the end of an address space.

#![expect(unsafe_code, reason = "the C interface: the kernel promises what Rust's types enforce")]

use core::ffi::c_void;
use core::ptr::NonNull;

use shootdown::{Root, Tag};

use crate::engine::{engine, pin};
use crate::storage::{SpaceStorage, Storage};

/// Initialises a space whose page tables start at the physical address `root`. The root must be
/// initialised before.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// `space` must be valid for writes, and no CPU may use it yet. The state of this CPU was
/// initialised by `shootdown_cpu_init`; the CPU may be offline.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_space_init(space: *mut SpaceStorage, root: u64) {
    // SAFETY: the caller's promise.
    engine().init_space(unsafe { SpaceStorage::uninit(space) }, Root(root));
}

/// Assigns the tag under which CPUs load the space, from 1 to the `tag_count` of the configuration,
/// with `SHOOTDOWN_TAGS_ASSIGNED` only. Call this before the first switch to the space; later, only
/// while no CPU has it loaded.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// `space` must be initialised, and not loaded on any CPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_space_assign_tag(space: *mut SpaceStorage, tag: u16) {
    // SAFETY: the caller's promise.
    unsafe { SpaceStorage::get_mut(space) }.assign_tag(Tag(tag));
}

/// Returns the id of a space: 1 for the first one. A CPU gives its spaces 64 ids in a row, and then
/// those of another block. Ids are not reused.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// `space` must be initialised, and not reclaimed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_space_id(space: *const SpaceStorage) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { SpaceStorage::get(space) }.id().number()
}

/// Returns the physical address of the root of a space.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// `space` must be initialised, and not reclaimed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_space_root(space: *const SpaceStorage) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { SpaceStorage::get(space) }.root().0
}

/// Replaces the value by which CPUs load a space: the same page table, with other bits beside its
/// address (x86-64: address masking, in bits 61 and 62 of CR3).
///
/// A CPU that has the space loaded keeps the old value until it loads the space again. Execute a
/// full barrier after this call, and load the new value on each such CPU
/// (`shootdown_for_each_user`). A CPU that switches to the space at the same time may load either
/// value: compare them after `shootdown_switch`.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// `space` must be initialised, and not reclaimed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_space_set_root(space: *const SpaceStorage, root: u64) {
    // SAFETY: the caller's promise.
    unsafe { SpaceStorage::get(space) }.set_root(Root(root));
}

/// Ends a space. The pages that it mapped may be freed without a flush, before this call (after
/// `shootdown_enter_lazy`, if this CPU uses the space) or after it. To find them by walking the
/// tables, free them before. The space itself and its page tables may be freed when
/// `shootdown_os_reclaim` gets it: during this call if no CPU can walk its tables, otherwise when
/// the last CPU drops it.
///
/// Interrupts: no. Waits: no. Reclaims: yes. Callable: before shootdown_online. Stack: 256.
///
/// # Safety
///
/// Masked. All of this must hold:
///
/// - a CPU could switch to the space until now, and it is retired only once;
/// - every other CPU that used the space has entered lazy, left the space or switched away before
///   this call. If the space is active on this CPU, this call enters lazy;
/// - every flush of the space was waited for;
/// - no CPU switches to the space again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_retire(space: NonNull<SpaceStorage>) {
    // SAFETY: the caller's promises.
    unsafe { pin().retire(space.cast()) }.wait();
}

/// Interrupts every CPU that keeps a retired space from being reclaimed, and waits until it has
/// dropped the space. For a kernel that is short of memory.
///
/// Interrupts: yes. Waits: yes. Reclaims: yes. Callable: before shootdown_online. Stack: 2176.
///
/// # Safety
///
/// Masked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_reap() {
    // SAFETY: the caller's promise.
    unsafe { pin() }.reap().wait();
}

/// Calls `call` with `context` and the number of each CPU that has `space` loaded, lazy ones and
/// this one included: for what a kernel loads with a space, such as x86's LDT.
///
/// Store the new value, execute a full barrier, and then call this. A CPU that is not named loads
/// the space later, and so observes the value after its `shootdown_switch`. (`shootdown_switch` has
/// the barrier with which yours pairs.) A CPU that is named may have left the space by now.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// Masked. `space` is initialised, and not reclaimed. `call` does not call the library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_for_each_user(
    space: *const SpaceStorage,
    call: extern "C" fn(context: *mut c_void, cpu: u32),
    context: *mut c_void,
) {
    // SAFETY: the caller's promises.
    unsafe { pin().for_each_user(SpaceStorage::get(space), |cpu| call(context, cpu.0)) };
}

/// Removes from the space's mask all CPUs that do not use the space. Such a CPU registers again
/// when it next switches to the space. Returns false if another CPU is doing the same.
///
/// Flushes do this by themselves, when the mask has cost them too many probes. Call this if the
/// kernel detects earlier that the mask is stale: a process has become single-threaded.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// Masked. `space` is initialised, and not retired.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_trim_cpumask(space: *const SpaceStorage) -> bool {
    // SAFETY: the caller's promises.
    unsafe { pin().trim_cpumask(SpaceStorage::get(space)) }
}
