//! The classes of interrupts.

use std::rc::Rc;

use shootdown_sim::{Counts, FrameNumber, Kernel, Purpose, Sim, TagEntries, Time, Touch};

use crate::machine::{on_cpu, run, sim};

pub(crate) const PAGE: u64 = 0x1000;
pub(crate) const OTHER: u64 = 0x2000;

/// Drops all entries in the interrupt.
struct Dropping(Rc<Sim>);

impl Kernel for Dropping {
    fn online(&self) {}
    fn switch(&self, _space: u64) {}
    fn enter_lazy(&self) {}
    fn leave_space(&self) {}
    fn flush_interrupt(&self) {
        self.0.invalidate_tag();
    }
}

/// Page tables that map both pages.
pub(crate) fn tables(sim: &Sim) -> FrameNumber {
    let table = || sim.allocate(Purpose::Table).unwrap();
    let (root, upper, middle, leaf) = (table(), table(), table(), table());
    for (from, to) in [(root, upper), (upper, middle), (middle, leaf)] {
        sim.update_entry(from, 0, |_| to << 12 | 7);
    }
    for index in [1, 2] {
        let page = sim.allocate(Purpose::Page).unwrap();
        sim.update_entry(leaf, index, |_| page << 12 | 7);
    }
    root
}

pub(crate) fn read(sim: &Sim, address: u64) {
    sim.touch(address, Touch::Read).unwrap();
}

/// Runs `target` on CPU 1 from time 0, and `sender` on CPU 0 from 10 µs on. Returns the counts.
pub(crate) fn counts_of(
    target: impl FnOnce(&Sim, FrameNumber) + 'static,
    sender: impl FnOnce(&Sim, FrameNumber) + 'static,
) -> Counts {
    let sim = sim(2);
    sim.classify_interrupts();
    sim.install(Rc::new(Dropping(Rc::clone(&sim))));
    let root = tables(&sim);
    on_cpu(&sim, 1, move |sim| {
        sim.load_root(root, 1, TagEntries::Discarded);
        target(sim, root);
        sim.spend(Time::from_ns(100_000));
    });
    on_cpu(&sim, 0, move |sim| {
        sim.spend(Time::from_ns(10_000).saturating_sub(sim.now()));
        sender(sim, root);
    });
    run(&sim);
    sim.uninstall();
    sim.counts()
}

/// Sends an interrupt for the first page. The flushes of the others begin while it is on its way.
pub(crate) fn flush(sim: &Sim, root: FrameNumber, pages: &[u64]) {
    for (number, &page) in pages.iter().enumerate() {
        let record = sim.flush_began(root, Some(page..page + 0x1000));
        if number == 0 {
            sim.send_flush_interrupt([1]);
        }
        sim.flush_sent();
        sim.flush_ended(record);
    }
}

/// The useful, early and vain interrupts.
fn classes(counts: &Counts) -> [u64; 3] {
    assert_eq!(counts.useful() + counts.early() + counts.in_vain(), counts.interrupts_sent);
    [counts.useful(), counts.early(), counts.in_vain()]
}

#[test]
fn page_used_after_interrupt_makes_it_useful() {
    let target = |sim: &Sim, _| {
        read(sim, PAGE);
        sim.spend(Time::from_ns(50_000));
        read(sim, PAGE);
    };
    let counts = counts_of(target, |sim, root| flush(sim, root, &[PAGE]));
    assert_eq!(classes(&counts), [1, 0, 0]);
    assert_eq!(counts.bound(), 1);
}

#[test]
fn page_not_used_again_makes_interrupt_early() {
    let target = |sim: &Sim, _| {
        read(sim, PAGE);
        sim.spend(Time::from_ns(50_000));
        read(sim, OTHER);
    };
    let counts = counts_of(target, |sim, root| flush(sim, root, &[PAGE]));
    assert_eq!(classes(&counts), [0, 1, 0]);
}

#[test]
fn own_flush_before_use_makes_interrupt_early() {
    let target = |sim: &Sim, root| {
        read(sim, PAGE);
        sim.spend(Time::from_ns(50_000));
        let record = sim.flush_began(root, Some(OTHER..OTHER + 0x1000));
        sim.flush_sent();
        sim.flush_ended(record);
        read(sim, PAGE);
    };
    let counts = counts_of(target, |sim, root| flush(sim, root, &[PAGE]));
    assert_eq!(classes(&counts), [0, 1, 0]);
}

#[test]
fn page_that_target_lacks_makes_interrupt_vain() {
    let counts = counts_of(|sim, _| read(sim, OTHER), |sim, root| flush(sim, root, &[PAGE]));
    assert_eq!(classes(&counts), [0, 0, 1]);
    // It has read the table of the page nevertheless.
    assert_eq!(counts.interrupts_touched_2mib, 1);
    let counts = counts_of(|_, _| (), |sim, root| flush(sim, root, &[PAGE]));
    assert_eq!((classes(&counts), counts.interrupts_touched_512gib), ([0, 0, 1], 0));
}

#[test]
fn coalesced_flush_counts_for_the_interrupt_on_its_way() {
    let target = |sim: &Sim, _| {
        read(sim, OTHER);
        sim.spend(Time::from_ns(50_000));
        read(sim, OTHER);
    };
    let counts = counts_of(target, |sim, root| flush(sim, root, &[PAGE, OTHER]));
    assert_eq!(classes(&counts), [1, 0, 0]);
}

#[test]
fn translation_read_after_flush_began_is_not_held() {
    let counts = counts_of(
        |sim, _| {
            sim.spend(Time::from_ns(15_000).saturating_sub(sim.now()));
            read(sim, PAGE);
        },
        |sim, root| {
            let record = sim.flush_began(root, Some(PAGE..PAGE + 0x1000));
            sim.spend(Time::from_ns(10_000));
            sim.send_flush_interrupt([1]);
            sim.flush_sent();
            sim.flush_ended(record);
        },
    );
    assert_eq!(classes(&counts), [0, 0, 1]);
}

#[test]
fn whole_space_is_used_by_any_page_held() {
    let sender = |sim: &Sim, root| {
        let record = sim.flush_began(root, None);
        sim.send_flush_interrupt([1]);
        sim.flush_sent();
        sim.flush_ended(record);
    };
    let after = |address| {
        move |sim: &Sim, _: FrameNumber| {
            read(sim, PAGE);
            sim.spend(Time::from_ns(50_000));
            read(sim, address);
        }
    };
    assert_eq!(classes(&counts_of(after(PAGE), sender)), [1, 0, 0]);
    assert_eq!(classes(&counts_of(after(OTHER), sender)), [0, 1, 0]);
    assert_eq!(classes(&counts_of(|_, _| (), sender)), [0, 0, 1]);
}

#[test]
fn nothing_is_counted_unless_requested() {
    let sim = sim(2);
    sim.install(Rc::new(Dropping(Rc::clone(&sim))));
    let root = tables(&sim);
    on_cpu(&sim, 1, |sim| sim.spend(Time::from_ns(100_000)));
    on_cpu(&sim, 0, move |sim| flush(sim, root, &[PAGE]));
    run(&sim);
    sim.uninstall();
    let counts = sim.counts();
    assert_eq!((counts.interrupts_sent, counts.interrupts_in_vain), (1, 0));
}
