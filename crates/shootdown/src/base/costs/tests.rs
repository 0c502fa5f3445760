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

    use crate::base::ids::{CpuId, Root};
    use crate::end::reclaim::{Batch, StaleWrites};
    use crate::parts::extent::Extent;
    use crate::soft::{Config, Host, Soft, Touch};
    use crate::state::engine::Shootdown;
    use crate::state::space::Space;

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
