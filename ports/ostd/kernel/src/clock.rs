//! A clock that counts instructions in counted boots: those of all CPUs.

/// Returns the ticks of the clock since the start of the machine.
#[cfg(target_arch = "x86_64")]
pub fn now() -> u64 {
    ostd::arch::read_tsc()
}

/// Returns the ticks of the clock since the start of the machine.
#[cfg(target_arch = "riscv64")]
pub fn now() -> u64 {
    let ticks;
    // SAFETY: reading has no effect, and the firmware lets the kernel read the register.
    unsafe { core::arch::asm!("csrr {}, instret", out(reg) ticks, options(nomem, nostack)) };
    ticks
}
