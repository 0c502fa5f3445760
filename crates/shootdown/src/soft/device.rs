//! A device that translates by the page tables of spaces, with a TLB of its own.
//!
//! The device does each access whenever a test calls it, on whichever thread. It caches what it
//! walks, upper levels included, until the engine calls [`Machine::invalidate_devices`].

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::Mutex;

use super::broadcasts::{Broadcasts, Invalidation};
use super::tlb::{Tlb, Touch};
use super::{Platform, Soft, guard};
use crate::base::ids::Tag;
use crate::parts::extent::Extent;
use crate::state::machine::Entries;
#[expect(unused_imports, reason = "the documentation links to it")]
use crate::state::machine::Machine;
use crate::state::space::Space;

/// The device of a software machine.
pub(super) struct Device<P: Platform> {
    tlb: Mutex<Tlb>,
    commands: Broadcasts<P>,
    /// Number of calls of [`Machine::invalidate_devices`].
    flushes: AtomicU64,
}

impl<P: Platform> Device<P> {
    pub(super) fn new() -> Self {
        Self { tlb: Mutex::default(), commands: Broadcasts::new(), flushes: AtomicU64::new(0) }
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

    /// Number of calls of [`Machine::invalidate_devices`] so far.
    pub fn device_flushes(&self) -> u64 {
        self.device.flushes.load(Relaxed)
    }

    pub(super) fn invalidate_on_device(&self, space: &Space<Self>, extents: &[Extent]) {
        self.device.flushes.fetch_add(1, Relaxed);
        for &extent in extents {
            self.device.commands.deliver(Invalidation::Tag(device_tag(space), extent));
        }
    }
}

/// The tag of a space on the device: its PASID. Each page table has its own.
fn device_tag<P: Platform, const WORDS: usize>(space: &Space<Soft<P, WORDS>>) -> Tag {
    Tag(space.root().0 as u16 + 1)
}
