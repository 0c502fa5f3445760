//! Large pages: one translation for 512 frames.

use std::rc::Rc;

use shootdown_sim::{
    Affinity, Machine, PageFault, Purpose, RunEnd, Sim, TagEntries, ThreadSpec, Time, Touch, Wrong,
};

const ROUND: &str = include_str!("../round.toml");
/// Where the large page is mapped.
const LARGE: u64 = 2 << 20;
const PAGE: u64 = 4096;
/// PS, US, RW, P.
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

/// Page tables by hand, loaded. Returns the root, the table of 2 MiB entries, and the first frame
/// of the page that the second of them maps.
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
fn each_address_finds_its_frame_by_one_translation() {
    let sim = run("", |sim| {
        let (_, middle, frame) = tables(sim);
        for n in 0..512 {
            assert_eq!(sim.touch(LARGE + n * PAGE + 8, Touch::Read), Ok(n));
        }
        assert_eq!(walks(sim), 1);
        assert_eq!(sim.touch(LARGE + 5 * PAGE, Touch::Write(77)), Ok(77));
        assert_eq!((sim.page_content(frame + 5), sim.page_content(frame)), (77, 0));
        assert_eq!(sim.entry(middle, 1) & 0xfff, 0xe7, "accessed and dirty");
        // The one that knows that takes the place of the one that did not.
        assert_eq!(sim.touch(LARGE + 6 * PAGE, Touch::Write(78)), Ok(78));
        assert_eq!(walks(sim), 2);
        assert_eq!(sim.touch(LARGE - PAGE, Touch::Read), Err(PageFault));
        assert_eq!(sim.touch(2 * LARGE, Touch::Read), Err(PageFault));
    });
    assert_eq!((sim.violations(), sim.hazards()), (0, 0));
}

#[test]
fn it_is_forgotten_by_any_of_its_addresses() {
    let sim = run("", |sim| {
        let (_, middle, _) = tables(sim);
        assert_eq!(sim.touch(LARGE, Touch::Read), Ok(0));
        sim.update_entry(middle, 1, |_| 0);
        sim.invalidate([2 * LARGE].into_iter());
        assert_eq!(sim.touch(LARGE + 9 * PAGE, Touch::Read), Ok(9), "the TLB still has it");
        sim.invalidate([LARGE + 300 * PAGE].into_iter());
        assert_eq!(sim.touch(LARGE + 9 * PAGE, Touch::Read), Err(PageFault));
    });
    assert_eq!(sim.violations(), 0);
}

/// On a machine that marks an entry after the write, wherever it has the translation from.
#[test]
fn a_write_marks_the_entry_of_the_page_that_it_goes_to() {
    run("stale_writes = \"unnoticed\"\n", |sim| {
        let (_, middle, frame) = tables(sim);
        let dirty = || sim.entry(middle, 1) & 0x40;
        assert_eq!(sim.touch(LARGE, Touch::Read), Ok(0));
        assert_eq!((sim.touch(LARGE + PAGE, Touch::Write(1)), dirty()), (Ok(1), 0x40));
        assert_eq!(walks(sim), 1);
        // What is there by now is another page, or a table of small ones.
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
fn a_use_after_part_of_it_was_flushed_or_freed_is_noticed() {
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
    assert_eq!(sim.first_violations()[0].wrong, Wrong::FlushedTranslation);
    let sim = run("", |sim| {
        let (_, _, frame) = tables(sim);
        assert_eq!(sim.touch(LARGE, Touch::Read), Ok(0));
        sim.release(frame + 100);
        assert_eq!((sim.touch(LARGE, Touch::Read), sim.violations()), (Ok(0), 1));
    });
    assert_eq!(sim.first_violations()[0].wrong, Wrong::FreedPage);
}
