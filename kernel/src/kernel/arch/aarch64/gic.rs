//! The interrupt controller: `GICv3` (Arm's IHI 0069). The kernel uses only interrupts private to a
//! CPU: those that CPUs send to each other (SGIs) and the timer's (a PPI).

use super::register::{Device, read, run, write};

const DISTRIBUTOR: Device = Device(0x0800_0000);
/// `GICD_CTLR`.
const CONTROL: usize = 0x0;
const AFFINITY_ROUTING: u32 = 1 << 4;
const GROUP_1: u32 = 1 << 1;
const IS_PENDING_WRITE: u32 = 1 << 31;

/// Redistributor of the first CPU. Each CPU has two frames of 64 KiB.
const REDISTRIBUTORS: usize = 0x080a_0000;
const REDISTRIBUTOR_BYTES: usize = 0x2_0000;
/// Number of CPUs whose redistributors are there. QEMU puts those of more CPUs elsewhere.
pub(super) const CPUS_MAX: u32 = 123;
/// `GICR_TYPER`, its upper half: the CPU's affinity.
const AFFINITY: usize = 0xc;
/// Offset of `GICR_WAKER`.
const WAKER: usize = 0x14;
const PROCESSOR_SLEEP: u32 = 1 << 1;
const CHILDREN_ASLEEP: u32 = 1 << 2;
/// Registers in the second frame, for the CPU's private interrupts: `GICR_IGROUPR0`,
/// `GICR_ISENABLER0`, `GICR_IPRIORITYR`.
const GROUP: usize = 0x1_0080;
const ENABLE: usize = 0x1_0100;
const PRIORITY: usize = 0x1_0400;
/// One priority for all interrupts: no interrupt preempts another.
const PRIORITIES: u32 = 0xa0a0_a0a0;

/// Number of the virtual timer's interrupt (`CNTV`).
pub(super) const TIMER: u32 = 27;
/// The first special number: no interrupt is pending.
const SPECIAL: u32 = 1020;

/// QEMU numbers CPUs by clusters. One write can interrupt all CPUs of a cluster.
const CLUSTER_CPUS: u32 = 16;
const CLUSTERS: usize = CPUS_MAX.div_ceil(CLUSTER_CPUS) as usize;

/// The affinity that PSCI and the controller use for a CPU. Aff1 is its cluster.
pub(super) fn affinity(cpu: u32) -> u64 {
    u64::from(cpu / CLUSTER_CPUS) << 8 | u64::from(cpu % CLUSTER_CPUS)
}

/// Enables the distributor. Call this once, on the first CPU.
pub(super) fn set_up() {
    let control = DISTRIBUTOR.read(CONTROL) | AFFINITY_ROUTING | GROUP_1;
    DISTRIBUTOR.write(CONTROL, control);
    while DISTRIBUTOR.read(CONTROL) & IS_PENDING_WRITE != 0 {
        core::hint::spin_loop();
    }
}

/// Enables this CPU's redistributor and CPU interface.
pub(super) fn set_up_cpu(cpu: u32) {
    assert!(cpu < CPUS_MAX, "QEMU has redistributors for {CPUS_MAX} CPUs in a row");
    let redistributor = Device(REDISTRIBUTORS + cpu as usize * REDISTRIBUTOR_BYTES);
    let expected = affinity(cpu);
    assert_eq!(u64::from(redistributor.read(AFFINITY)), expected, "another CPU's redistributor");
    redistributor.write(WAKER, redistributor.read(WAKER) & !PROCESSOR_SLEEP);
    while redistributor.read(WAKER) & CHILDREN_ASLEEP != 0 {
        core::hint::spin_loop();
    }
    redistributor.write(GROUP, u32::MAX);
    for interrupts_of_four in (0..32).step_by(4) {
        redistributor.write(PRIORITY + interrupts_of_four, PRIORITIES);
    }
    redistributor.write(ENABLE, 0xffff | 1 << TIMER);
    let by_registers = read!("s3_0_c12_c12_5") | 1;
    // SAFETY: the kernel uses the CPU interface only by its registers (ICC_SRE_EL1.SRE).
    unsafe { write!("s3_0_c12_c12_5", by_registers) };
    run!("isb");
    // SAFETY: interrupts of all priorities (ICC_PMR_EL1) and of group 1 (ICC_IGRPEN1_EL1) are
    // enabled, and one write ends an interrupt (ICC_CTLR_EL1.EOImode is 0). PSTATE still masks
    // them.
    unsafe {
        write!("s3_0_c4_c6_0", 0xff);
        write!("s3_0_c12_c12_4", 0);
        write!("s3_0_c12_c12_7", 1);
    }
    run!("isb");
}

/// Acknowledges a pending interrupt and returns its number; `None` if none is pending. The
/// interrupt is active until [`finish`] is called.
pub(super) fn acknowledge() -> Option<u32> {
    // ICC_IAR1_EL1.
    let number = read!("s3_0_c12_c12_0") as u32;
    // Complete the acknowledgement, and observe all stores of the sender from before the interrupt.
    run!("dsb sy");
    (number < SPECIAL).then_some(number)
}

/// Ends an interrupt, which can then come again.
pub(super) fn finish(number: u32) {
    // SAFETY: the interrupt was acknowledged. The register is ICC_EOIR1_EL1.
    unsafe { write!("s3_0_c12_c12_1", number.into()) };
    run!("isb");
}

/// Sends SGI `number`, 0 to 15. One write reaches all CPUs of a cluster.
pub(super) fn send(cpus: &mut dyn Iterator<Item = u32>, number: u32) {
    let mut clusters = [0; CLUSTERS];
    for cpu in cpus {
        clusters[(cpu / CLUSTER_CPUS) as usize] |= 1_u64 << (cpu % CLUSTER_CPUS);
    }
    // The write below is to a system register, not to memory, so no other barrier orders it after
    // earlier stores. Without this barrier, a target could take the interrupt, find nothing to do
    // and return before those stores are visible to it.
    run!("dsb ishst");
    for (cluster, targets) in (0..).zip(clusters).filter(|(_, targets)| *targets != 0) {
        // SAFETY: the handler knows the number. ICC_SGI1R_EL1 has the INTID, Aff1 and target list.
        unsafe { write!("s3_0_c12_c11_5", u64::from(number) << 24 | cluster << 16 | targets) };
    }
    // Send the interrupts now, not at the next context synchronization.
    run!("isb");
}
