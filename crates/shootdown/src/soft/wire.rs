//! Broadcasts of the software machine: held back until their issuer completes them, which is as
//! late as hardware may be.
//!
//! To complete is to wait, too, for what a CPU is just doing by the translations that go: each use
//! of the TLB is one step as far as broadcasts are concerned.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::Platform;
use super::tlb::Tlb;
use crate::extent::Extent;
use crate::ids::{CpuId, Tag};
use crate::memory::Word;

/// What is to be dropped.
#[derive(Clone, Copy, Debug)]
pub(super) enum Told {
    /// Of a tag: pages, or everything.
    Tag(Tag, Extent),
    /// Of the kernel.
    Kernel(Extent),
}

/// One CPU's end.
pub(super) struct Wire<P: Platform> {
    /// What it has issued, and to whom.
    issued: Mutex<Vec<(Vec<CpuId>, Told)>>,
    /// What has arrived. It is seen to before the TLB is used again.
    arrived: Mutex<Vec<Told>>,
    /// The TLB is in use.
    busy: AtomicBool,
    /// Orders uses of the TLB with completions: hardware does, and a model checker must be told.
    order: P::Word,
}

impl<P: Platform> Wire<P> {
    pub(super) fn new() -> Self {
        Self {
            issued: Mutex::default(),
            arrived: Mutex::default(),
            busy: AtomicBool::new(false),
            order: P::Word::new(0),
        }
    }

    pub(super) fn issue(&self, to: Vec<CpuId>, told: Told) {
        lock(&self.issued).push((to, told));
    }

    /// What was issued here and has not been completed.
    pub(super) fn take_issued(&self) -> Vec<(Vec<CpuId>, Told)> {
        core::mem::take(&mut lock(&self.issued))
    }

    /// Drops it on the CPU whose wire this is, and waits until that CPU uses it no more.
    pub(super) fn deliver(&self, told: Told) {
        // Who finds it there walks page tables that are as new as it.
        self.order.fetch_add(1, AcqRel);
        lock(&self.arrived).push(told);
        while self.busy.load(Acquire) {
            P::spin_hint();
        }
        self.order.fetch_add(1, AcqRel);
    }

    /// Uses the TLB of the CPU whose wire this is.
    pub(super) fn using<R>(&self, tlb: &mut Tlb, f: impl FnOnce(&mut Tlb) -> R) -> R {
        // Before the look at what has arrived: who delivers after that finds us busy.
        self.busy.store(true, SeqCst);
        let arrived = core::mem::take(&mut *lock(&self.arrived));
        self.order.fetch_add(1, AcqRel);
        for told in arrived {
            match told {
                Told::Tag(tag, extent) => tlb.drop_told(tag, extent),
                Told::Kernel(extent) if extent.is_whole() => tlb.invalidate_all(),
                Told::Kernel(extent) => tlb.invalidate_kernel(extent),
            }
        }
        let result = f(tlb);
        self.order.fetch_add(1, AcqRel);
        self.busy.store(false, Release);
        result
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
