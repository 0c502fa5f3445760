//! The engine, of which a kernel has one.

#![expect(unsafe_code, reason = "the C interface: the kernel promises what Rust's types enforce")]

use shootdown::{EngineCell, PinnedCpu, Shootdown};

use crate::config::Config;
use crate::machine::{self, CPUS_MAX, Machine};
use crate::storage::{check, sizes::LAYOUT};

pub(crate) static ENGINE: EngineCell<Machine> = EngineCell::new();

/// Initialises the engine. Call this once, on the first CPU, before it starts other CPUs, and
/// before any other function of the library except `shootdown_cpu_init`. Flushes of kernel pages
/// before it do nothing: no CPU is online, and a CPU that comes online empties its TLB.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 512.
///
/// # Safety
///
/// `config` must be valid. No other call of the library may run at the same time. All functions
/// `shootdown_os_…` and `shootdown_mmu_…` must work.
///
/// If the library was built with the feature `processor`:
///
/// - This CPU has paging enabled. `config->kernel_root` is a valid page table for ever, and maps no
///   user page.
/// - On RISC-V, the kernel's leaves have G, and no other entry has. On x86-64 and LoongArch, pages
///   that are marked as global are the kernel's, and are mapped alike in every root.
/// - On x86-64, `config->mark_user_half` is null if user mode runs on the root of the space.
/// - On Arm, `TCR_EL1` is the same on all CPUs, with `A1` = 0. User pages have nG = 1, the kernel's
///   have nG = 0, `CnP` is 0, and `HD` is 0 on CPUs whose dirty marks have an erratum.
/// - The flags of `config->processor` are true of all CPUs.
///
/// # Panics
///
/// If `config` is null; if the library was initialised already; if it was built for another
/// `SHOOTDOWN_CPUS_MAX` than this header; if a member of `config` is out of range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_init(config: *const Config) {
    check(config);
    // SAFETY: the caller's promise.
    let config = unsafe { &*config };
    assert!(
        config.layout == LAYOUT,
        "shootdown_config.layout is {:#x}, and this library has {LAYOUT:#x}: set it to \
         SHOOTDOWN_LAYOUT, and compile C with -DSHOOTDOWN_CPUS_MAX={CPUS_MAX}",
        config.layout,
    );
    assert!(
        config.cpu_limit as usize <= CPUS_MAX,
        "shootdown_config.cpu_limit is {}, and the library has room for {CPUS_MAX}",
        config.cpu_limit,
    );
    assert!(
        config.mark_user_half.is_none() || cfg!(all(feature = "kpti", target_arch = "x86_64")),
        "shootdown_config.mark_user_half is for x86-64 and the feature `kpti`: leave it null",
    );
    assert!(
        config.interrupt_sme.is_none() || cfg!(all(feature = "processor", target_arch = "aarch64")),
        "shootdown_config.interrupt_sme is for the processor on AArch64: leave it null",
    );
    // SAFETY: the caller promises that nothing else uses the engine.
    unsafe { ENGINE.init(machine::machine(config)) };
}

/// The engine.
///
/// # Panics
///
/// If it is not initialised, in a library with checks.
#[inline]
pub(crate) fn engine() -> &'static Shootdown<Machine> {
    if !cfg!(any(feature = "checks", debug_assertions)) {
        // SAFETY: the caller of the exported function promises that `shootdown_init` was called.
        return unsafe { &*ENGINE.address() };
    }
    find_engine().expect("shootdown_init comes before other functions")
}

/// The engine; `None` before `shootdown_init`.
#[inline]
pub(crate) fn find_engine() -> Option<&'static Shootdown<Machine>> {
    ENGINE.find()
}

/// The pin guard of this CPU.
///
/// # Safety
///
/// As [`Shootdown::pin`], while the guard is used: the flush interrupt is masked on this CPU, and
/// so is every interrupt whose handler calls the library.
#[inline]
pub(crate) unsafe fn pin() -> PinnedCpu<'static, Machine> {
    // SAFETY: the caller's promise.
    unsafe { engine().pin() }
}

/// The pin guard of this CPU; `None` before `shootdown_init`, when there is nothing to flush.
///
/// # Safety
///
/// As [`pin`].
#[inline]
pub(crate) unsafe fn try_pin() -> Option<PinnedCpu<'static, Machine>> {
    // SAFETY: the caller's promise.
    unsafe { ENGINE.try_pin() }
}
