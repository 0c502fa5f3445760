//! Large pages: one translation for 512 frames.

use std::rc::Rc;

use shootdown_sim::{
    Affinity, Machine, PageFault, Purpose, RunEnd, Sim, TagEntries, ThreadSpec, Time, Touch,
    ViolationKind,
};

const ROUND: &str = include_str!("../round.toml");
/// Address of the large page.
const LARGE: u64 = 2 << 20;
const PAGE: u64 = 4096;
/// The PS, US, RW and P bits of an entry.
const WRITABLE: u64 = 0x87;

fn run(head: &str, body: impl FnOnce(&Sim) + 'static) -> Rc<Sim> {
    let machine = Machine::from_toml(&format!("{head}{ROUND}")).unwrap().with_cpus(1).unwrap();
    let sim = Rc::new(Sim::new(machine, 1 << 12, 4).unwrap());
    let inside = Rc::clone(&sim);
    let spec = ThreadSpec { space: None, affinity: Affinity::Cpu(0) };
    sim.spawn(spec, move || body(&inside)).unwrap();
    assert_eq!(sim.run_until(Time::END), RunEnd::Done);
    sim
}

/// Builds and loads page tables. Returns the root, the table of 2 MiB entries, and the first frame
/// of the page that the second of those entries maps.
fn tables(sim: &Sim) -> (u64, u64, u64) {
    let table = || sim.allocate(Purpose::Table).unwrap();
    let (top, upper, middle) = (table(), table(), table());
    for (from, to) in [(top, upper), (upper, middle)] {
        sim.update_entry(from, 0, |_| to << 12 | 7);
    }
    let frame = sim.allocate_large().unwrap();
    sim.update_entry(middle, 1, |_| frame << 12 | WRITABLE);
    (0..512).for_each(|n| sim.fill_page(frame + n, n));
    sim.load_root(top, 1, TagEntries::Discarded);
    (top, middle, frame)
}

fn walks(sim: &Sim) -> u64 {
    sim.counts().walks
}

#[test]
fn one_translation_maps_all_frames() {
    let sim = run("", |sim| {
        let (_, middle, frame) = tables(sim);
        for n in 0..512 {
            assert_eq!(sim.touch(LARGE + n * PAGE + 8, Touch::Read), Ok(n));
        }
        assert_eq!(walks(sim), 1);
        assert_eq!(sim.touch(LARGE + 5 * PAGE, Touch::Write(77)), Ok(77));
        assert_eq!((sim.page_content(frame + 5), sim.page_content(frame)), (77, 0));
        assert_eq!(sim.entry(middle, 1) & 0xfff, 0xe7, "accessed and dirty");
        // The translation with the dirty bit replaces the one without.
        assert_eq!(sim.touch(LARGE + 6 * PAGE, Touch::Write(78)), Ok(78));
        assert_eq!(walks(sim), 2);
        assert_eq!(sim.touch(LARGE - PAGE, Touch::Read), Err(PageFault));
        assert_eq!(sim.touch(2 * LARGE, Touch::Read), Err(PageFault));
    });
    assert_eq!((sim.violations(), sim.hazards()), (0, 0));
}

#[test]
fn any_address_invalidates_a_large_page() {
    let sim = run("", |sim| {
        let (_, middle, _) = tables(sim);
        assert_eq!(sim.touch(LARGE, Touch::Read), Ok(0));
        sim.update_entry(middle, 1, |_| 0);
        sim.invalidate([2 * LARGE].into_iter());
        assert_eq!(sim.touch(LARGE + 9 * PAGE, Touch::Read), Ok(9), "the TLB has a stale entry");
        sim.invalidate([LARGE + 300 * PAGE].into_iter());
        assert_eq!(sim.touch(LARGE + 9 * PAGE, Touch::Read), Err(PageFault));
    });
    assert_eq!(sim.violations(), 0);
}

/// On this machine, a write through a clean translation sets the dirty bit after the write.
#[test]
fn late_dirty_bit_goes_only_to_the_same_page() {
    run("stale_writes = \"unnoticed\"\n", |sim| {
        let (_, middle, frame) = tables(sim);
        let dirty = || sim.entry(middle, 1) & 0x40;
        assert_eq!(sim.touch(LARGE, Touch::Read), Ok(0));
        assert_eq!((sim.touch(LARGE + PAGE, Touch::Write(1)), dirty()), (Ok(1), 0x40));
        assert_eq!(walks(sim), 1);
        // The entry now maps another page, or a table of small pages.
        let small = sim.allocate(Purpose::Table).unwrap();
        sim.update_entry(small, 1, |_| frame << 12 | 7);
        for other in [(frame + 512) << 12 | WRITABLE, small << 12 | 7] {
            sim.update_entry(middle, 1, |_| frame << 12 | WRITABLE);
            sim.invalidate([LARGE].into_iter());
            assert_eq!(sim.touch(LARGE, Touch::Read), Ok(0));
            sim.update_entry(middle, 1, |_| other);
            assert_eq!((sim.touch(LARGE + PAGE, Touch::Write(2)), dirty()), (Ok(2), 0));
        }
        assert_eq!(sim.entry(small, 1) & 0x40, 0);
    });
}

#[test]
fn oracle_detects_partly_flushed_or_freed_large_page() {
    let sim = run("", |sim| {
        let (root, _, _) = tables(sim);
        assert_eq!(sim.touch(LARGE, Touch::Read), Ok(0));
        let beside = sim.flush_began(root, Some(2 * LARGE..2 * LARGE + PAGE));
        sim.flush_ended(beside);
        assert_eq!((sim.touch(LARGE, Touch::Read), sim.violations()), (Ok(0), 0));
        let part = sim.flush_began(root, Some(LARGE + 7 * PAGE..LARGE + 8 * PAGE));
        sim.flush_ended(part);
        assert_eq!((sim.touch(LARGE, Touch::Read), sim.violations()), (Ok(0), 1));
    });
    assert_eq!(sim.first_violations()[0].kind, ViolationKind::FlushedTranslation);
    let sim = run("", |sim| {
        let (_, _, frame) = tables(sim);
        assert_eq!(sim.touch(LARGE, Touch::Read), Ok(0));
        sim.release(frame + 100);
        assert_eq!((sim.touch(LARGE, Touch::Read), sim.violations()), (Ok(0), 1));
    });
    assert_eq!(sim.first_violations()[0].kind, ViolationKind::FreedPage);
}
