//! The device: a TLB after those of the CPUs, and the queue of its commands.

use super::invalidation::{Command, DeviceQueue};
use super::{Hardware, HardwareCpu, Violation};
use crate::memory::Memory;

impl Hardware {
    /// Returns `true` if a device is attached.
    pub(crate) fn has_device(&self) -> bool {
        self.cpus.last().is_some_and(|device| device.root.is_some())
    }

    /// Attaches a device to a root under a tag. The device uses every translation that it finds
    /// until it is detached.
    pub(crate) fn attach_device(
        &mut self,
        memory: &Memory,
        root: usize,
        tag: u16,
    ) -> Option<Violation> {
        let number = self.cpus.len() - 1;
        let device = &mut self.cpus[number];
        (device.root, device.tag, device.is_in_user_mode) = (Some(root), tag, true);
        self.fill(memory, number)
    }

    /// The ticket of the next command.
    pub(crate) const fn next_command(&self) -> u64 {
        self.device_queue.issued + 1
    }

    /// Puts a command of `issuer` into the queue of the device. Returns its ticket.
    pub(crate) fn issue_to_device(
        &mut self,
        issuer: usize,
        root: usize,
        pages: u64,
        upper: bool,
    ) -> u64 {
        let unpublished = self.unpublished(issuer);
        let DeviceQueue { commands, issued } = &mut self.device_queue;
        *issued += 1;
        commands.push(Command { ticket: *issued, root, pages, upper, issuer, unpublished });
        *issued
    }

    /// Completes the commands up to a ticket. They have an effect if the device is attached to
    /// their root.
    pub(crate) fn complete_on_device(&mut self, memory: &Memory, ticket: u64) -> Option<Violation> {
        let number = self.cpus.len() - 1;
        let all = std::mem::take(&mut self.device_queue.commands);
        let (due, later) = all.into_iter().partition(|it| it.ticket <= ticket);
        self.device_queue.commands = later;
        let due: Vec<Command> = due;
        let mut violation = None;
        for Command { root, pages, upper, issuer, unpublished, .. } in due {
            let &HardwareCpu { root: of, tag, .. } = &self.cpus[number];
            if of == Some(root) {
                self.invalidate_under(number, tag, |page| pages >> page & 1 == 1, upper);
                self.refetch_unpublished(memory, number, issuer, &unpublished);
                violation = violation.or(self.fill(memory, number));
            }
        }
        violation
    }

    /// Gives the device a TLB of its own, between it and the one that [commands] reach.
    ///
    /// [commands]: Self::issue_to_device
    pub(crate) fn give_device_tlb(&mut self) {
        let number = self.cpus.len() - 1;
        self.cpus[number].has_second_cache = true;
    }

    /// Invalidates everything in the device's own TLB.
    pub(crate) fn invalidate_device_tlb(&mut self, memory: &Memory) -> Option<Violation> {
        self.invalidate_combined(memory, self.cpus.len() - 1)
    }

    /// Detaches the device and invalidates all its entries.
    pub(crate) fn detach_device(&mut self) {
        let number = self.cpus.len() - 1;
        self.cpus[number] = HardwareCpu::default();
    }
}
