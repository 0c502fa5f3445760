//! The flush interrupt: an interrupt line of its own.
//!
//! The framework's general inter-processor call takes a lock and may allocate. The engine's handler
//! must do neither.

use spin::Once;

use super::{HwCpuId, ipi};
use crate::{
    arch::kernel::apic::{self, Icr},
    cpu::PinCurrentCpu,
    irq::IrqLine,
    mm::coherence,
};

static LINE: Once<IrqLine> = Once::new();

/// Allocates the interrupt line. Call this once, before other CPUs boot.
pub(in crate::arch) fn init() {
    let mut line = IrqLine::alloc().expect("no interrupt line is left for the flush interrupt");
    line.on_active(|_| coherence::handle_flush_ipi());
    LINE.call_once(|| line);
}

/// Sends the flush interrupt to `targets`. Each handler observes all earlier stores of this CPU.
pub(crate) fn send(targets: impl Iterator<Item = HwCpuId>, guard: &dyn PinCurrentCpu) {
    let number = LINE.get().expect("`init` has allocated the line").num();
    let apic = apic::get_or_init(guard);
    // With an x2APIC, the command is an MSR, which the processor does not order after stores.
    shootdown_hw::x86_64::order_before_x2apic_write();
    for target in targets {
        let command = Icr::new(
            apic::ApicId::from(ipi::number(target)),
            apic::DestinationShorthand::NoShorthand,
            apic::TriggerMode::Edge,
            apic::Level::Assert,
            apic::DeliveryStatus::Idle,
            apic::DestinationMode::Physical,
            apic::DeliveryMode::Fixed,
            number,
        );
        // SAFETY: the command is valid, and the interrupt's handler only invalidates translations.
        unsafe { apic.send_ipi(command) };
    }
}
