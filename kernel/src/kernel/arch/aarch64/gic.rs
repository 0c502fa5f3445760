//! The interrupt controller: `GICv3` (Arm's IHI 0069), of which only interrupts of a CPU's own are
//! used, those that CPUs send each other (SGIs) and those of its timer (a PPI).

use super::register::{Device, read, run, write};

const DISTRIBUTOR: Device = Device(0x0800_0000);
/// `GICD_CTLR`.
const CONTROL: usize = 0x0;
const AFFINITY_ROUTING: u32 = 1 << 4;
const GROUP_1: u32 = 1 << 1;
const IS_PENDING_WRITE: u32 = 1 << 31;

/// Of the first CPU; each has two frames of 64 KiB.
const REDISTRIBUTORS: usize = 0x080a_0000;
const REDISTRIBUTOR_BYTES: usize = 0x2_0000;
/// As many have room there; QEMU puts more elsewhere.
pub(super) const CPUS_MAX: u32 = 123;
/// `GICR_TYPER`, its upper half: the CPU's affinity.
const AFFINITY: usize = 0xc;
/// `GICR_WAKER`.
const WAKER: usize = 0x14;
const PROCESSOR_SLEEP: u32 = 1 << 1;
const CHILDREN_ASLEEP: u32 = 1 << 2;
/// In the second frame, for the CPU's own interrupts: `GICR_IGROUPR0`, `GICR_ISENABLER0`,
/// `GICR_IPRIORITYR`.
const GROUP: usize = 0x1_0080;
const ENABLE: usize = 0x1_0100;
const PRIORITY: usize = 0x1_0400;
/// The same for all: none interrupts another.
const PRIORITIES: u32 = 0xa0a0_a0a0;

/// What comes from the virtual timer (`CNTV`).
pub(super) const TIMER: u32 = 27;
/// From here on, there is nothing to acknowledge.
const SPECIAL: u32 = 1020;

/// QEMU numbers CPUs by clusters of as many as one write can interrupt.
const CLUSTER_CPUS: u32 = 16;
const CLUSTERS: usize = CPUS_MAX.div_ceil(CLUSTER_CPUS) as usize;

/// The affinity by which PSCI and the controller know a CPU: Aff1 is its cluster.
pub(super) fn affinity(cpu: u32) -> u64 {
    u64::from(cpu / CLUSTER_CPUS) << 8 | u64::from(cpu % CLUSTER_CPUS)
}

/// The first CPU switches the distributor on.
pub(super) fn set_up() {
    let control = DISTRIBUTOR.read(CONTROL) | AFFINITY_ROUTING | GROUP_1;
    DISTRIBUTOR.write(CONTROL, control);
    while DISTRIBUTOR.read(CONTROL) & IS_PENDING_WRITE != 0 {
        core::hint::spin_loop();
    }
}

/// Each CPU its redistributor, and its interface.
pub(super) fn set_up_cpu(cpu: u32) {
    assert!(cpu < CPUS_MAX, "QEMU has redistributors for {CPUS_MAX} CPUs in a row");
    let redistributor = Device(REDISTRIBUTORS + cpu as usize * REDISTRIBUTOR_BYTES);
    assert_eq!(u64::from(redistributor.read(AFFINITY)), affinity(cpu), "whose redistributor?");
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
    // SAFETY: the interface is used by its registers from then on (ICC_SRE_EL1.SRE).
    unsafe { write!("s3_0_c12_c12_5", by_registers) };
    run!("isb");
    // SAFETY: interrupts of any priority come in (ICC_PMR_EL1), of group 1 (ICC_IGRPEN1_EL1), and
    // end when they are said to (ICC_CTLR_EL1.EOImode is 0). They stay masked by PSTATE.
    unsafe {
        write!("s3_0_c4_c6_0", 0xff);
        write!("s3_0_c12_c12_4", 0);
        write!("s3_0_c12_c12_7", 1);
    }
    run!("isb");
}

/// The interrupt that is pending here, if one is; it is active until [`finish`] is called.
pub(super) fn acknowledge() -> Option<u32> {
    // ICC_IAR1_EL1.
    let number = read!("s3_0_c12_c12_0") as u32;
    // Its effects, and what the sender wrote before, are seen by what follows.
    run!("dsb sy");
    (number < SPECIAL).then_some(number)
}

/// It has been taken care of, and may come again.
pub(super) fn finish(number: u32) {
    // SAFETY: it was acknowledged. ICC_EOIR1_EL1.
    unsafe { write!("s3_0_c12_c12_1", number.into()) };
    run!("isb");
}

/// Sends an SGI, 0 to 15. One write reaches a cluster.
pub(super) fn send(cpus: &mut dyn Iterator<Item = u32>, number: u32) {
    let mut clusters = [0; CLUSTERS];
    for cpu in cpus {
        clusters[(cpu / CLUSTER_CPUS) as usize] |= 1_u64 << (cpu % CLUSTER_CPUS);
    }
    // A register of the CPU's own is not memory: no other barrier has its write wait until what was
    // stored before is visible to who is interrupted, who would find nothing to do, and go away.
    run!("dsb ishst");
    for (cluster, targets) in (0..).zip(clusters).filter(|(_, targets)| *targets != 0) {
        // SAFETY: whoever takes it knows its number. ICC_SGI1R_EL1: INTID, Aff1, the target list.
        unsafe { write!("s3_0_c12_c11_5", u64::from(number) << 24 | cluster << 16 | targets) };
    }
    // It is sent now, not when the next exception has it synchronized.
    run!("isb");
}
