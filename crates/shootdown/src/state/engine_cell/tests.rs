use super::*;
use crate::base::ids::Root;
use crate::parts::extent::Extent;
use crate::state::machine::tests::Plain;
use crate::state::space::Space;
use std::boxed::Box;
use std::format;

/// Words for all tags, which are fewer under miri, where each word takes time.
const WORDS: usize = if cfg!(miri) { 16 } else { 2048 };
const TAGS: usize = WORDS / 2 * 64 - 1;

type Large = Plain<WORDS>;

static CELL: EngineCell<Large> = EngineCell::new();

#[test]
fn cell_is_empty_until_initialised() {
    let page = Extent::page(0x1000);
    // SAFETY: there is one CPU, one thread uses it, and there are no interrupts.
    let flush = || unsafe { CELL.try_pin() }.map(|cpu| cpu.flush_kernel(page).wait());
    assert_eq!((flush(), format!("{CELL:?}").as_str()), (None, "EngineCell(None)"));
    // SAFETY: only this thread uses the cell.
    let engine = unsafe { CELL.init(Plain::with_tags(TAGS)) };
    assert_eq!(flush(), Some(()));
    assert!(engine.owns(&CELL.space(Root(0))));
    // SAFETY: as above.
    let init = || unsafe { CELL.init(Plain::with_tags(1)) };
    let again = std::panic::catch_unwind(|| init().owns(&Space::vacant()));
    assert!(again.is_err());
}

#[test]
fn engine_in_place_equals_engine_by_value() {
    let machine = || Large::with_tags(TAGS);
    let mut place = Box::new(MaybeUninit::uninit());
    let engines = [Box::new(Shootdown::from(machine())), Box::new(Shootdown::new(machine()))];
    let in_place = Shootdown::init(&mut place, machine());
    let word = |word: &AtomicU64| word.load(Relaxed);
    let first = |engine: &Shootdown<Large>| {
        let tags = engine.tags();
        let pins = tags.pins().iter().chain(tags.unavailable()).map(word).sum::<u64>();
        let others = [&tags.failures, &tags.pinned, &tags.epoch].map(word);
        let block = tags.take_block(engine.machine(), 2).map(|block| block.asids != 0);
        let space = engine.space(Root(7));
        (
            others,
            block,
            pins,
            tags.unavailable().len(),
            space.id(),
            engine.kernel().generation(engine.machine()),
        )
    };
    let expected = ([0, 0, 2], Some(true), 0, WORDS / 2, first(&engines[0]).4, 0);
    assert_eq!(first(&engines[1]), expected);
    assert_eq!(first(in_place), expected);
}

#[test]
#[should_panic(expected = "another engine's")]
fn vacant_space_cannot_be_flushed() {
    static SPACE: Space<Plain> = Space::vacant();
    let engine = Shootdown::new(Plain::with_tags(0));
    // SAFETY: there is one CPU, one thread uses it, and there are no interrupts.
    let pin = unsafe { engine.pin() };
    pin.flush(&SPACE, Extent::page(0x1000)).wait();
}
