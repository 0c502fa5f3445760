//! Ports, model-specific registers, and control registers.

#![expect(unsafe_code, reason = "instructions that only a kernel may execute")]

use core::arch::asm;

/// # Safety
///
/// The port must be of a device that may be written to like that.
pub(super) unsafe fn write_port_8(port: u16, value: u8) {
    // SAFETY: as our caller promises.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nostack, preserves_flags)) };
}

/// # Safety
///
/// As [`write_port_8`].
pub(super) unsafe fn write_port_16(port: u16, value: u16) {
    // SAFETY: as our caller promises.
    unsafe { asm!("out dx, ax", in("dx") port, in("ax") value, options(nostack, preserves_flags)) };
}

/// # Safety
///
/// As [`write_port_8`].
pub(super) unsafe fn write_port_32(port: u16, value: u32) {
    // SAFETY: as our caller promises.
    unsafe {
        asm!("out dx, eax", in("dx") port, in("eax") value, options(nostack, preserves_flags));
    }
}

/// # Safety
///
/// The port must be of a device that may be read.
pub(super) unsafe fn read_port_8(port: u16) -> u8 {
    let value;
    // SAFETY: as our caller promises.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nostack, preserves_flags)) };
    value
}

/// # Safety
///
/// The register must exist, and what is written be right for it.
pub(super) unsafe fn write_msr(register: u32, value: u64) {
    // SAFETY: as our caller promises.
    unsafe {
        asm!(
            "wrmsr",
            in("ecx") register,
            in("eax") value as u32,
            in("edx") (value >> 32) as u32,
            options(nostack, preserves_flags),
        );
    }
}

/// # Safety
///
/// The register must exist.
pub(super) unsafe fn read_msr(register: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: as our caller promises.
    unsafe {
        asm!(
            "rdmsr",
            in("ecx") register,
            out("eax") low,
            out("edx") high,
            options(nostack, preserves_flags),
        );
    }
    u64::from(high) << 32 | u64::from(low)
}

/// Whether interrupts are masked.
pub(super) fn interrupts_masked() -> bool {
    const INTERRUPTS: u64 = 1 << 9;
    let flags: u64;
    // SAFETY: reads.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags, options(preserves_flags)) };
    flags & INTERRUPTS == 0
}

/// Masks interrupts.
pub(super) fn mask_interrupts() {
    // SAFETY: nothing is moved across, for the compiler must take it to use memory.
    unsafe { asm!("cli", options(nostack)) };
}

/// Lets interrupts in.
pub(super) fn unmask_interrupts() {
    // SAFETY: there are handlers; and as above.
    unsafe { asm!("sti", options(nostack)) };
}

/// Halts with interrupts masked: until a reset.
pub(super) fn halt() {
    // SAFETY: nothing happens.
    unsafe { asm!("hlt", options(nomem, nostack)) };
}

/// Waits for an interrupt, where they are masked.
///
/// They are let in after the instruction that follows `sti`: so none comes before `hlt`, which
/// would then wait for another.
pub(super) fn wait_for_interrupt() {
    // SAFETY: there are handlers; and as above.
    unsafe { asm!("sti", "hlt", "cli", options(nostack)) };
}

/// The address of which a page fault tells.
pub(super) fn fault_address() -> u64 {
    let value;
    // SAFETY: reads.
    unsafe { asm!("mov {}, cr2", out(reg) value, options(nostack, preserves_flags)) };
    value
}

/// Sets bits of CR4.
///
/// # Safety
///
/// The CPU must know them, and the kernel keep their rules.
pub(super) unsafe fn set_in_cr4(bits: u64) {
    // SAFETY: as our caller promises.
    unsafe {
        asm!(
            "mov {held}, cr4",
            "or {held}, {bits}",
            "mov cr4, {held}",
            held = out(reg) _,
            bits = in(reg) bits,
            options(nostack),
        );
    }
}

/// Ticks since some moment, the same on all CPUs of the machines that are meant. Not before
/// anything that is earlier in the program has been done.
pub(super) fn time_stamp() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: a barrier, and reads.
    unsafe {
        asm!("lfence", "rdtsc", out("eax") low, out("edx") high, options(nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}
