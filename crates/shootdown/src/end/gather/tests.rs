use super::*;
use crate::base::ids::{CpuId, Root};
use crate::soft::{Config, Host, Soft};
use std::vec;
use std::vec::Vec;

type Bag = Vec<&'static str>;

#[test]
fn gathered_tables_are_released_once_unreachable() {
    let engine = Soft::<Host>::engine(Config::default());
    let (zero, one) = (engine.enter(CpuId(0)), engine.enter(CpuId(1)));
    zero.pin().online();
    one.pin().online();
    let space = engine.space(Root(0));
    #[expect(unsafe_code, reason = "the space outlives its CPUs")]
    let go_lazy = || {
        // SAFETY: the space outlives its CPUs.
        unsafe { one.pin().switch(&space) };
        one.pin().enter_lazy();
    };
    let mut quarantine: Quarantine<Bag> = Quarantine::new(2);
    let mut flush = |gather: Gather<Bag>| {
        let mut freed = Vec::new();
        let sent = gather.send(&zero.pin(), &space);
        let left = sent.wait().release(&mut quarantine, |bag| freed.extend(bag));
        (freed, left.err())
    };
    let gathered = |page, table: &[&'static str]| {
        let mut gather = Gather::new();
        gather.page(0x3000, PageSize::SIZE_4K, page);
        for &table in table {
            gather.table(0x3000, table);
        }
        assert_eq!((gather.pages(), gather.tables()), (&vec![page], &table.to_vec()));
        assert_eq!(gather.table_count(), table.len());
        gather
    };

    go_lazy();
    assert_eq!(flush(gathered("page", &["table"])), (vec!["page"], None));
    assert_eq!(flush(gathered("other", &[])), (vec!["other"], None));
    // The quarantine has room for one more table, not for two.
    let (freed, left) = flush(gathered("third", &["one", "two"]));
    assert_eq!((freed, left), (vec!["third"], Some(vec!["one", "two"])));
    // CPU 1 has caught up, and published so by going lazy again.
    go_lazy();
    let (freed, left) = flush(gathered("last", &[]));
    assert_eq!((freed, left), (vec!["last", "table"], None));
    // No CPU can walk the tables.
    one.pin().leave_space();
    let (freed, left) = flush(gathered("page", &["one", "two"]));
    assert_eq!((freed, left), (vec!["page", "one", "two"], None));
    assert_eq!(engine.machine().total_stats().interrupts_sent, 0);
}

#[test]
fn empty_gather_sends_no_flush() {
    let engine = Soft::<Host>::engine(Config::default());
    let cpu = engine.enter(CpuId(0));
    cpu.pin().online();
    let space = engine.space(Root(0));
    let gather: Gather<Bag> = Gather::new();
    assert!(gather.send(&cpu.pin(), &space).poll());
    assert_eq!(space.stats(engine.machine()).flushes_ranged, 0);
}

#[test]
fn sent_gather_is_polled_until_done() {
    let engine = Soft::<Host>::engine(Config::default());
    let (zero, one) = (engine.enter(CpuId(0)), engine.enter(CpuId(1)));
    zero.pin().online();
    one.pin().online();
    let space = engine.space(Root(0));
    #[expect(unsafe_code, reason = "the space outlives its CPUs")]
    // SAFETY: the space outlives its CPUs.
    unsafe {
        one.pin().switch(&space);
    }
    let mut gather: Gather<Bag> = Gather::new();
    gather.page(0x3000, PageSize::SIZE_4K, "page");
    let mut sent = gather.send(&zero.pin(), &space);
    assert!(!sent.poll());
    one.interrupt_point();
    assert!(sent.poll());
}

#[test]
fn into_parts_returns_all_that_was_gathered() {
    let mut gather: Gather<Bag> = Gather::new();
    gather.page(0x3000, PageSize::SIZE_4K, "page");
    gather.table(0x20_0000, "table");
    let extents = *gather.extents();
    assert_eq!(extents.as_slice().len(), 2);
    assert_eq!(gather.into_parts(), (extents, vec!["page"], vec!["table"]));
}
