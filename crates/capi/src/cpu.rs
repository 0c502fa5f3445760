//! The functions of a CPU on its own translations, and the handler of the flush interrupt.

#![expect(unsafe_code, reason = "the C interface: the kernel promises what Rust's types enforce")]

use shootdown::{CpuState, PinnedCpu, Presence, SpaceId};
use shootdown_hw::Processor as _;

use crate::engine::{engine, pin, try_pin};
use crate::machine::Machine;
use crate::storage::{CpuStorage, SpaceStorage, Storage};

/// Initialises the state of a CPU that is offline. Call this before the CPU comes online, and
/// before `shootdown_os_cpu` returns the state. May be called before `shootdown_init`.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 128.
///
/// # Safety
///
/// `cpu` must be valid for writes, and stay in place as long as the engine is used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_cpu_init(cpu: *mut CpuStorage) {
    // SAFETY: the caller's promise.
    CpuState::init(unsafe { CpuStorage::uninit(cpu) });
}

/// Brings this CPU online: from now on, flushes interrupt it. Empties its TLB. Call this as the
/// last step before the CPU runs threads, when its flush interrupt is set up.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 640.
///
/// # Safety
///
/// The flush interrupt is masked on this CPU, and so is every interrupt whose handler calls the
/// library. Do not call it in an NMI or a machine-check handler. The same holds for all functions
/// below that say "masked".
///
/// The CPU runs on the kernel's own page table. On x86-64, if the library was built with the
/// feature `processor`, this function enables global pages and tags (`CR4.PGE` and `CR4.PCIDE`), so
/// bits 11 to 0 of CR3 are 0, and no other code changes these two bits of CR4. With
/// `SHOOTDOWN_X86_64_KERNEL_SETS_CR4`, the kernel has set them.
///
/// # Panics
///
/// With the feature `processor`, if this CPU lacks a feature of the first CPU, or needs a
/// workaround of an erratum that the first does not need.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_online() {
    // SAFETY: the caller's promise, and that of `shootdown_init`.
    unsafe { engine().machine().processor().set_up_cpu() };
    // SAFETY: the caller's promise.
    unsafe { pin() }.online();
}

/// Takes this CPU offline: it leaves its space, and no other CPU interrupts it or waits for it
/// until it comes back online. Until then, it may use only kernel pages that are never flushed.
///
/// Interrupts: no. Waits: no. Reclaims: yes. Callable: before shootdown_online. Stack: 256.
///
/// # Safety
///
/// Masked, and the interrupt stays masked until `shootdown_online`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_offline() {
    // SAFETY: the caller's promise.
    unsafe { pin() }.offline();
}

/// Handles the flush interrupt: a call of this function is the whole handler, after the interrupt
/// was acknowledged (`shootdown_acknowledge_ipi`, or by the kernel's driver of the interrupt
/// controller). The handler must observe all stores from before the interrupt was sent. Does
/// nothing before `shootdown_init`, and on a CPU that was never online.
///
/// Also call it in loops that wait for a lock with the interrupt masked, because the holder may be
/// waiting for this CPU.
///
/// Interrupts: yes. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 1664.
///
/// # Safety
///
/// Masked. May also be called in `shootdown_os_ring`, `shootdown_os_wait_hint` and
/// `shootdown_os_reclaim`, where they wait for a lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_handle_flush_ipi() {
    // SAFETY: the caller's promise.
    if let Some(pin) = unsafe { try_pin() } {
        pin.handle_flush_ipi();
    }
}

/// Makes `space` active on this CPU: call this before it runs a thread of the space. Cheap if the
/// space is still loaded, as after `shootdown_enter_lazy`.
///
/// Interrupts: no. Waits: no. Reclaims: yes. Callable: when the CPU is online. Stack: 1536.
///
/// # Safety
///
/// Masked, and this CPU is online. `space` is initialised, and not retired. From now on until
/// `shootdown_os_reclaim` gets it, it must not move, nor be freed or written, and its root must
/// stay a valid page table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_switch(space: *mut SpaceStorage) {
    // SAFETY: the caller's promises.
    unsafe { pin().switch(SpaceStorage::get(space)) };
}

/// The root and the tag of the space that a CPU has loaded.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct LoadedRoot {
    /// The id of the space; 0 if the kernel's own page table is loaded, and then all is 0.
    pub space: u64,
    /// Physical address of the root.
    pub root: u64,
    /// The tag of the space. If it is 0, the machine has no tags, or no other was left: drop
    /// everything after each load of a root, the kernel's included.
    pub tag: u16,
    /// True if this CPU may access user memory; false if it is lazy.
    pub is_active: bool,
}

/// Returns the root and the tag that this CPU has loaded.
///
/// In a kernel whose exit path loads roots (`SHOOTDOWN_RISCV64_KERNEL_LOADS`, or a
/// `shootdown_mmu_load` that loads nothing), the exit path loads this root under this tag. The
/// order is: mask; `shootdown_switch` or `shootdown_resume`; this function; the load; user mode. No
/// other function of the library is called in between. On the way in, the kernel's root is loaded
/// before the library is called.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// Masked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_loaded() -> LoadedRoot {
    // SAFETY: the caller's promise.
    let loaded = unsafe { pin() }.loaded_root();
    let none = LoadedRoot { space: 0, root: 0, tag: 0, is_active: false };
    loaded.map_or(none, |it| LoadedRoot {
        space: it.space.number(),
        root: it.root.0,
        tag: it.tag.0,
        is_active: it.is_active,
    })
}

/// Publishes that this CPU keeps its space loaded, but accesses no user memory: it idles, or runs a
/// kernel thread. From now on flushes do not interrupt it. It catches up at `shootdown_switch`.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// Masked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_enter_lazy() {
    // SAFETY: the caller's promise.
    unsafe { pin() }.enter_lazy();
}

/// Makes the space with this id active again if this CPU still has it loaded, as
/// `shootdown_switch` would, and returns true. Returns false if it is not loaded, or is retired:
/// then the CPU must use another space.
///
/// For a kernel thread that borrows the loaded space. It must not call `shootdown_switch`, because
/// the space may be dead.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 1280.
///
/// # Safety
///
/// Masked, and this CPU is online. No other CPU is within `shootdown_retire` for this space.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_resume(id: u64) -> bool {
    // SAFETY: the caller's promise.
    let pin = unsafe { pin() };
    // 0 if no space is loaded: then there is nothing to resume.
    loaded_id(&pin) == id && pin.resume_loaded().is_some()
}

/// Makes the loaded space active again, whichever it is, and returns its id. Returns 0 if no space
/// is loaded, or if it is retired. For a kernel that enters lazy where it does not have the space
/// at hand, such as around the idle loop's halt.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 1280.
///
/// # Safety
///
/// As `shootdown_resume`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_resume_loaded() -> u64 {
    // SAFETY: the caller's promise.
    unsafe { pin() }.resume_loaded().map_or(0, SpaceId::number)
}

/// The id of the space that this CPU has loaded; 0 if there is none.
fn loaded_id(pin: &PinnedCpu<'_, Machine>) -> u64 {
    let machine = engine().machine();
    match engine().cpu(pin.id()).presence(machine) {
        Presence::Lazy(id) | Presence::Active(id) => id.number(),
        Presence::Switching(_) | Presence::Out => 0,
    }
}

/// Loads the kernel's own page table. Call this on a CPU that enters a deep idle state, so that it
/// keeps no dead space's page tables allocated.
///
/// Interrupts: no. Waits: no. Reclaims: yes. Callable: before shootdown_online. Stack: 256.
///
/// # Safety
///
/// Masked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_leave_space() {
    // SAFETY: the caller's promise.
    unsafe { pin() }.leave_space();
}

/// Begins a walk of page tables by software on this CPU, of the kernel's tables or of the space
/// that it has loaded. Call this before you read the root's entry. Until `shootdown_end_walk`, no
/// table is freed that the walk can reach, except after flushes that are broadcast.
///
/// Only a kernel that defines `shootdown_os_is_away` has to call this. Walks may nest.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// Masked, until `shootdown_end_walk`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_begin_walk() {
    // SAFETY: the caller's promise.
    core::mem::forget(unsafe { pin() }.begin_walk());
}

/// Ends a walk of page tables by software.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// Masked. `shootdown_begin_walk` was called on this CPU, and this is the only call for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_end_walk() {
    // SAFETY: the caller's promise.
    unsafe { pin().end_walk() };
}

/// Returns true if a handler that cannot be masked, such as that of an NMI, may access user memory
/// of `space` on this CPU until it returns. The handler must not call any other function of the
/// library.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// `space` must be initialised, and not reclaimed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_nmi_may_touch_user(space: *const SpaceStorage) -> bool {
    // SAFETY: the caller's promise.
    engine().nmi_may_touch_user(unsafe { SpaceStorage::get(space) }.id())
}
