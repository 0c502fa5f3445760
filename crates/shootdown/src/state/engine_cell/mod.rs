//! A place for an engine in a static, for a machine that is known at boot only.

#![expect(unsafe_code, reason = "holds an engine that may not be initialised yet")]

use core::cell::UnsafeCell;
use core::fmt;
use core::mem::MaybeUninit;
use core::ops::Deref;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU64};

use crate::state::engine::Shootdown;
use crate::state::machine::Machine;
use crate::state::pinned_cpu::PinnedCpu;

/// A place for the engine in a static, for a kernel that knows its machine (features of the
/// processor, number of CPUs) at boot only.
///
/// The engine is initialised in its place, so that no copy of it is on the stack. After that, the
/// cell dereferences to the engine. Before it, [`try_pin`](Self::try_pin) returns `None`: code that
/// also runs early in the boot then has nothing to flush.
///
/// ```
/// # use shootdown::{EngineCell, Extent, Machine};
/// # fn boot<M: Machine<Word = core::sync::atomic::AtomicU64> + 'static>(
/// #     ENGINE: &'static EngineCell<M>, machine: fn() -> M, kernel_page: u64,
/// # ) {
/// // static ENGINE: EngineCell<MyMachine> = EngineCell::new();
///
/// // Changes a kernel page at any time. Before there is an engine, no other CPU runs.
/// let change_kernel_page = || {
///     // SAFETY: interrupts are masked.
///     if let Some(cpu) = unsafe { ENGINE.try_pin() } {
///         cpu.flush_kernel(Extent::page(kernel_page)).wait();
///     }
/// };
/// change_kernel_page();
/// // SAFETY: called once, before other CPUs are started.
/// unsafe { ENGINE.init(machine()) };
/// change_kernel_page();
/// # }
/// ```
pub struct EngineCell<M: Machine> {
    is_set: AtomicBool,
    engine: UnsafeCell<MaybeUninit<Shootdown<M>>>,
}

// SAFETY: the engine is `Sync`. It is written once, before any other CPU accesses the cell, as the
// caller of `init` promises.
unsafe impl<M: Machine> Sync for EngineCell<M> where Shootdown<M>: Sync {}

impl<M: Machine> EngineCell<M> {
    /// An empty cell.
    #[must_use]
    pub const fn new() -> Self {
        Self { is_set: AtomicBool::new(false), engine: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// The engine; `None` before [`init`](Self::init).
    #[inline]
    pub fn find(&self) -> Option<&Shootdown<M>> {
        // Relaxed: another CPU that finds the cell set was started after it was.
        let is_set = self.is_set.load(Relaxed);
        // SAFETY: the cell is set, and is not written any more.
        is_set.then(|| unsafe { (*self.engine.get()).assume_init_ref() })
    }

    /// The address that the engine has or will have: for the C interface, which compares with it.
    #[doc(hidden)]
    #[inline]
    pub const fn address(&self) -> *const Shootdown<M> {
        self.engine.get().cast()
    }

    /// The pin guard of the CPU that runs this call; `None` before [`init`](Self::init).
    ///
    /// Then no CPU is online, so there is no CPU to notify: a flush that is left out is made up for
    /// by [`PinnedCpu::online`], which empties the TLB. Code that relies on the flush of a kernel
    /// page on its own CPU before that must invalidate by itself.
    ///
    /// # Safety
    ///
    /// As for [`Shootdown::pin`].
    #[inline]
    pub unsafe fn try_pin(&self) -> Option<PinnedCpu<'_, M>> {
        // SAFETY: the caller promises the same.
        self.find().map(|engine| unsafe { engine.pin() })
    }
}

impl<M: Machine<Word = AtomicU64>> EngineCell<M> {
    /// Makes the engine, with every CPU offline, and returns it.
    ///
    /// # Safety
    ///
    /// Call this once, on the first CPU, before it starts other CPUs, and not in a handler.
    ///
    /// # Panics
    ///
    /// If the cell is set.
    pub unsafe fn init(&self, machine: M) -> &Shootdown<M> {
        // Relaxed: no other CPU runs.
        assert!(!self.is_set.load(Relaxed), "the engine exists already");
        // SAFETY: the caller promises that nothing else accesses the cell; it was not set, so there
        // is no reference to the engine.
        Shootdown::init(unsafe { &mut *self.engine.get() }, machine);
        // Relaxed: other CPUs are started after this store.
        self.is_set.store(true, Relaxed);
        // Not the result of `init`: it is exclusive, and ends with the first use of the cell.
        self
    }
}

impl<M: Machine> Deref for EngineCell<M> {
    type Target = Shootdown<M>;

    /// The engine.
    ///
    /// # Panics
    ///
    /// Before [`init`](Self::init).
    #[inline]
    fn deref(&self) -> &Shootdown<M> {
        self.find().expect("`EngineCell::init` comes before the first use of the engine")
    }
}

impl<M: Machine> Default for EngineCell<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Machine> fmt::Debug for EngineCell<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EngineCell").field(&self.find()).finish()
    }
}

#[cfg(test)]
mod tests;
