//! The interrupt by which CPUs notify each other of flushes.

#![expect(unsafe_code, reason = "declares the contract of interrupts between CPUs")]

/// An interrupt that a CPU can send to other CPUs: an inter-processor interrupt (IPI).
///
/// Each architecture has one for its usual interrupt controller: `x86_64::X2ApicIpi`,
/// `aarch64::GicIpi`, `riscv64::SbiIpi`, `loongarch64::IocsrIpi`. A kernel that has its own driver
/// of the controller implements [`Kernel::ring`](crate::Kernel::ring) by that.
///
/// # Safety
///
/// The handler of each target must observe all stores that the sender made before
/// [`send`](Self::send): most controllers need a barrier. An interrupt that is sent after
/// [`acknowledge`](Self::acknowledge) must be taken once more.
pub unsafe trait Ipi: Sync {
    /// Sends the interrupt to CPUs, which may include the calling CPU. `targets` are the numbers by
    /// which the interrupt controller knows them. Neighbours in `targets` may share an operation.
    fn send(&self, targets: impl Iterator<Item = u64>);

    /// Acknowledges the interrupt on the CPU that has taken it. Call this before the flush is
    /// handled: a CPU that rings in the meantime then causes another interrupt.
    fn acknowledge(&self);
}
