#![cfg(test)]

mod unflushed;

use super::*;
use crate::base::ids::{CpuId, Root};
use crate::soft::{Config, Host, OnCpu, Soft, Touch};
use crate::state::engine::Shootdown;
use core::cell::Cell;
use std::vec;
use std::vec::Vec;

type Spaces<'s> = &'s Space<Soft<Host>>;
type Pages = Vec<usize>;

/// More pages than the highest ceiling. Under miri, which is slow, no test reaches a ceiling.
const PAGES: usize = if cfg!(miri) { 12 } else { 40 };
/// Number of full flushes of a CPU that comes online.
const ONLINE: u64 = 1;
const CONFIG: Config = Config { cpus: 3, tables: 3, pages: PAGES, ..Config::DEFAULT };

struct System {
    engine: Shootdown<Soft<Host>>,
    spaces: [Space<Soft<Host>>; 3],
}

impl System {
    fn new(config: Config) -> Self {
        let engine = Soft::engine(config);
        let spaces = [0, 1, 2].map(|root| engine.space(Root(root)));
        for space in &spaces {
            (0..PAGES).for_each(|page| engine.machine().map(space, page));
        }
        (0..config.cpus).for_each(|cpu| engine.enter(CpuId(cpu)).pin().online());
        Self { engine, spaces }
    }

    /// Enters CPU `cpu`, and touches every page of a space on it.
    fn run(&self, cpu: u32, space: usize) -> OnCpu<'_, Host> {
        let cpu = self.engine.enter(CpuId(cpu));
        #[expect(unsafe_code, reason = "the spaces live as long as the machine")]
        // SAFETY: the spaces live as long as the machine.
        unsafe {
            cpu.pin().switch(&self.spaces[space]);
        }
        (0..PAGES).for_each(|page| assert_eq!(cpu.touch(page), Touch::Ok));
        cpu
    }

    /// Unmaps a page, and adds it to the batch. Returns the flush to wait for.
    fn unmap<'s, const SPACES: usize>(
        &'s self,
        batch: &mut Batch<Spaces<'s>, Pages, SPACES>,
        cpu: &OnCpu<'s, Host>,
        space: usize,
        page: usize,
    ) -> Result<Pending<'s, Soft<Host>>, BatchIsFull> {
        let entry = batch.space(self.engine.machine(), &&self.spaces[space])?;
        assert!(self.engine.machine().try_unmap(&self.spaces[space], page));
        let extent = Extent::page((page as u64) << 12);
        let pending = entry.unmapped(&cpu.pin(), extent, StaleWrites::Possible);
        batch.defer_free(page);
        Ok(pending)
    }
}

#[test]
fn batch_interrupts_each_cpu_once() {
    let system = System::new(CONFIG);
    let (zero, one, two) = (system.run(0, 0), system.run(1, 0), system.run(2, 1));
    let mut batch: Batch<_, Pages> = Batch::new();
    for (space, page) in [(0, 3), (1, 5), (0, 9), (0, 4), (1, 10), (2, 1)] {
        system.unmap(&mut batch, &zero, space, page).unwrap().wait();
    }
    let mut sent = batch.send(&zero.pin());
    assert!(!sent.poll());
    one.interrupt_point();
    two.interrupt_point();
    assert_eq!(sent.wait(), [3, 5, 9, 4, 10, 1]);
    let faults = |cpu: &OnCpu<'_, Host>| {
        let pages = 0..PAGES;
        pages.filter(|&page| cpu.touch(page) == Touch::Fault).collect::<Vec<_>>()
    };
    assert_eq!(faults(&zero), [3, 4, 9]);
    assert_eq!(faults(&one), [3, 4, 9]);
    assert_eq!(faults(&two), [5, 10]);
    let stats = system.engine.machine().total_stats();
    assert_eq!((stats.interrupts_sent, stats.flushes_full), (2, ONLINE * 3));
    assert_eq!(stats.pages_invalidated, 3 + 3 + 2);
}

#[test]
fn flush_if_batched_flushes_until_batch_is_done() {
    let system = System::new(CONFIG);
    let (zero, one) = (system.run(0, 0), system.run(1, 0));
    let pin = zero.pin();
    let flushes = |space: &Space<_>| {
        let before = space.stats(system.engine.machine()).flushes_ranged;
        let mut pending = pin.flush_if_batched(space, Extent::page(0x3000));
        one.interrupt_point();
        assert!(pending.poll());
        space.stats(system.engine.machine()).flushes_ranged - before
    };
    let mut batch: Batch<_, Pages> = Batch::new();
    assert_eq!(flushes(&system.spaces[0]), 0);
    system.unmap(&mut batch, &zero, 0, 3).unwrap().wait();
    assert_eq!(flushes(&system.spaces[0]), 1);
    assert_eq!(one.touch(3), Touch::Fault);
    assert_eq!(flushes(&system.spaces[1]), 0, "no page of this space was unmapped");
    let sent = batch.send(&zero.pin());
    assert_eq!(flushes(&system.spaces[0]), 1, "a sent batch is not done");
    // The drop waits, and every CPU has answered already.
    drop(sent);
    assert_eq!(flushes(&system.spaces[0]), 0);
}

#[test]
#[cfg_attr(miri, ignore = "takes half a minute, and runs no unsafe code that others do not")]
fn too_many_spaces_fail_and_many_pages_widen() {
    let system = System::new(CONFIG);
    let zero = system.run(0, 0);
    let mut batch: Batch<_, Pages, 2> = Batch::new();
    for page in 0..PAGES {
        system.unmap(&mut batch, &zero, 0, page).unwrap().wait();
    }
    system.unmap(&mut batch, &zero, 1, 0).unwrap().wait();
    assert_eq!(system.unmap(&mut batch, &zero, 2, 0).unwrap_err(), BatchIsFull);
    assert!(!system.spaces[2].is_batched(system.engine.machine()));
    system.unmap(&mut batch, &zero, 1, 1).unwrap().wait();
    assert_eq!(batch.send(&zero.pin()).wait().len(), PAGES + 2);
    assert_eq!(zero.pin().cpu.stats().flushes_full, ONLINE + 1);
    assert_eq!(zero.touch(39), Touch::Fault);
}

#[test]
fn writable_page_is_flushed_immediately_without_traps() {
    let system = System::new(Config { traps_stale_writes: false, ..CONFIG });
    let (zero, one) = (system.run(0, 0), system.run(1, 0));
    let mut batch: Batch<_, Pages> = Batch::new();
    let mut pending = system.unmap(&mut batch, &zero, 0, 3).unwrap();
    assert!(!pending.poll());
    one.interrupt_point();
    pending.wait();
    assert_eq!((zero.touch(3), one.touch(3)), (Touch::Fault, Touch::Fault));
    assert!(batch.send(&zero.pin()).poll(), "nothing is left to flush");
}

/// A bag that records when its pages are freed.
#[derive(Default)]
struct RecordingBag<'d>(Option<&'d Cell<bool>>);

impl<'d> Extend<&'d Cell<bool>> for RecordingBag<'d> {
    fn extend<I: IntoIterator<Item = &'d Cell<bool>>>(&mut self, pages: I) {
        self.0 = pages.into_iter().last();
    }
}

impl Drop for RecordingBag<'_> {
    fn drop(&mut self) {
        if let Some(is_freed) = self.0 {
            is_freed.set(true);
        }
    }
}

#[test]
fn dropped_batch_frees_nothing_and_leaves_marks() {
    let system = System::new(CONFIG);
    let zero = system.run(0, 0);
    let is_freed = Cell::new(false);
    let mut batch: Batch<Spaces<'_>, RecordingBag<'_>> = Batch::new();
    let entry = batch.space(system.engine.machine(), &&system.spaces[0]).unwrap();
    entry.unmapped(&zero.pin(), Extent::page(0), StaleWrites::Impossible).wait();
    batch.defer_free(&is_freed);
    drop(batch);
    assert!(!is_freed.get());
    assert!(system.spaces[0].is_batched(system.engine.machine()));
}

#[test]
fn batch_has_48_bytes_per_space() {
    let size = size_of::<Batch<Spaces<'_>, Pages>>();
    assert_eq!(size, BATCH_SPACES * 48 + size_of::<usize>() + size_of::<Pages>());
}

#[test]
fn batch_without_unmapped_pages_flushes_nothing() {
    let system = System::new(CONFIG);
    let zero = system.run(0, 0);
    let mut batch: Batch<Spaces<'_>, Pages> = Batch::new();
    assert!(batch.is_empty());
    let _ = batch.space(system.engine.machine(), &&system.spaces[0]).unwrap();
    assert!(!batch.is_empty(), "the space is marked, and pages may be unmapped");
    assert_eq!(batch.send(&zero.pin()).wait(), vec![0; 0]);
    assert_eq!(system.spaces[0].stats(system.engine.machine()).flushes_ranged, 0);
    assert!(!system.spaces[0].is_batched(system.engine.machine()));
}

#[test]
fn lazy_sender_catches_up_on_resume() {
    let system = System::new(CONFIG);
    let zero = system.run(0, 0);
    zero.pin().enter_lazy();
    for pages in [[3, 4], [11, 5]] {
        let mut batch: Batch<_, Pages> = Batch::new();
        for page in pages {
            system.unmap(&mut batch, &zero, 0, page).unwrap().wait();
        }
        assert_eq!(batch.send(&zero.pin()).wait(), pages);
    }
    assert_eq!(zero.pin().cpu.stats().pages_invalidated, 0);
    assert!(zero.pin().resume(system.spaces[0].id()));
    assert_eq!(zero.pin().cpu.stats().pages_invalidated, 4);
    assert_eq!(zero.touch(11), Touch::Fault);
}

/// A CPU that comes back to a space invalidates up to 33 missed pages one by one, of which up
/// to 8 may be explicit.
#[test]
#[cfg_attr(miri, ignore = "takes half a minute, and runs no unsafe code that others do not")]
fn returning_cpu_has_higher_ceiling_for_reclaim() {
    let missed = |reclaimed: usize, explicit: usize| {
        let system = System::new(Config { catch_up_ceiling: 8, ..CONFIG });
        let (zero, one) = (system.run(0, 0), system.run(1, 0));
        one.pin().enter_lazy();
        let mut batch: Batch<_, Pages> = Batch::new();
        for page in 0..reclaimed {
            system.unmap(&mut batch, &zero, 0, page).unwrap().wait();
        }
        assert_eq!(batch.send(&zero.pin()).wait().len(), reclaimed);
        for page in reclaimed..reclaimed + explicit {
            assert!(system.engine.machine().try_unmap(&system.spaces[0], page));
            zero.pin().flush(&system.spaces[0], Extent::page((page as u64) << 12)).wait();
        }
        assert!(one.pin().resume(system.spaces[0].id()));
        assert!((0..reclaimed + explicit).all(|page| one.touch(page) == Touch::Fault));
        let stats = one.pin().cpu.stats();
        (stats.flushes_full - ONLINE, stats.pages_invalidated)
    };
    assert_eq!(missed(33, 0), (0, 33));
    assert_eq!(missed(34, 0), (1, 0));
    assert_eq!(missed(0, 8), (0, 8));
    assert_eq!(missed(0, 9), (1, 0));
    assert_eq!(missed(25, 8), (0, 33));
    assert_eq!(missed(25, 9), (1, 0));
    assert_eq!(missed(26, 8), (1, 0));
}

#[test]
fn broadcast_batch_interrupts_no_cpu() {
    let system = System::new(CONFIG.with_broadcasts(6));
    let (zero, one) = (system.run(0, 0), system.run(1, 1));
    let mut batch: Batch<_, Pages> = Batch::new();
    system.unmap(&mut batch, &zero, 0, 3).unwrap().wait();
    system.unmap(&mut batch, &zero, 1, 5).unwrap().wait();
    assert_eq!(batch.send(&zero.pin()).wait(), [3, 5]);
    assert_eq!((zero.touch(3), one.touch(5)), (Touch::Fault, Touch::Fault));
    assert_eq!(system.engine.machine().total_stats().interrupts_sent, 0);
}
