//! *Devices*: TLBs outside of the CPUs, which translate by the page tables of spaces.
//!
//! An IOMMU that walks the page tables of a process (shared virtual addressing), a device that
//! caches what the IOMMU has answered, or a hypervisor's shadow of the page tables has translations
//! that no CPU's invalidation reaches. Such a TLB is a *device* here. Each flush of a space that
//! has devices calls the kernel once, which sends the commands, and returns a
//! [ticket](crate::DeviceTicket). (Linux: `mmu_notifier_arch_invalidate_secondary_tlbs`.)
//!
//! A device may take seconds: the command may wait for its turn in the IOMMU's queue, and the
//! device for a bus. So a flush does not wait for a device where interrupts are masked. Its
//! [`Pending`](crate::Pending) polls the ticket. In the meantime, other CPUs invalidate, and the
//! waiter answers their flushes.
//!
//! Devices that observe the CPUs' broadcasts need no command: see
//! [`PinnedCpu::pin_tag`](crate::PinnedCpu::pin_tag).
//!
//! A device does not publish when it uses a translation, and is never lazy. A flush therefore asks
//! one question, whether a device is attached. It reads the answer from the word with the phase of
//! the CPU mask, at no cost for a space without devices.

#![expect(unsafe_code, reason = "only the driver knows what a device caches")]

use crate::state::engine::Shootdown;
use crate::state::machine::Machine;
use crate::state::space::Space;

/// Error of a space that has 255 devices already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyDevices;

impl<M: Machine> Shootdown<M> {
    /// Attaches a device to a space: from now on, each flush of the space calls
    /// [`Machine::issue_to_devices`], and is done only when [`Machine::devices_are_done`].
    ///
    /// Call this before the device may first walk the page tables. A flush that is under way during
    /// the call may not invalidate on the device. Then the device walks page tables at least as new
    /// as that flush.
    ///
    /// A device may be attached more than once, and counts as often.
    ///
    /// # Errors
    ///
    /// [`TooManyDevices`] if 255 devices are attached to the space.
    ///
    /// # Panics
    ///
    /// If the space is another engine's.
    pub fn attach_device(&self, space: &Space<M>) -> Result<(), TooManyDevices> {
        assert!(self.owns(space), "the space is another engine's");
        if space.cpumask.attach_device(self.machine()) { Ok(()) } else { Err(TooManyDevices) }
    }

    /// Detaches a device from a space.
    ///
    /// Detach all devices of a space before you [retire](crate::PinnedCpu::retire) it.
    ///
    /// # Panics
    ///
    /// If no device is attached to the space.
    ///
    /// # Safety
    ///
    /// A device that is attached neither uses nor walks the page tables any more, and has dropped
    /// the translations that it cached. This is the only call for it.
    pub unsafe fn detach_device(&self, space: &Space<M>) {
        let was_attached = space.cpumask.detach_device(self.machine());
        assert!(was_attached, "a device is detached more often than attached");
    }
}

impl<M: Machine> Space<M> {
    /// Returns `true` if a device is attached.
    pub(crate) fn has_devices(&self, machine: &M) -> bool {
        self.cpumask.phase(machine).device_count() != 0
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests;
