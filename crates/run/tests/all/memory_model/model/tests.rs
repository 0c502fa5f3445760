//! The model without a machine: the reads that it accepts and refuses.

use std::collections::BTreeMap;

use super::*;

const FILE: FileKey = 9;

fn private() -> Shown {
    Shown::Private { file: FILE, offset: 0 }
}

/// A process with these mappings, each of 4 pages, from page 0 on.
fn process(mappings: &[Shown]) -> (Model, MemoryId) {
    let mut model = Model::default();
    let process = model.process();
    for (first, shown) in (0..).step_by(4).zip(mappings) {
        let range = first..first + 4;
        let map = model.begin(process, Change::Map { range, shown: shown.moved(first) });
        model.end(map, Ended::Done);
    }
    (model, process)
}

/// Checks that exactly these words may be read in a page. Does not change the model.
#[track_caller]
fn may_read(model: &Model, process: MemoryId, page: u64, values: &[u64]) {
    let found = model.processes[process.0].values(&model.files, page, model.now);
    assert_eq!(found, values);
}

#[test]
fn only_the_last_write_is_read() {
    let (mut model, process) = process(&[Shown::Anonymous]);
    may_read(&model, process, 1, &[0]);
    model.wrote(process, 1, 5);
    may_read(&model, process, 1, &[5]);
    model.read(process, 1, 5);
    assert_eq!(model.wrong(), 0);
    model.read(process, 1, 0);
    model.read(process, 2, 5);
    assert_eq!(model.wrong(), 2);
    let first = model.first()[0].to_string();
    assert_eq!(first, "process 0, page 0x1: 0 was found by a read, where one of [5] may be");
}

#[test]
fn change_shows_both_sides_until_its_end() {
    let (mut model, process) = process(&[Shown::Anonymous]);
    model.wrote(process, 0, 1);
    let discard = model.begin(process, Change::Discard(0..4));
    may_read(&model, process, 0, &[0, 1]);
    model.wrote(process, 0, 2);
    model.wrote(process, 0, 3);
    model.read(process, 0, 1);
    may_read(&model, process, 0, &[0, 1, 2, 3]);
    model.end(discard, Ended::Done);
    may_read(&model, process, 0, &[0, 2, 3]);
    model.read(process, 0, 2);
    may_read(&model, process, 0, &[2]);
    assert_eq!(model.wrong(), 0);
}

#[test]
fn overlapping_changes_keep_later_writes() {
    let (mut model, process) = process(&[Shown::Anonymous]);
    model.wrote(process, 0, 1);
    let outer = model.begin(process, Change::Discard(0..4));
    model.wrote(process, 0, 2);
    let inner = model.begin(process, Change::Discard(0..1));
    model.wrote(process, 0, 3);
    model.end(inner, Ended::Done);
    may_read(&model, process, 0, &[0, 3]);
    model.wrote(process, 0, 4);
    model.end(outer, Ended::Done);
    may_read(&model, process, 0, &[0, 3, 4]);
}

#[test]
fn private_file_page_follows_shared_until_written() {
    let shared = Shown::Shared { file: FILE, offset: 0 };
    let (mut model, one) = process(&[shared, private()]);
    model.wrote(one, 2, 7);
    may_read(&model, one, 6, &[7]);
    model.wrote(one, 6, 8);
    let unmap = model.begin(one, Change::Unmap(0..4));
    model.wrote(one, 2, 9);
    model.end(unmap, Ended::Done);
    may_read(&model, one, 2, &[]);
    may_read(&model, one, 6, &[8]);
    assert_eq!(model.files.now(FILE, 2), [9]);
    model.end_file(FILE, 2, 7);
    assert_eq!(model.wrong(), 1);
}

#[test]
fn private_file_page_is_copied_after_its_fault() {
    let (mut model, process) = process(&[private(), Shown::Shared { file: FILE, offset: 0 }]);
    model.wrote(process, 4, 1);
    model.write_begins(process, 0);
    model.wrote(process, 4, 2);
    may_read(&model, process, 0, &[1, 2]);
    model.read(process, 0, 1);
    model.wrote(process, 4, 3);
    may_read(&model, process, 0, &[1]);
    model.write_ends(process, 0);
    model.wrote(process, 0, 4);
    may_read(&model, process, 0, &[4]);
}

#[test]
fn offered_page_may_be_zero_until_written() {
    let (mut model, process) = process(&[Shown::Anonymous]);
    (0..3).for_each(|page| model.wrote(process, page, 1 + page));
    let offer = model.begin(process, Change::Offer(0..4));
    model.end(offer, Ended::Done);
    model.read(process, 0, 1);
    may_read(&model, process, 0, &[0, 1]);
    model.read(process, 0, 0);
    may_read(&model, process, 0, &[0]);
    model.wrote(process, 1, 9);
    may_read(&model, process, 1, &[9]);
    may_read(&model, process, 2, &[0, 3]);
    let offer = model.begin(process, Change::Offer(2..3));
    model.wrote(process, 2, 4);
    model.end(offer, Ended::Done);
    model.read(process, 2, 4);
    may_read(&model, process, 2, &[0, 4]);
}

#[test]
fn child_has_the_parents_words_during_fork() {
    let (mut model, parent) = process(&[Shown::Anonymous]);
    model.wrote(parent, 0, 1);
    let fork = model.begin(parent, Change::Fork);
    model.wrote(parent, 0, 2);
    may_read(&model, parent, 0, &[2]);
    let discard = model.begin(parent, Change::Discard(0..1));
    model.end(discard, Ended::Done);
    may_read(&model, parent, 0, &[0]);
    let child = model.end_fork(fork);
    may_read(&model, child, 0, &[0, 1, 2]);
    model.wrote(child, 0, 3);
    may_read(&model, parent, 0, &[0]);
    may_read(&model, child, 0, &[3]);
}

/// The copy may come before the move, or after it.
#[test]
fn child_has_pages_that_move_during_fork_in_either_place() {
    let (mut model, parent) = process(&[Shown::Anonymous]);
    model.wrote(parent, 0, 1);
    let [before, after] = [0, 8].map(|place| {
        let fork = model.begin(parent, Change::Fork);
        let go = model.begin(parent, Change::Move { from: 0..1, to: 8..9 });
        model.end(go, Ended::Done);
        let child = model.end_fork(fork);
        let back = model.begin(parent, Change::Move { from: 8..9, to: 0..1 });
        model.end(back, Ended::Done);
        (child, place)
    });
    for (child, place) in [before, after] {
        model.end_process(child, &BTreeMap::from([(place, 1)]));
    }
    assert_eq!(model.wrong(), 0);
    model.end_process(parent, &BTreeMap::new());
    assert_eq!(model.wrong(), 1);
}

#[test]
fn moved_pages_keep_writes_and_areas_grow() {
    let (mut model, process) = process(&[private(), Shown::Anonymous]);
    model.wrote(process, 1, 1);
    let go = model.begin(process, Change::Move { from: 0..4, to: 20..26 });
    model.wrote(process, 1, 2);
    model.wrote(process, 21, 3);
    may_read(&model, process, 21, &[0, 1, 2, 3]);
    model.end(go, Ended::Done);
    may_read(&model, process, 21, &[1, 2, 3]);
    may_read(&model, process, 1, &[]);
    model.files.observe(FILE, 5, 6, model.now);
    may_read(&model, process, 25, &[6]);
    let grow = model.begin(process, Change::Grow(26..28));
    model.end(grow, Ended::Done);
    model.files.observe(FILE, 7, 8, model.now);
    may_read(&model, process, 27, &[8]);
    assert_eq!(model.wrong(), 0);
}

#[test]
fn page_discarded_during_a_move_may_arrive() {
    let (mut model, process) = process(&[Shown::Anonymous]);
    model.wrote(process, 1, 1);
    let go = model.begin(process, Change::Move { from: 0..4, to: 8..12 });
    let discard = model.begin(process, Change::Discard(0..4));
    model.end(discard, Ended::Done);
    model.end(go, Ended::Done);
    may_read(&model, process, 9, &[0, 1]);
}

#[test]
fn mapping_may_appear_anywhere_until_it_ends() {
    let (mut model, process) = process(&[Shown::Anonymous]);
    let shared = Shown::Shared { file: FILE, offset: 0 };
    let map = model.begin(process, Change::MapAnywhere { pages: 2, shown: shared });
    may_read(&model, process, 0, &[0]);
    model.wrote(process, 6, 1);
    may_read(&model, process, 6, &[0, 1]);
    model.end(map, Ended::At(5..7));
    model.read(process, 6, 1);
    may_read(&model, process, 6, &[1]);
    assert_eq!((model.files.now(FILE, 1), model.wrong()), (vec![1], 0));
    model.wrote(process, 8, 1);
    assert_eq!(model.wrong(), 1);
}

#[test]
fn pages_at_the_end_match_or_may_be_absent() {
    let end = |pages: &[(u64, u64)]| {
        let (mut model, process) = process(&[Shown::Anonymous]);
        model.wrote(process, 0, 1);
        model.wrote(process, 1, 2);
        let offer = model.begin(process, Change::Offer(1..2));
        model.end(offer, Ended::Done);
        model.end_process(process, &BTreeMap::from_iter(pages.iter().copied()));
        model.wrong()
    };
    assert_eq!(end(&[(0, 1), (1, 2), (2, 0)]), 0);
    assert_eq!(end(&[(0, 1)]), 0);
    assert_eq!(end(&[]), 1);
    assert_eq!(end(&[(0, 2)]), 1);
    assert_eq!(end(&[(0, 1), (3, 1)]), 1);
    assert_eq!(end(&[(0, 1), (4, 0)]), 1);
}
