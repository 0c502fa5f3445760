//! The costs of a machine, with which the engine makes two choices: to invalidate page by page or
//! to discard the whole tag; and to notify other CPUs with interrupts or with a broadcast.

/// Costs of invalidation on one CPU, from which [`Machine::batch_ceiling`] is derived.
///
/// [`Machine::batch_ceiling`]: crate::Machine::batch_ceiling
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushCosts {
    /// Time to invalidate one page; 0 if one instruction invalidates any number of pages.
    pub invalidate_page_ns: u64,
    /// Time to discard a whole tag, without the page-table walks that refill the TLB afterwards.
    pub full_flush_ns: u64,
}

impl Default for FlushCosts {
    /// The costs of x86 server cores: about 250 cycles for `INVLPG`, and 500 cycles for a write to
    /// CR3 that discards translations.
    #[inline]
    fn default() -> Self {
        Self { invalidate_page_ns: 100, full_flush_ns: 200 }
    }
}

impl FlushCosts {
    /// Number of pages up to which an interrupted CPU invalidates page by page while the sender
    /// waits for it.
    ///
    /// `flush_ceiling` is the number of pages at which both methods cost the same on a CPU that no
    /// other CPU waits for:
    ///
    /// ```text
    /// flush_ceiling · page = full + refill
    /// ```
    ///
    /// The sender of a batch waits until the target has invalidated, but not until the target has
    /// refilled its TLB. So the time to invalidate is lost on both CPUs, and the time to refill on
    /// one:
    ///
    /// ```text
    /// 2 · batch_ceiling · page = 2 · full + refill = full + flush_ceiling · page
    /// ```
    #[inline]
    pub(crate) fn batch_ceiling(self, flush_ceiling: usize) -> usize {
        let Some(full) = self.full_flush_ns.checked_div(self.invalidate_page_ns) else {
            return flush_ceiling;
        };
        let full = usize::try_from(full).unwrap_or(usize::MAX);
        (flush_ceiling.saturating_add(full) / 2).min(flush_ceiling)
    }
}

/// Costs of notifying other CPUs, with which the engine chooses between interrupts and broadcasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotifyCosts {
    /// Time to interrupt one or more CPUs: to send, and to wait for the first answer.
    pub interrupt_ns: u64,
    /// Additional time for each CPU that is interrupted: the sender's longer wait, and the time
    /// that the target loses.
    pub interrupt_each_ns: u64,
    /// Time to issue and complete a broadcast of one operation while no other CPU broadcasts.
    pub broadcast_ns: u64,
    /// Additional time for each CPU that the broadcast names; 0 if broadcasts name no CPUs.
    pub broadcast_each_ns: u64,
    /// Additional time for each operation of a broadcast after the first.
    pub operation_ns: u64,
}

impl NotifyCosts {
    /// Costs with which a broadcast is always the cheaper method.
    ///
    /// For a kernel that waits for flushes under locks, where CPUs that spin for such a lock have
    /// the interrupt masked and do not answer.
    ///
    /// If the machine [broadcasts](crate::Broadcaster) to every CPU and every space has a
    /// [global](crate::Tagging::Global) tag, flushes then interrupt no CPU, and a wait on the CPU
    /// of the flush depends on no other CPU. The engine still sends interrupts, and waits for
    /// answers, in these cases:
    ///
    /// - a flush that [frees tables](crate::Extent::freeing_tables) or is
    ///   [for a resize](crate::PinnedCpu::flush_for_resize), while a CPU is on its way out of the
    ///   space: a broadcast may not reach such a CPU
    ///   ([`flush_gathered`](crate::PinnedCpu::flush_gathered) does not interrupt it);
    /// - [`flush_walkers`](crate::PinnedCpu::flush_walkers), if there is such a CPU;
    /// - [`reap`](crate::PinnedCpu::reap);
    /// - [`Lifetime::Shoot`](crate::Lifetime::Shoot), when a space is retired;
    /// - a wait with the interrupt unmasked, or on another CPU than that of the flush: it
    ///   interrupts the CPU that has issued the broadcast;
    /// - a machine with too few tags for its CPUs, which cannot broadcast.
    #[must_use]
    pub const fn broadcasts_only(self) -> Self {
        Self { interrupt_ns: u64::MAX, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ceiling(invalidate_page_ns: u64, full_flush_ns: u64, flush_ceiling: usize) -> usize {
        FlushCosts { invalidate_page_ns, full_flush_ns }.batch_ceiling(flush_ceiling)
    }

    #[test]
    fn batch_ceiling_is_half_to_all_of_flush_ceiling() {
        assert_eq!(FlushCosts::default().batch_ceiling(33), 17);
        assert_eq!((ceiling(130, 48, 33), ceiling(100, 1000, 33)), (16, 21));
        assert_eq!((ceiling(1, 1_000_000, 33), ceiling(1, u64::MAX, 33)), (33, 33));
    }

    #[test]
    fn free_page_invalidation_keeps_the_flush_ceiling() {
        assert_eq!(ceiling(0, 60, 1_000_000), 1_000_000);
    }

    #[cfg(feature = "soft")]
    mod batches {
        use std::vec::Vec;

        use crate::engine::Shootdown;
        use crate::extent::Extent;
        use crate::ids::{CpuId, Root};
        use crate::reclaim::{Batch, StaleWrites};
        use crate::soft::{Config, Host, Soft, Touch};
        use crate::space::Space;

        const PAGES: usize = 40;

        /// Sends a batch of `pages` pages. Returns, for its target and for its sender, `true` if
        /// the CPU discarded the whole tag. Both CPUs use the space.
        fn batch_discards_tag(pages: usize) -> [bool; 2] {
            let engine: Shootdown<Soft<Host>> =
                Soft::engine(Config { pages: PAGES, ..Config::default() });
            let space = engine.space(Root(0));
            (0..PAGES).for_each(|page| engine.machine().map(&space, page));
            let cpus = [0, 1].map(|cpu| engine.enter(CpuId(cpu)));
            for cpu in &cpus {
                cpu.pin().online();
                #[expect(unsafe_code, reason = "the space outlives its use")]
                // SAFETY: the space outlives the CPUs' use of it, and does not move.
                unsafe {
                    cpu.pin().switch(&space);
                }
                (0..PAGES).for_each(|page| assert_eq!(cpu.touch(page), Touch::Ok));
            }
            let before = cpus.each_ref().map(|cpu| cpu.pin().cpu.stats().flushes_full);
            let [sender, target] = &cpus;
            let mut batch: Batch<&Space<_>, Vec<usize>> = Batch::new();
            for page in 0..pages {
                let in_batch = batch.space(engine.machine(), &&space).unwrap();
                assert!(engine.machine().try_unmap(&space, page));
                let extent = Extent::page((page as u64) << 12);
                in_batch.unmapped(&sender.pin(), extent, StaleWrites::Possible).wait();
            }
            let sent = batch.send(&sender.pin());
            target.interrupt_point();
            drop(sent);
            [1, 0].map(|cpu| {
                assert!((0..pages).all(|page| cpus[cpu].touch(page) == Touch::Fault));
                assert_eq!(cpus[cpu].pin().cpu.stats().interrupts_sent, 1 - cpu as u64);
                cpus[cpu].pin().cpu.stats().flushes_full > before[cpu]
            })
        }

        #[test]
        #[cfg_attr(miri, ignore = "takes seconds, and `reclaim` tests the same code")]
        fn interrupted_cpu_drops_tag_above_batch_ceiling() {
            assert_eq!(batch_discards_tag(17), [false; 2]);
            assert_eq!(batch_discards_tag(18), [true; 2]);
        }
    }
}
