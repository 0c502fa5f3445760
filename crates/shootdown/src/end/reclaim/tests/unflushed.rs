//! Pages that are flushed when their frames are reused.

use super::{CONFIG, Pages, Spaces, System};
use crate::end::reclaim::{CleanBatch, CleanExtent, SentBatch, StaleWrites, Unflushed};
use crate::parts::extent::Extent;
use crate::soft::{Host, OnCpu, Touch};
use std::vec;

type Few<'s> = Unflushed<Spaces<'s>, Pages, 2>;

const fn extent(page: usize) -> Extent {
    Extent::page((page as u64) << 12)
}

/// Unmaps pages of spaces, and defers their flush.
fn defer<'s>(system: &'s System, cpu: &OnCpu<'s, Host>, pages: &[(usize, usize)]) -> Few<'s> {
    let machine = system.engine.machine();
    let mut batch = CleanBatch::new();
    for &(space, page) in pages {
        let entry = batch.space(machine, &&system.spaces[space]).unwrap();
        assert!(machine.try_unmap(&system.spaces[space], page));
        entry.unmapped(CleanExtent::new(extent(page), StaleWrites::Impossible).unwrap());
        batch.defer_free(page);
    }
    batch.defer(&cpu.pin())
}

fn interrupts(system: &System) -> u64 {
    system.engine.machine().total_stats().interrupts_sent
}

/// Reuses the frames on CPU 0, and frees the pages. Returns the number of interrupts.
fn reuse(
    system: &System,
    mut unflushed: Few<'_>,
    zero: &OnCpu<'_, Host>,
    others: &[&OnCpu<'_, Host>],
) -> u64 {
    let (before, is_due) = (interrupts(system), unflushed.is_due(&zero.pin()));
    let mut sent = unflushed.reuse(&zero.pin());
    for cpu in others {
        cpu.interrupt_point();
    }
    assert!(sent.poll());
    for page in sent.wait() {
        system.engine.machine().free(&system.spaces[0], page);
    }
    let count = interrupts(system) - before;
    assert_eq!(is_due, count != 0);
    assert!(!unflushed.is_due(&zero.pin()));
    count
}

#[test]
fn deferred_page_stays_readable_until_reuse() {
    let system = System::new(CONFIG);
    let (zero, one) = (system.run(0, 0), system.run(1, 0));
    let unflushed = defer(&system, &zero, &[(0, 3), (0, 4)]);
    assert_eq!(interrupts(&system), 0);
    assert_eq!((zero.touch(3), one.touch(3)), (Touch::Fault, Touch::Ok));
    assert!(system.spaces[0].is_batched(system.engine.machine()));
    assert_eq!(reuse(&system, unflushed, &zero, &[&one]), 1);
    assert_eq!((one.touch(3), one.touch(4)), (Touch::Fault, Touch::Fault));
    assert!(!system.spaces[0].is_batched(system.engine.machine()));
}

#[test]
fn cpu_that_caught_up_is_not_interrupted_at_reuse() {
    type CatchUp = fn(&System, &OnCpu<'_, Host>, &OnCpu<'_, Host>);
    let switch_away_and_back: CatchUp = |system, _, one| {
        for space in [&system.spaces[1], &system.spaces[0]] {
            #[expect(unsafe_code, reason = "the spaces live as long as the machine")]
            // SAFETY: the spaces live as long as the machine.
            unsafe {
                one.pin().switch(space);
            }
        }
    };
    let answer_another_flush: CatchUp = |system, zero, one| {
        let mut pending = zero.pin().flush(&system.spaces[0], extent(9));
        one.interrupt_point();
        assert!(pending.poll());
    };
    let answer_many: CatchUp = |system, zero, one| {
        let mut pending = zero.pin().flush(&system.spaces[0], extent(9));
        pending.join(zero.pin().flush(&system.spaces[0], Extent::whole()));
        one.interrupt_point();
        assert!(pending.poll());
    };
    let flush_itself: CatchUp = |system, zero, one| {
        let mut pending = one.pin().flush(&system.spaces[0], extent(9));
        zero.interrupt_point();
        assert!(pending.poll());
    };
    let go_idle: CatchUp = |_, _, one| one.pin().enter_lazy();
    let ways = [switch_away_and_back, answer_another_flush, answer_many, flush_itself, go_idle];
    for (way, catch_up) in ways.into_iter().enumerate() {
        let system = System::new(CONFIG);
        let (zero, one) = (system.run(0, 0), system.run(1, 0));
        let unflushed = defer(&system, &zero, &[(0, 3)]);
        catch_up(&system, &zero, &one);
        assert_eq!(reuse(&system, unflushed, &zero, &[]), 0, "{way}");
    }
}

#[test]
fn cpu_is_interrupted_once_for_several_collections() {
    let system = System::new(CONFIG);
    let (zero, one, two) = (system.run(0, 0), system.run(1, 0), system.run(2, 1));
    let mut first = defer(&system, &zero, &[(0, 3), (1, 5)]);
    let mut second = defer(&system, &zero, &[(1, 6), (0, 7)]);
    let mut both = [first.reuse(&zero.pin()), second.reuse(&zero.pin())];
    one.interrupt_point();
    two.interrupt_point();
    assert!(both.iter_mut().all(SentBatch::poll));
    assert_eq!(both.map(SentBatch::wait), [vec![3, 5], vec![6, 7]]);
    assert_eq!(interrupts(&system), 2);
    assert_eq!((one.touch(3), one.touch(7)), (Touch::Fault, Touch::Fault));
    assert_eq!((two.touch(5), two.touch(6)), (Touch::Fault, Touch::Fault));
}

/// The CPU that reuses a frame is not the one that has unmapped it.
#[test]
fn reusing_cpu_invalidates_for_itself() {
    let system = System::new(CONFIG);
    let (zero, one) = (system.run(0, 0), system.run(1, 0));
    let mut unflushed = defer(&system, &zero, &[(0, 3)]);
    assert_eq!(unflushed.reuse(&one.pin()).wait(), [3]);
    assert_eq!((one.touch(3), interrupts(&system)), (Touch::Fault, 0));
}

#[test]
fn writable_page_and_freed_table_are_refused() {
    assert_eq!(CleanExtent::new(extent(3), StaleWrites::Possible), None);
    assert_eq!(CleanExtent::new(extent(3).freeing_tables(), StaleWrites::Impossible), None);
}

#[test]
fn reuse_broadcasts_where_that_is_cheaper() {
    let system = System::new(CONFIG.with_broadcasts(6));
    let (zero, one) = (system.run(0, 0), system.run(1, 0));
    let mut unflushed = defer(&system, &zero, &[(0, 3)]);
    assert_eq!(one.touch(3), Touch::Ok);
    assert_eq!(unflushed.reuse(&zero.pin()).wait(), [3]);
    assert_eq!((one.touch(3), interrupts(&system)), (Touch::Fault, 0));
}

#[test]
fn attached_device_is_flushed_at_reuse() {
    let system = System::new(CONFIG);
    system.engine.attach_device(&system.spaces[0]).unwrap();
    let device = || system.engine.machine().touch_by_device(&system.spaces[0], 3);
    assert_eq!(device(), Touch::Ok);
    let zero = system.engine.enter(crate::CpuId(0));
    let mut unflushed = defer(&system, &zero, &[(0, 3)]);
    assert_eq!(device(), Touch::Ok);
    assert!(unflushed.is_due(&zero.pin()));
    assert_eq!(unflushed.reuse(&zero.pin()).wait(), [3]);
    assert_eq!(device(), Touch::Fault);
}
