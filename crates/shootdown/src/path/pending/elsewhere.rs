//! What a flush waits for besides the answers of CPUs: the broadcast of one CPU, and devices.
//!
//! A waiter polls no CPU before the devices are done. So a [`Pending`] has one word for two
//! tickets: of the devices, or of the CPU that it polls. A flush without devices writes and reads
//! what it would without that.

use core::num::NonZeroU64;

use super::Pending;
use crate::base::ids::{CpuId, DeviceTicket};
use crate::parts::bell::Ticket;
use crate::state::machine::Machine;

/// The CPU that has issued a broadcast, and whether there are devices to wait for: half the size of
/// an `Option`, so that the cause of a flush fits into the same word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Elsewhere {
    /// [`DEVICES`], if the ticket is that of devices; and 0 for no CPU, or 1 plus its number.
    word: u32,
}

const DEVICES: u32 = 1 << 31;

impl Elsewhere {
    pub(super) const NOTHING: Self = Self { word: 0 };

    /// Returns `true` if there is a broadcast or a device to wait for.
    #[inline]
    pub(super) const fn is_some(self) -> bool {
        self.word != 0
    }

    const fn issuer(self) -> Option<CpuId> {
        match self.word & !DEVICES {
            0 => None,
            plus_one => Some(CpuId(plus_one - 1)),
        }
    }

    const fn has_devices(self) -> bool {
        self.word & DEVICES != 0
    }
}

impl<M: Machine> Pending<'_, M> {
    /// The CPU that has issued a broadcast and not yet completed it.
    pub(crate) const fn issuer(&self) -> Option<CpuId> {
        self.elsewhere.issuer()
    }

    #[inline]
    pub(crate) const fn set_issuer(&mut self, cpu: CpuId) {
        self.elsewhere.word = self.elsewhere.word & DEVICES | (cpu.0 + 1);
    }

    /// Removes and returns the CPU that has issued a broadcast.
    #[inline]
    pub(crate) const fn take_issuer(&mut self) -> Option<CpuId> {
        let issuer = self.issuer();
        self.elsewhere.word &= DEVICES;
        issuer
    }

    /// The ticket of the devices.
    pub(super) fn devices(&self) -> Option<DeviceTicket> {
        let ticket = DeviceTicket(self.ticket.map_or(0, NonZeroU64::get));
        self.elsewhere.has_devices().then_some(ticket)
    }

    /// Waits for the devices of this ticket as well, which includes those of lower ones.
    pub(crate) fn add_devices(&mut self, ticket: DeviceTicket) {
        let ticket = self.devices().map_or(ticket, |it| it.max(ticket));
        if ticket != DeviceTicket::DONE {
            self.ticket = NonZeroU64::new(ticket.0);
            self.elsewhere.word |= DEVICES;
        }
    }

    /// Forgets the devices, which are done.
    pub(super) const fn remove_devices(&mut self) {
        self.elsewhere.word &= !DEVICES;
        self.ticket = None;
    }

    /// The ticket of the CPU that the waiter polls. Call this when the devices are done.
    #[inline]
    pub(super) fn bell_ticket(&self) -> Option<Ticket> {
        debug_assert!(!self.elsewhere.has_devices(), "the ticket is that of devices");
        self.ticket.map(Ticket)
    }

    /// Sets the ticket of the CPU that the waiter polls. Call this when the devices are done.
    #[inline]
    pub(super) fn set_bell_ticket(&mut self, ticket: Option<Ticket>) {
        self.ticket = ticket.map(|Ticket(number)| number);
    }

    /// Forgets the ticket of a CPU, because another CPU may be polled next.
    #[inline]
    pub(super) const fn forget_bell_ticket(&mut self) {
        if !self.elsewhere.has_devices() {
            self.ticket = None;
        }
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use super::*;
    use crate::soft::{Config, Host, Soft};
    use core::mem::ManuallyDrop;

    #[test]
    fn issuer_and_ticket_are_independent() {
        let engine = Soft::<Host>::engine(Config::default());
        let mut it = ManuallyDrop::new(Pending::done(&engine));
        it.add_devices(DeviceTicket::DONE);
        assert!(!it.elsewhere.is_some());
        it.add_devices(DeviceTicket(7));
        it.set_issuer(CpuId(0));
        it.add_devices(DeviceTicket(5));
        assert_eq!((it.issuer(), it.devices()), (Some(CpuId(0)), Some(DeviceTicket(7))));
        assert_eq!(it.take_issuer(), Some(CpuId(0)));
        it.forget_bell_ticket();
        assert_eq!((it.take_issuer(), it.devices()), (None, Some(DeviceTicket(7))));
        it.add_devices(DeviceTicket(9));
        it.set_issuer(CpuId(4095));
        assert_eq!((it.issuer(), it.devices()), (Some(CpuId(4095)), Some(DeviceTicket(9))));
        it.remove_devices();
        assert!(it.elsewhere.is_some() && it.devices().is_none() && it.bell_ticket().is_none());
        it.take_issuer();
        assert!(!it.elsewhere.is_some());
    }

    #[test]
    fn ticket_of_devices_replaces_that_of_a_cpu() {
        let engine = Soft::<Host>::engine(Config::default());
        let mut it = ManuallyDrop::new(Pending::done(&engine));
        let ticket = Some(Ticket(NonZeroU64::MAX));
        it.set_bell_ticket(ticket);
        assert_eq!((it.bell_ticket(), it.elsewhere.is_some()), (ticket, false));
        it.add_devices(DeviceTicket(1));
        assert_eq!(it.devices(), Some(DeviceTicket(1)));
        it.remove_devices();
        it.set_bell_ticket(ticket);
        it.forget_bell_ticket();
        assert_eq!(it.bell_ticket(), None);
    }
}
