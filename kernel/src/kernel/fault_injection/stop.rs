//! A CPU that stops in a crash while a flush waits for it: the watchdog of the waiting CPU names
//! it, disconnects it, and the flush goes on.
//!
//! A kernel would stop the CPU by NMI. Here the CPU stops by itself, with interrupts masked,
//! because not all architectures have NMIs.

#![expect(unsafe_code, reason = "disconnects a CPU that has stopped")]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use shootdown::{CpuId, CpuSet, Machine as _, PinnedCpu, StallReport};

use crate::kernel::arch::{Arch, Architecture};
use crate::kernel::console::println;
use crate::kernel::fault_injection::engine::{engine, with_pinned};
use crate::kernel::fault_injection::user::{CPU, wait_until};

/// The CPU runs, or has never stopped.
const RUNS: u32 = 0;
/// The CPU has stopped. It stores this with release after its last access, and the watchdog loads
/// it with acquire before it disconnects the CPU.
const STOPPED: u32 = 1;
/// The CPU was disconnected, and may come back.
const RESTARTED: u32 = 2;

static STATE: AtomicU32 = AtomicU32::new(RUNS);
/// The time at which the first CPU found that another CPU has not answered; 0 if it does not wait.
static WAITS_SINCE_NS: AtomicU64 = AtomicU64::new(0);

/// Time without an answer after which the watchdog looks whether the CPU has stopped. An answer
/// takes microseconds, or milliseconds on a busy host.
const PATIENCE_NS: u64 = 20_000_000;

/// Stops the calling CPU until [`come_back`], with its bell, its presence and its space as they
/// are.
pub(crate) fn stop() {
    assert!(Arch::interrupts_masked());
    engine().machine().load_kernel();
    STATE.store(STOPPED, Ordering::Release);
    while STATE.load(Ordering::Acquire) != RESTARTED {
        Arch::spin_hint();
    }
    with_pinned(PinnedCpu::online);
    STATE.store(RUNS, Ordering::Release);
}

/// Waits until the other CPU, which is executing [`stop`], has stopped.
pub(crate) fn wait_until_stopped() {
    WAITS_SINCE_NS.store(0, Ordering::Relaxed);
    wait_until(|| STATE.load(Ordering::Acquire) == STOPPED);
}

/// Disconnects the stopped CPU if the watchdog has not done so, and lets it come back.
pub(crate) fn come_back() {
    if STATE.load(Ordering::Acquire) == STOPPED {
        // The flush was broadcast, and nothing waited for the CPU.
        disconnect();
    }
    wait_until(|| STATE.load(Ordering::Acquire) == RUNS);
}

/// The watchdog, in the loop that waits for the answers of `waiting`.
pub(crate) fn watch(waiting: &CpuSet<[u64; 1]>) {
    if Arch::cpu() != 0 || !waiting.contains(CpuId(CPU)) {
        return;
    }
    let now_ns = Arch::now_ns();
    let since_ns = WAITS_SINCE_NS.load(Ordering::Relaxed);
    if since_ns == 0 {
        WAITS_SINCE_NS.store(now_ns.max(1), Ordering::Relaxed);
    } else if now_ns.saturating_sub(since_ns) > PATIENCE_NS
        && STATE.load(Ordering::Acquire) == STOPPED
    {
        for stalled in StallReport::new(engine().machine(), waiting).cpus() {
            println!("stall {stalled}");
        }
        disconnect();
    }
}

fn disconnect() {
    // SAFETY: the CPU has stopped, with the kernel's root loaded: `STATE` was loaded with acquire.
    // It executes nothing but the loop in `stop` before it comes back online. It has completed its
    // broadcasts, because it has issued none. Only the first CPU calls this.
    with_pinned(|pin| unsafe { pin.disconnect(CpuId(CPU)) });
    STATE.store(RESTARTED, Ordering::Release);
}
