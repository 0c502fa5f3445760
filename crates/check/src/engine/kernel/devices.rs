//! Devices that use a space: under its tag, or with a TLB of their own.

#![expect(unsafe_code, reason = "ends the use of a space by a device")]

use super::{Kernel, KernelSpace};
use crate::machine::with_machine;
use crate::sometimes::Sometimes;

impl<const LIFETIME: u8, const WORDS: usize> Kernel<'_, LIFETIME, WORDS> {
    /// A device uses a space under a pinned tag.
    pub(super) fn pin(&self, space: usize) {
        let KernelSpace { space: own, tables, .. } = &self.spaces[space];
        let Some(tag) = self.pinned(|pin| pin.pin_tag(own)) else { return };
        with_machine(|machine| {
            if machine.attach_device(tables.root(), tag.0) {
                machine.reach(Sometimes::PinnedForDevice);
                machine.detach_device();
            }
        });
        // SAFETY: the machine's device drops its translations when it is detached.
        self.pinned(|pin| unsafe { pin.unpin_tag(own) });
    }

    /// A device with a TLB of its own uses a space.
    pub(super) fn attach(&self, space: usize) {
        let KernelSpace { space: own, tables, .. } = &self.spaces[space];
        self.engine.attach_device(own).expect("there is room for a device of each CPU");
        with_machine(|machine| {
            // No broadcast names this tag.
            if machine.attach_device(tables.root(), u16::MAX) {
                machine.reach(Sometimes::AttachedDevice);
                machine.detach_device();
            }
        });
        // SAFETY: as above.
        unsafe { self.engine.detach_device(own) };
    }
}
