//! Linux 7.0 with LUF, the lazy unmap flush: a series of 2024 and 2025 that is not merged. Pages
//! that reclaim has unmapped, and that no CPU could write, are flushed when their frames are
//! allocated again.
//!
//! A counter (`luf_ugen`) orders the batches that wait and the flushes. After the flush of a batch,
//! each CPU of its mask has the flush's number (`ugen_done`), also a CPU that was not interrupted,
//! because it compares generations before it uses a space again. When the frames of a batch that
//! waits are needed, the CPUs whose number is higher than the batch's need no interrupt
//! (`arch_tlbbatch_diet`). So one flush stands for all batches that have waited.
//!
//! # Differences from the series
//!
//! - Pages wait in the page cache, and not on the allocator's lists, and their number is bounded:
//!   see [`CleanPages::AtReuse`].
//! - A fault that maps another page where one may wait flushes first. The series flushes in the
//!   calls that lead there.
//! - A flush of a whole space for pending batches does not change the CPUs' numbers, which costs
//!   interrupts only.

use core::sync::atomic::Ordering::Relaxed;
use std::rc::Rc;

use shootdown::Word;
use shootdown_sim::{Sim, SimWord};
use shootdown_vm::{CleanPages, Defer, Policy, Refault};

use super::Linux70;
use crate::linux::lifetime::ExitFlush;
use crate::linux::{CachePadded, UnmapBatch};

/// The order of batches and flushes.
#[derive(Debug)]
pub(super) struct Luf {
    /// `luf_ugen`.
    ugen: CachePadded<SimWord>,
    /// `ugen_done` of each CPU.
    done: Vec<CachePadded<SimWord>>,
}

/// A batch that waits until its frames are allocated (`luf_batch`).
#[derive(Debug)]
pub struct LufBatch {
    batch: UnmapBatch,
    ugen: u64,
}

impl Luf {
    fn new(cpus: usize) -> Self {
        let word = || CachePadded(SimWord::with(0));
        Self { ugen: word(), done: (0..cpus).map(|_| word()).collect() }
    }

    /// Returns a number that no batch or flush has yet (`new_luf_ugen`).
    fn new_ugen(&self) -> u64 {
        self.ugen.0.fetch_add(1, Relaxed) + 1
    }

    fn is_done(&self, cpu: usize, ugen: u64) -> bool {
        self.done[cpu].0.load(Relaxed) >= ugen
    }

    /// `arch_tlbbatch_mark_ugen`.
    fn mark(&self, cpus: &[usize], ugen: u64) {
        for &cpu in cpus {
            let done = &self.done[cpu].0;
            let old = done.load(Relaxed);
            if old < ugen {
                // If another CPU has changed the number, it stays too low, which is harmless.
                let _ = done.compare_exchange(old, ugen, Relaxed, Relaxed);
            }
        }
    }
}

impl Linux70 {
    /// Creates the design `linux-7.0-luf` on this machine.
    pub fn luf(sim: Rc<Sim>) -> Self {
        let luf = Some(Luf::new(sim.machine().cpu_count()));
        Self { luf, ..Self::counted(sim, ExitFlush::Interrupts) }
    }

    pub(super) fn policy_with_luf(&self, policy: Policy) -> Policy {
        let (clean_pages, refault) = (CleanPages::AtReuse, Refault::Flushed);
        if self.luf.is_some() { Policy { clean_pages, refault, ..policy } } else { policy }
    }

    /// Flushes a batch, and records for its CPUs that they have no page of earlier batches.
    pub(super) fn flush_and_mark(&self, batch: &UnmapBatch) {
        let Some(luf) = self.luf.as_ref().filter(|_| batch.is_flush_required()) else {
            return self.arch_tlbbatch_flush(batch);
        };
        // The number precedes the flush: a batch with a lower one was unmapped before.
        let ugen = luf.new_ugen();
        self.arch_tlbbatch_flush(batch);
        luf.mark(&batch.cpus(), ugen);
    }

    /// Lets a batch wait.
    pub(super) fn wait_for_reuse(&self, batch: UnmapBatch) -> Option<LufBatch> {
        match &self.luf {
            Some(luf) if batch.is_flush_required() => {
                Some(LufBatch { ugen: luf.new_ugen(), batch })
            }
            _ => {
                self.flush_and_mark(&batch);
                batch.finish();
                None
            }
        }
    }
}

impl Defer for Linux70 {
    type Deferred = LufBatch;

    /// `arch_tlbbatch_check_done`.
    fn is_complete(&self, LufBatch { batch, ugen }: &LufBatch) -> bool {
        let is_done = |luf: &Luf| batch.cpus().into_iter().all(|cpu| luf.is_done(cpu, *ugen));
        self.luf.as_ref().is_none_or(is_done)
    }

    fn complete(&self, LufBatch { mut batch, ugen }: LufBatch) {
        if let Some(luf) = &self.luf {
            batch.retain(|cpu| !luf.is_done(cpu, ugen));
        }
        self.flush_and_mark(&batch);
        batch.finish();
    }
}
