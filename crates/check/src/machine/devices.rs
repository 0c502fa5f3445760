//! The operations of a kernel on a device that uses its page tables.

use super::{HostileMachine, WalkCaches};

impl HostileMachine {
    /// Attaches a device to a root under a tag. The device uses every translation that it finds.
    /// Broadcasts and [commands](Self::invalidate_device) reach it, and interrupts do not. Returns
    /// `false` if a device is attached already.
    pub fn attach_device(&self, root: usize, tag: u16) -> bool {
        self.step();
        let is_free = !self.hardware.borrow().has_device();
        self.observe(u64::from(is_free));
        if is_free {
            self.record(|| format!("attaches a device to space {root} under tag {tag}"));
            self.hardware(|hardware, memory, _| hardware.attach_device(memory, root, tag));
            self.kernel_pages(|kernel, memory, _| kernel.set_attached(memory, true));
        }
        is_free
    }

    /// Detaches the device and invalidates all its entries.
    pub fn detach_device(&self) {
        self.hardware_step(
            || "detaches the device".to_owned(),
            |hardware, _, _| {
                hardware.detach_device();
                None
            },
        );
        self.kernel_pages(|kernel, memory, _| kernel.set_attached(memory, false));
    }

    /// Invalidates the device's pointers to the kernel's tables.
    pub fn invalidate_kernel_on_device(&self) {
        self.step();
        self.record(|| "invalidates the kernel's tables on the device".to_owned());
        self.kernel_pages(|kernel, memory, _| kernel.invalidate_device(memory));
    }

    /// Invalidates pages on the device, if it is attached to this root.
    pub fn invalidate_device(&self, root: usize, pages: impl Fn(usize) -> bool, upper: WalkCaches) {
        let is_upper = upper == WalkCaches::Invalidate;
        let text = || format!("invalidates on the device of space {root}");
        self.hardware_step(text, |hardware, memory, cpu| {
            hardware.invalidate_device(memory, cpu, root, &pages, is_upper)
        });
    }

    /// Gives the device, before it is attached, a TLB of its own, which fills itself from the
    /// IOMMU's (ATS).
    pub fn give_device_tlb(&self) {
        self.hardware.borrow_mut().give_device_tlb();
    }

    /// Invalidates everything in the device's own TLB. Commands to the IOMMU do not reach it.
    pub fn invalidate_device_tlb(&self) {
        let text = || "invalidates the device's own TLB".to_owned();
        self.hardware_step(text, |hardware, memory, _| hardware.invalidate_device_tlb(memory));
    }
}
