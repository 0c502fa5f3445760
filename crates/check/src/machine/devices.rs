//! The operations of a kernel on a device that uses its page tables.

use super::hardware_ops::as_bits;
use super::{HostileMachine, WalkCaches};

impl HostileMachine {
    /// Attaches a device to a root under a tag. The device uses every translation that it finds.
    /// Broadcasts and [commands](Self::issue_to_device) reach it, and interrupts do not. Returns
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

    /// Sends the device a command to invalidate pages, if it is attached to this root. Returns the
    /// ticket with which the command is [completed](Self::complete_on_device).
    pub fn issue_to_device(
        &self,
        root: usize,
        pages: impl Fn(usize) -> bool,
        upper: WalkCaches,
    ) -> u64 {
        let (pages, is_upper) = (as_bits(pages), upper == WalkCaches::Invalidate);
        let mut ticket = 0;
        let text = || {
            let next = self.hardware.borrow().next_command();
            format!("sends the device command {next}, to invalidate on space {root}")
        };
        self.hardware_step(text, |hardware, _, cpu| {
            ticket = hardware.issue_to_device(cpu, root, pages, is_upper);
            None
        });
        self.observe(ticket);
        ticket
    }

    /// Finds that the device has completed the commands up to this ticket.
    pub fn complete_on_device(&self, ticket: u64) {
        let text = || format!("finds command {ticket} of the device complete");
        self.hardware_step(text, |hardware, memory, _| hardware.complete_on_device(memory, ticket));
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
