use super::*;
use crate::base::ids::{CpuId, Root};
use crate::parts::extent::Extent;
use crate::soft::{Config, Host, Soft, Touch};
use crate::state::space::Space;

#[test]
fn parked_pages_are_freed_after_their_flush() {
    let engine = Soft::<Host>::engine(Config::default());
    let (zero, one) = (engine.enter(CpuId(0)), engine.enter(CpuId(1)));
    zero.pin().online();
    one.pin().online();
    let space: Space<Soft<Host>> = engine.space(Root(0));
    #[expect(unsafe_code, reason = "the space outlives its CPU's use of it")]
    // SAFETY: the space outlives the CPUs' use of it, and does not move.
    unsafe {
        one.pin().switch(&space);
    }
    let mut parked: Parked<'_, _, usize, 2> = Parked::new();
    let unmap = |page: usize| {
        engine.machine().map(&space, page);
        assert_eq!(one.touch(page), Touch::Ok);
        engine.machine().unmap(&space, page);
        let pending = zero.pin().flush(&space, Extent::page((page as u64) << 12));
        ParkedFlush { pending, pages: page }
    };
    assert!(parked.is_empty());
    assert!(parked.park(unmap(0)).is_ok() && parked.park(unmap(1)).is_ok());
    assert_eq!(std::format!("{parked:?}").matches("ParkedFlush(Pending").count(), 2);
    assert!(!parked.is_empty());
    let third = parked.park(unmap(2)).err().map(|flush| (flush.pages, flush.pending));
    assert!(parked.take_done().is_none(), "CPU 1 has not answered");
    let last = parked.take_any().unwrap();
    one.interrupt_point();
    let (page, mut pending) = third.unwrap();
    assert!(pending.poll());
    engine.machine().free(&space, page);
    let ParkedFlush { mut pending, pages } = last;
    assert!(pending.poll());
    engine.machine().free(&space, pages);
    let rest = parked.take_done().unwrap();
    engine.machine().free(&space, rest.pages);
    assert!(parked.is_empty() && parked.take_any().is_none());
    assert!((0..3).all(|page| one.touch(page) == Touch::Fault));
}
