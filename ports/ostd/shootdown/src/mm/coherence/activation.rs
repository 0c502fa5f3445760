//! Activation: which user memory a CPU may be using.
//!
//! A [`VmSpace`] stays activated on a CPU until another one is, and safe code may keep a `VmReader`
//! for it. But a CPU that runs no such code need not be interrupted: it is *lazy*. Safe code uses
//! user memory in four ways only: it activates a space, makes a reader or a writer, or enters user
//! mode. Each of them calls [`use_user_memory`], which marks the task. From then on, the CPU is not
//! lazy while it runs that task, unless the task halts the CPU. Readers and writers cannot be sent
//! to another task, so a task without the mark uses no user memory: it is a kernel thread.

use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;

use shootdown::{Presence, SpaceId};

use super::{
    machine::{engine, pin, with_pinned},
    table,
};
use crate::{
    cpu_local_cell,
    irq::{DisabledLocalIrqGuard, disable_local},
    mm::vm_space::{ACTIVATED_VM_SPACE, VmSpace},
    task::Task,
};

cpu_local_cell! {
    /// Whether the activated space is loaded and active. If it is, the current task has the mark,
    /// except between a switch of tasks and [`after_post_schedule`].
    static IS_READY: bool = false;
}

/// Accesses a cell of this CPU, with interrupts masked. Where no single instruction does it, `load`
/// and `store` mask them once more.
macro_rules! masked {
    ($cell:ident.load()) => {{
        #[cfg(target_arch = "x86_64")]
        let value = $cell.load();
        // SAFETY: interrupts are masked, so nothing else on this CPU accesses the cell.
        #[cfg(not(target_arch = "x86_64"))]
        let value = unsafe { $cell.as_mut_ptr().read() };
        value
    }};
    ($cell:ident.store($value:expr)) => {{
        let value = $value;
        #[cfg(target_arch = "x86_64")]
        $cell.store(value);
        // SAFETY: as above.
        #[cfg(not(target_arch = "x86_64"))]
        unsafe {
            $cell.as_mut_ptr().write(value)
        };
    }};
}

/// Prepares this CPU for an access to user memory by the current task.
///
/// Readers and writers that the task makes stay valid if the task is moved to another CPU: see
/// [`after_post_schedule`].
#[inline]
pub(crate) fn use_user_memory() {
    if !IS_READY.load() {
        prepare();
    }
}

/// As [`use_user_memory`], with interrupts masked until user mode is entered.
#[inline]
pub(crate) fn use_user_memory_masked(_: &DisabledLocalIrqGuard) {
    if !masked!(IS_READY.load()) {
        prepare();
    }
}

#[cold]
fn prepare() {
    let guard = disable_local();
    mark_current_task();
    // SAFETY: this CPU keeps a reference to the activated space.
    load(unsafe { ACTIVATED_VM_SPACE.load().as_ref() }, &guard);
    drop(guard);
    table::free_reclaimed();
}

#[inline]
fn mark_current_task() {
    if let Some(task) = Task::current() {
        task.uses_user_memory().store(true, Relaxed);
    }
}

fn has_mark(task: &Task) -> bool {
    task.uses_user_memory().load(Relaxed)
}

/// Loads the activated space, or the kernel's root if there is none.
#[inline]
fn load(activated: Option<&VmSpace>, guard: &DisabledLocalIrqGuard) {
    let pin = pin(guard);
    match activated {
        // SAFETY: this CPU came online before it ran a task. The space is retired only when its
        // last reference is gone, and so not before this CPU has activated another one or has
        // become lazy.
        Some(space) => unsafe { pin.switch(space.table().space()) },
        None => pin.leave_space(),
    }
    masked!(IS_READY.store(true));
}

/// Activates a space on this CPU.
pub(in crate::mm) fn activate(space: &Arc<VmSpace>) {
    let guard = disable_local();
    let before = masked!(ACTIVATED_VM_SPACE.load());
    if before == Arc::as_ptr(space) {
        return use_user_memory();
    }
    masked!(ACTIVATED_VM_SPACE.store(Arc::into_raw(Arc::clone(space))));
    mark_current_task();
    load(Some(space), &guard);
    drop(guard);
    drop_activated(before);
}

/// Deactivates the space of a task that ends. Without: a CPU that idles from now on keeps a space
/// whose last task has ended.
pub(crate) fn deactivate() {
    let guard = disable_local();
    if !Task::current().is_some_and(|task| has_mark(&task)) {
        return;
    }
    enter_lazy();
    let before = ACTIVATED_VM_SPACE.load();
    ACTIVATED_VM_SPACE.store(core::ptr::null());
    drop(guard);
    drop_activated(before);
}

/// Drops the reference that this CPU has kept to the space that was activated before.
fn drop_activated(before: *const VmSpace) {
    if !before.is_null() {
        // SAFETY: `activate` made the pointer from an `Arc`, and the caller has replaced it.
        drop(unsafe { Arc::from_raw(before) });
    }
    table::free_reclaimed();
}

/// Publishes that this CPU uses no user memory until [`load`] is called.
fn enter_lazy() {
    if IS_READY.load() {
        with_pinned(|pin| {
            IS_READY.store(false);
            pin.enter_lazy();
        });
    }
}

/// Call this after a switch to `task`, and after the kernel's handler, which may have activated the
/// space of `task`.
///
/// A task with the mark finds the activated space loaded, because it may have a reader. For any
/// other task, the CPU is lazy.
#[inline]
pub(crate) fn after_post_schedule(task: &Task) {
    if has_mark(task) {
        use_user_memory();
    } else {
        enter_lazy();
    }
}

/// Call this before the CPU halts, with interrupts masked. No flush needs to wake the CPU.
pub(crate) fn enter_halt() {
    enter_lazy();
}

/// Call this after [`enter_halt`], when the CPU runs the current task again.
pub(crate) fn leave_halt() {
    if Task::current().is_some_and(|task| has_mark(&task)) {
        use_user_memory();
    }
}

/// Makes this CPU lazy on the space `id`, which has no user any more, if the CPU is not.
pub(super) fn abandon(id: SpaceId) {
    with_pinned(|pin| {
        let presence = engine().cpu(pin.id()).presence(engine().machine());
        if presence == Presence::Active(id) {
            IS_READY.store(false);
            pin.enter_lazy();
        }
    });
}
