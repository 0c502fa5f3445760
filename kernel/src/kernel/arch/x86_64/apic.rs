//! The local APIC: interrupts between CPUs, and a timer for each.
//!
//! Its registers are written as memory (xAPIC) or, where CPUID says so, as model-specific registers
//! (x2APIC). SDM 3A, chapter 11.
//!
//! QEMU's interpreter (TCG, 10.0) has both, but when it counts instructions (`-icount`), it ends at
//! once where a timer is set by `wrmsr` ("Bad icount read"): it has not foreseen that this
//! instruction looks at the clock. So there it is memory. To have it use x2APIC all the same,
//! without `-icount`, keep it from saying what it is: `-cpu max,-hypervisor`.

#![expect(unsafe_code, reason = "writes to the device")]

use core::sync::atomic::{AtomicBool, Ordering};

use x86::instructions::interrupts::without_interrupts;
use x86::instructions::port::Port;
use x86::registers::model_specific::Msr;

use super::{cpu, paging, vectors};
use crate::kernel::arch::contract::Interrupt;

/// Where xAPIC registers are, unless somebody has moved them.
pub(super) const REGISTERS: u64 = 0xfee0_0000;

/// Offsets of registers.
const TASK_PRIORITY: u32 = 0x80;
const END_OF_INTERRUPT: u32 = 0xb0;
const SPURIOUS: u32 = 0xf0;
const COMMAND: u32 = 0x300;
const COMMAND_TARGET: u32 = 0x310;
const TIMER: u32 = 0x320;
const LINE_0: u32 = 0x350;
const TIMER_INITIAL: u32 = 0x380;
const TIMER_CURRENT: u32 = 0x390;
const TIMER_DIVIDER: u32 = 0x3e0;

/// In `COMMAND`.
const ASSERT: u32 = 1 << 14;
const INIT: u32 = 5 << 8;
const START_UP: u32 = 6 << 8;
/// There, of an xAPIC: the last one is not yet sent.
const IS_PENDING: u32 = 1 << 12;
/// In `TIMER` and `LINE_0`.
const MASKED: u32 = 1 << 16;
/// In `SPURIOUS`.
const ENABLED: u32 = 1 << 8;
/// In `TIMER_DIVIDER`: by 1.
const UNDIVIDED: u32 = 0b1011;

const BASE: u32 = 0x1b;
const BASE_ENABLED: u64 = 1 << 11;
const BASE_X2APIC: u64 = 1 << 10;
const X2APIC_REGISTERS: u32 = 0x800;

static IS_X2APIC: AtomicBool = AtomicBool::new(false);

/// Masks the interrupt controllers that came before this one: their vectors would be taken for
/// exceptions. Once.
pub(super) fn mask_legacy() {
    const DATA_PORTS: [u16; 2] = [0x21, 0xa1];
    for port in DATA_PORTS {
        // SAFETY: where they are; elsewhere, nothing.
        unsafe { Port::new(port).write(0xff_u8) };
    }
}

/// Sets up this CPU's.
pub(super) fn set_up() {
    let is_x2apic = use_x2apic();
    IS_X2APIC.store(is_x2apic, Ordering::Relaxed);
    let mode = if is_x2apic { BASE_ENABLED | BASE_X2APIC } else { BASE_ENABLED };
    // SAFETY: it can do what it says, and there is no way back that we would go.
    unsafe { Msr::new(BASE).write(Msr::new(BASE).read() | mode) };
    write(TASK_PRIORITY, 0);
    write(LINE_0, MASKED);
    write(TIMER_DIVIDER, UNDIVIDED);
    write(TIMER, MASKED | u32::from(vectors::TIMER));
    write(SPURIOUS, ENABLED | u32::from(vectors::SPURIOUS));
}

/// By CPUID: and not where that, of QEMU's interpreter, has a timer set.
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

/// Interrupts CPUs. What was stored before is seen there.
pub(super) fn send(cpus: &mut dyn Iterator<Item = u32>, interrupt: Interrupt) {
    let vector = match interrupt {
        Interrupt::Flush => vectors::FLUSH,
        Interrupt::Wake => vectors::WAKE,
        Interrupt::Timer => vectors::TIMER,
    };
    cpus.for_each(|cpu| command(cpu, ASSERT | u32::from(vector)));
}

/// Has a CPU wait for [`start_up`].
pub(super) fn reset(target: u32) {
    command(target, ASSERT | INIT);
}

/// Has a CPU that waits begin at a page below 1 MiB.
pub(super) fn start_up(target: u32, address: u64) {
    command(target, ASSERT | START_UP | (address >> 12) as u32);
}

fn command(target: u32, command: u32) {
    if IS_X2APIC.load(Ordering::Relaxed) {
        shootdown_hw::x86_64::order_before_x2apic_write();
        let register = X2APIC_REGISTERS + (COMMAND >> 4);
        // SAFETY: interrupts go to our vectors.
        unsafe { Msr::new(register).write(u64::from(target) << 32 | u64::from(command)) };
    } else {
        // Two registers, between which no handler may come that sends, too. Memory that is not
        // cached is written after all that was stored before.
        without_interrupts(|| {
            while read(COMMAND) & IS_PENDING != 0 {
                core::hint::spin_loop();
            }
            write(COMMAND_TARGET, target << 24);
            write(COMMAND, command);
        });
    }
}

/// The interrupt has been taken note of.
pub(super) fn end_of_interrupt() {
    write(END_OF_INTERRUPT, 0);
}

/// Has the timer interrupt once, after so many ticks; instead of what it was to do before.
pub(super) fn set_timer(ticks: u32) {
    write(TIMER, u32::from(vectors::TIMER));
    write(TIMER_INITIAL, ticks);
}

/// Has the timer count down from the most that it can, and interrupt nobody.
pub(super) fn count_silently() {
    write(TIMER, MASKED | u32::from(vectors::TIMER));
    write(TIMER_INITIAL, u32::MAX);
}

/// How many ticks are left.
pub(super) fn ticks_left() -> u32 {
    read(TIMER_CURRENT)
}

fn write(register: u32, value: u32) {
    // SAFETY: these are registers of the APIC, and it does what it is told.
    unsafe {
        if IS_X2APIC.load(Ordering::Relaxed) {
            Msr::new(X2APIC_REGISTERS + (register >> 4)).write(value.into());
        } else {
            memory(register).write_volatile(value);
        }
    }
}

fn read(register: u32) -> u32 {
    // SAFETY: as above.
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
