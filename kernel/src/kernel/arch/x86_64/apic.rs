//! The local APIC: interrupts between CPUs, and a timer for each CPU.
//!
//! The kernel writes its registers as memory (xAPIC) or, where CPUID has the feature, as
//! model-specific registers (x2APIC). See SDM 3A, chapter 11.
//!
//! QEMU's interpreter (TCG, 10.0) has both modes. But when it counts instructions (`-icount`), it
//! exits as soon as a timer is set by `wrmsr` ("Bad icount read"), because that instruction is not
//! expected to read the clock. Therefore the kernel uses xAPIC there. To use x2APIC nevertheless,
//! without `-icount`, hide the interpreter: `-cpu max,-hypervisor`.

#![expect(unsafe_code, reason = "writes to the device")]

use core::sync::atomic::{AtomicBool, Ordering};

use shootdown_hw::Ipi;
use shootdown_hw::x86_64::X2ApicIpi;
use x86::instructions::interrupts::without_interrupts;
use x86::instructions::port::Port;
use x86::registers::model_specific::Msr;

use super::{cpu, paging, vectors};
use crate::kernel::arch::contract::Interrupt;

/// Physical address of the xAPIC registers, unless firmware has moved them.
pub(super) const REGISTERS: u64 = 0xfee0_0000;

/// Offsets of registers.
const TASK_PRIORITY: u32 = 0x80;
const END_OF_INTERRUPT: u32 = 0xb0;
const LOGICAL_ID: u32 = 0xd0;
const LOGICAL_FORMAT: u32 = 0xe0;
const SPURIOUS: u32 = 0xf0;
const COMMAND: u32 = 0x300;
const COMMAND_TARGET: u32 = 0x310;
const TIMER: u32 = 0x320;
const LINE_0: u32 = 0x350;
const TIMER_INITIAL: u32 = 0x380;
const TIMER_CURRENT: u32 = 0x390;
const TIMER_DIVIDER: u32 = 0x3e0;

/// Bits of `COMMAND`.
const ASSERT: u32 = 1 << 14;
const LOGICAL: u32 = 1 << 11;
const INIT: u32 = 5 << 8;
const START_UP: u32 = 6 << 8;
/// Bit of `COMMAND` in an xAPIC: the last interrupt has not been sent yet.
const IS_PENDING: u32 = 1 << 12;
/// Bit of `TIMER` and `LINE_0`.
const MASKED: u32 = 1 << 16;
/// Bit of `SPURIOUS`.
const ENABLED: u32 = 1 << 8;
/// Value of `LOGICAL_FORMAT`: a logical destination has one bit for each CPU.
const FLAT: u32 = u32::MAX;
/// Number of CPUs that one command of an xAPIC reaches: those that have a bit.
const FLAT_CPUS: u32 = 8;
/// Value of `TIMER_DIVIDER`: divide by 1.
const UNDIVIDED: u32 = 0b1011;

const BASE: u32 = 0x1b;
const BASE_ENABLED: u64 = 1 << 11;
const BASE_X2APIC: u64 = 1 << 10;
const X2APIC_REGISTERS: u32 = 0x800;

static IS_X2APIC: AtomicBool = AtomicBool::new(false);

/// Masks the legacy interrupt controllers, whose vectors would be mistaken for exceptions. Call
/// this once.
pub(super) fn mask_legacy() {
    const DATA_PORTS: [u16; 2] = [0x21, 0xa1];
    for port in DATA_PORTS {
        // SAFETY: these are the ports of the controllers. Without controllers, nothing happens.
        unsafe { Port::new(port).write(0xff_u8) };
    }
}

/// Sets up the APIC of the CPU with this number, which is also its APIC ID.
pub(super) fn set_up(cpu: u32) {
    let is_x2apic = use_x2apic();
    IS_X2APIC.store(is_x2apic, Ordering::Relaxed);
    let mode = if is_x2apic { BASE_ENABLED | BASE_X2APIC } else { BASE_ENABLED };
    // SAFETY: the APIC has this mode, and the kernel never leaves it.
    unsafe { Msr::new(BASE).write(Msr::new(BASE).read() | mode) };
    if !is_x2apic {
        // An x2APIC's logical ID is fixed.
        write(LOGICAL_FORMAT, FLAT);
        write(LOGICAL_ID, if cpu < FLAT_CPUS { 1 << (24 + cpu) } else { 0 });
    }
    write(TASK_PRIORITY, 0);
    write(LINE_0, MASKED);
    write(TIMER_DIVIDER, UNDIVIDED);
    write(TIMER, MASKED | u32::from(vectors::TIMER));
    write(SPURIOUS, ENABLED | u32::from(vectors::SPURIOUS));
}

/// Returns `true` if CPUID has x2APIC, except in QEMU's interpreter, where setting its timer fails.
fn use_x2apic() -> bool {
    const X2APIC: u32 = 1 << 21;
    const HYPERVISOR: u32 = 1 << 31;
    const INTERPRETER: [[u8; 4]; 3] = [*b"TCGT", *b"CGTC", *b"GTCG"];
    let features = cpu::cpuid(1).ecx;
    let is_interpreted = features & HYPERVISOR != 0 && {
        let signature = cpu::cpuid(0x4000_0000);
        [signature.ebx, signature.ecx, signature.edx].map(u32::to_le_bytes) == INTERPRETER
    };
    features & X2APIC != 0 && !is_interpreted
}

/// Interrupts other CPUs. Their handlers observe all earlier stores of this CPU. One command
/// reaches up to 16 CPUs of a cluster (x2APIC), or all of the first eight CPUs (xAPIC).
pub(super) fn send(cpus: &mut dyn Iterator<Item = u32>, interrupt: Interrupt) {
    let vector = match interrupt {
        Interrupt::Flush => vectors::FLUSH,
        Interrupt::Wake => vectors::WAKE,
        Interrupt::Timer => vectors::TIMER,
    };
    if IS_X2APIC.load(Ordering::Relaxed) {
        // SAFETY: the APICs are in x2APIC mode, the kernel handles the vector, and both emulators
        // deliver logical destinations.
        unsafe { X2ApicIpi::new(vector).by_clusters() }.send(cpus.map(u64::from));
        return;
    }
    let command = ASSERT | u32::from(vector);
    let mut flat = 0;
    for cpu in cpus {
        if cpu < FLAT_CPUS {
            flat |= 1 << cpu;
        } else {
            command_xapic(cpu, command);
        }
    }
    if flat != 0 {
        command_xapic(flat, command | LOGICAL);
    }
}

/// Resets a CPU, which then waits for [`start_up`].
pub(super) fn reset(target: u32) {
    command(target, ASSERT | INIT);
}

/// Starts a CPU that was reset, at a page below 1 MiB.
pub(super) fn start_up(target: u32, address: u64) {
    command(target, ASSERT | START_UP | (address >> 12) as u32);
}

fn command(target: u32, command: u32) {
    if IS_X2APIC.load(Ordering::Relaxed) {
        shootdown_hw::x86_64::order_before_x2apic_write();
        let register = X2APIC_REGISTERS + (COMMAND >> 4);
        // SAFETY: the target is in the state that the command requires.
        unsafe { Msr::new(register).write(u64::from(target) << 32 | u64::from(command)) };
    } else {
        command_xapic(target, command);
    }
}

fn command_xapic(target: u32, command: u32) {
    // The command has two registers, and a handler that also sends must not run between the two
    // writes. Uncached memory is written after all earlier stores.
    without_interrupts(|| {
        while read(COMMAND) & IS_PENDING != 0 {
            core::hint::spin_loop();
        }
        write(COMMAND_TARGET, target << 24);
        write(COMMAND, command);
    });
}

/// Ends the interrupt that is being handled.
pub(super) fn end_of_interrupt() {
    write(END_OF_INTERRUPT, 0);
}

/// Sets the timer to interrupt once after `ticks`. Replaces an earlier request.
pub(super) fn set_timer(ticks: u32) {
    write(TIMER, u32::from(vectors::TIMER));
    write(TIMER_INITIAL, ticks);
}

/// Makes the timer count down from its maximum without an interrupt.
pub(super) fn count_silently() {
    write(TIMER, MASKED | u32::from(vectors::TIMER));
    write(TIMER_INITIAL, u32::MAX);
}

/// The timer's current count.
pub(super) fn ticks_left() -> u32 {
    read(TIMER_CURRENT)
}

fn write(register: u32, value: u32) {
    // SAFETY: these are registers of the APIC, and all writes to them are intended.
    unsafe {
        if IS_X2APIC.load(Ordering::Relaxed) {
            Msr::new(X2APIC_REGISTERS + (register >> 4)).write(value.into());
        } else {
            memory(register).write_volatile(value);
        }
    }
}

fn read(register: u32) -> u32 {
    // SAFETY: these are registers of the APIC, and reading them has no side effect.
    unsafe {
        if IS_X2APIC.load(Ordering::Relaxed) {
            Msr::new(X2APIC_REGISTERS + (register >> 4)).read() as u32
        } else {
            memory(register).read_volatile()
        }
    }
}

fn memory(register: u32) -> *mut u32 {
    paging::phys_to_virt(REGISTERS + u64::from(register))
}
