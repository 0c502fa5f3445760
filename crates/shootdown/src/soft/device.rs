//! A device that translates by the page tables of spaces, with a TLB of its own.
//!
//! The device does each access whenever a test calls it, on whichever thread. It caches what it
//! walks, upper levels included, until it has completed a command of the engine's
//! ([`Machine::issue_to_devices`]). It completes each when the engine asks for that, which is as
//! late as hardware may do it.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::Mutex;
use std::vec::Vec;

use super::broadcasts::{Broadcasts, Invalidation};
use super::tlb::{Tlb, Touch};
use super::{Platform, Soft, guard};
use crate::base::ids::DeviceTicket;
use crate::base::ids::Tag;
use crate::base::memory::Word;
use crate::parts::extent::Extent;
use crate::state::machine::Entries;
#[expect(unused_imports, reason = "the documentation links to it")]
use crate::state::machine::Machine;
use crate::state::space::Space;

/// The device of a software machine.
pub(super) struct Device<P: Platform> {
    tlb: Mutex<Tlb>,
    commands: Broadcasts<P>,
    /// The commands that are not complete, with their tickets.
    issued: Mutex<Vec<(DeviceTicket, Invalidation)>>,
    /// Number of calls of [`Machine::issue_to_devices`].
    flushes: AtomicU64,
    /// 1 after the device was released.
    released: P::Word,
}

impl<P: Platform> Device<P> {
    pub(super) fn new() -> Self {
        Self {
            tlb: Mutex::default(),
            commands: Broadcasts::new(),
            issued: Mutex::default(),
            flushes: AtomicU64::new(0),
            released: P::Word::new(0),
        }
    }

    pub(super) fn is_held(&self) -> bool {
        self.released.load(Acquire) == 0
    }

    pub(super) fn issue(&self, tag: Tag, extents: &[Extent]) -> DeviceTicket {
        let mut issued = guard(&self.issued);
        let ticket = DeviceTicket(self.flushes.fetch_add(1, Relaxed) + 1);
        issued.extend(extents.iter().map(|&extent| (ticket, Invalidation::Tag(tag, extent))));
        ticket
    }

    /// Completes all commands up to a ticket, and returns `true`.
    pub(super) fn complete(&self, ticket: DeviceTicket) -> bool {
        let due: Vec<_> =
            guard(&self.issued).iter().filter(|(of, _)| *of <= ticket).copied().collect();
        for &(_, invalidation) in &due {
            self.commands.deliver(invalidation);
        }
        // Only now: until then, another CPU that waits for them completes them as well.
        guard(&self.issued).retain(|(of, _)| *of > ticket);
        true
    }
}

impl<P: Platform, const WORDS: usize> Soft<P, WORDS> {
    /// Uses a page of `space` on the machine's device, which the kernel must have
    /// [attached](crate::Shootdown::attach_device) to the space.
    ///
    /// Also walks page tables as speculation may: a walk of freed tables is counted in
    /// [`freed_table_walks`](Self::freed_table_walks).
    pub fn touch_by_device(&self, space: &Space<Self>, page: usize) -> Touch {
        let device = &self.device;
        let (touch, walked_freed) = device.commands.using(&mut guard(&device.tlb), |tlb| {
            let walked_freed =
                tlb.load(&self.tables, Some(space.root()), device_tag(space), Entries::Keep);
            (tlb.touch(&self.tables, page), walked_freed)
        });
        self.count_walk(walked_freed);
        touch
    }

    /// Makes the device drop all of its translations, as its driver does before it detaches it.
    pub fn reset_device(&self) {
        let device = &self.device;
        device.commands.using(&mut guard(&device.tlb), Tlb::invalidate_all);
    }

    /// Lets the device complete commands, if it was
    /// [held](super::Config::holds_device) so far.
    pub fn release_device(&self) {
        self.device.released.store(1, Release);
    }

    /// Number of calls of [`Machine::issue_to_devices`] so far.
    pub fn device_flushes(&self) -> u64 {
        self.device.flushes.load(Relaxed)
    }
}

/// The tag of a space on the device: its PASID. Each page table has its own.
pub(super) fn device_tag<P: Platform, const WORDS: usize>(space: &Space<Soft<P, WORDS>>) -> Tag {
    Tag(space.root().0 as u16 + 1)
}
