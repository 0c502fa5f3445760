//! What a flush waits for besides the answers of CPUs: the broadcast of one CPU, and devices.

#![expect(unsafe_code, reason = "the ticket is not initialised where nothing reads it")]

use core::mem::MaybeUninit;

use crate::base::ids::CpuId;
use crate::state::devices::DeviceTicket;

/// The CPU that has issued a broadcast, and the ticket of the devices, if there are any.
///
/// Most flushes have neither. They write and test one half word, whatever it may contain. The
/// alignment lets the cause of a flush share the last word.
#[derive(Clone, Copy)]
#[repr(packed(4))]
pub(crate) struct Elsewhere {
    /// [`DEVICES`], if the ticket is initialised; and 0 for no CPU, or 1 plus the number of the CPU
    /// that has issued a broadcast.
    word: u32,
    ticket: MaybeUninit<DeviceTicket>,
}

const DEVICES: u32 = 1 << 31;

impl Elsewhere {
    pub(crate) const NOTHING: Self = Self { word: 0, ticket: MaybeUninit::uninit() };

    /// Returns `true` if there is a broadcast or a device to wait for.
    #[inline]
    pub(crate) const fn is_some(&self) -> bool {
        self.word != 0
    }

    #[inline]
    pub(crate) const fn set_issuer(&mut self, cpu: CpuId) {
        self.word = self.word & DEVICES | (cpu.0 + 1);
    }

    pub(crate) const fn issuer(&self) -> Option<CpuId> {
        match self.word & !DEVICES {
            0 => None,
            plus_one => Some(CpuId(plus_one - 1)),
        }
    }

    /// Removes and returns the CPU that has issued a broadcast.
    #[inline]
    pub(crate) const fn take_issuer(&mut self) -> Option<CpuId> {
        let issuer = self.issuer();
        self.word &= DEVICES;
        issuer
    }

    /// The ticket of the devices.
    pub(crate) const fn devices(&self) -> Option<DeviceTicket> {
        let ticket = self.ticket;
        // SAFETY: the flag is set only where the ticket is.
        if self.word & DEVICES != 0 { Some(unsafe { ticket.assume_init() }) } else { None }
    }

    /// Waits for the devices of this ticket as well, which includes those of earlier ones.
    pub(crate) fn add_devices(&mut self, ticket: DeviceTicket) {
        if ticket != DeviceTicket::DONE {
            self.ticket = MaybeUninit::new(self.devices().map_or(ticket, |it| it.max(ticket)));
            self.word |= DEVICES;
        }
    }

    /// Forgets the devices, which are done.
    pub(crate) const fn remove_devices(&mut self) {
        self.word &= !DEVICES;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issuer_and_ticket_are_independent() {
        let mut it = Elsewhere::NOTHING;
        it.add_devices(DeviceTicket::DONE);
        assert!(!it.is_some());
        it.add_devices(DeviceTicket(7));
        it.set_issuer(CpuId(0));
        it.add_devices(DeviceTicket(5));
        assert_eq!((it.issuer(), it.devices()), (Some(CpuId(0)), Some(DeviceTicket(7))));
        assert_eq!(it.take_issuer(), Some(CpuId(0)));
        assert_eq!((it.take_issuer(), it.devices()), (None, Some(DeviceTicket(7))));
        it.add_devices(DeviceTicket(9));
        it.set_issuer(CpuId(4095));
        assert_eq!((it.issuer(), it.devices()), (Some(CpuId(4095)), Some(DeviceTicket(9))));
        it.remove_devices();
        assert!(it.is_some() && it.devices().is_none());
        it.take_issuer();
        assert!(!it.is_some());
    }
}
