//! The costs of a machine, by which the engine chooses: of the two ways to invalidate, page by page
//! or the whole tag; and of the two ways to notify other CPUs.

/// Costs of invalidation on one CPU, from which [`Machine::batch_ceiling`] is derived.
///
/// [`Machine::batch_ceiling`]: crate::Machine::batch_ceiling
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushCosts {
    /// Time to invalidate one page; 0 if one instruction invalidates any number of pages.
    pub invalidate_page_ns: u64,
    /// Time to discard a whole tag, without the walks that refill the TLB afterwards.
    pub full_flush_ns: u64,
}

impl Default for FlushCosts {
    /// The costs of x86 server cores: about 250 cycles for `INVLPG`, and 500 for a write to CR3
    /// that discards.
    fn default() -> Self {
        Self { invalidate_page_ns: 100, full_flush_ns: 200 }
    }
}

impl FlushCosts {
    /// The number of pages up to which an interrupted CPU invalidates page by page while the sender
    /// waits for it.
    ///
    /// `flush_ceiling` is where the two ways cost a CPU the same that nobody waits for:
    ///
    /// ```text
    /// flush_ceiling · page = full + refill
    /// ```
    ///
    /// The sender of a batch waits until the target has invalidated, but not until the target has
    /// refilled its TLB. So the time to invalidate is lost twice, and the time to refill once:
    ///
    /// ```text
    /// 2 · batch_ceiling · page = 2 · full + refill = full + flush_ceiling · page
    /// ```
    pub(crate) fn batch_ceiling(self, flush_ceiling: usize) -> usize {
        let Some(full) = self.full_flush_ns.checked_div(self.invalidate_page_ns) else {
            return flush_ceiling;
        };
        let full = usize::try_from(full).unwrap_or(usize::MAX);
        (flush_ceiling.saturating_add(full) / 2).min(flush_ceiling)
    }
}

/// Costs of notifying other CPUs, by which the engine chooses between interrupts and broadcasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotifyCosts {
    /// Time to interrupt any CPUs at all: to send, and to wait for the first answer.
    pub interrupt_ns: u64,
    /// Additional time for each CPU that is interrupted: the sender's longer wait, and the time
    /// that the target loses.
    pub interrupt_each_ns: u64,
    /// Time to issue and complete a broadcast of one operation while no other CPU broadcasts.
    pub broadcast_ns: u64,
    /// Additional time for each CPU that the broadcast names, where it names some.
    pub broadcast_each_ns: u64,
    /// Time for each operation after the first.
    pub operation_ns: u64,
}

impl NotifyCosts {
    /// Costs by which a broadcast is always the cheaper method: for a kernel that waits for flushes
    /// under locks that other CPUs spin for with the interrupt masked, and do not answer meanwhile.
    ///
    /// Where the machine [broadcasts](crate::Broadcaster) to everyone and every space has a
    /// [global](crate::Tagging::Global) tag, flushes then interrupt no CPU, and a wait on the CPU
    /// of the flush ends without any other. Interrupts are still sent, and answers waited for, by:
    ///
    /// - a flush that [frees tables](crate::Extent::freeing_tables), or is
    ///   [for a resize](crate::PinnedCpu::flush_for_resize), while a CPU is on its way out of the space:
    ///   no broadcast is sure to reach it ([`PinnedCpu::flush_gathered`](crate::PinnedCpu::flush_gathered)
    ///   interrupts none);
    /// - [`PinnedCpu::flush_walkers`](crate::PinnedCpu::flush_walkers), of such CPUs, and [`PinnedCpu::reap`](crate::PinnedCpu::reap);
    /// - [`Lifetime::Shoot`](crate::Lifetime::Shoot), when a space is retired;
    /// - a wait with the interrupt unmasked, or on another CPU than the flush: it interrupts the
    ///   CPU that has issued the broadcast;
    /// - machines with too few tags for their CPUs, which cannot broadcast.
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
    fn batch_ceiling_lies_between_half_and_all() {
        assert_eq!(FlushCosts::default().batch_ceiling(33), 17);
        assert_eq!((ceiling(130, 48, 33), ceiling(100, 1000, 33)), (16, 21));
        assert_eq!((ceiling(1, 1_000_000, 33), ceiling(1, u64::MAX, 33)), (33, 33));
    }

    #[test]
    fn free_page_invalidations_leave_the_ceiling() {
        assert_eq!(ceiling(0, 60, 1_000_000), 1_000_000);
    }
}

#[cfg(all(test, feature = "soft"))]
mod batches {
    use std::vec::Vec;

    use crate::engine::Shootdown;
    use crate::extent::Extent;
    use crate::ids::{CpuId, Root};
    use crate::reclaim::{Batch, StaleWrites};
    use crate::soft::{Config, Host, Soft, Touch};
    use crate::space::Space;

    const PAGES: usize = 40;

    /// Returns whether the target and the sender of a batch, both of which use the space, drop
    /// their tags for this number of pages.
    fn full_flushes(pages: usize) -> [bool; 2] {
        let engine: Shootdown<Soft<Host>> =
            Soft::engine(Config { pages: PAGES, ..Config::default() });
        let space = engine.space(Root(0));
        (0..PAGES).for_each(|page| engine.machine().map(&space, page));
        let cpus = [0, 1].map(|cpu| engine.enter(CpuId(cpu)));
        for cpu in &cpus {
            cpu.pin().online();
            #[expect(unsafe_code, reason = "the space outlives its use")]
            // SAFETY: see the reason.
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
    fn interrupted_cpu_drops_tag_above_batch_ceiling() {
        assert_eq!(full_flushes(17), [false; 2]);
        assert_eq!(full_flushes(18), [true; 2]);
    }
}
