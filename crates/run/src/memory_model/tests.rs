//! The model, without a machine: what it takes for right, and what for wrong.

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

/// Whether each of these may be read there: in turn, each in the model as it is now.
#[track_caller]
fn may_read(model: &Model, process: MemoryId, page: u64, values: &[u64]) {
    let found = model.processes[process.0].values(&model.files, page, model.now);
    assert_eq!(found, values);
}

#[test]
fn what_is_written_is_all_that_is_read() {
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
fn between_beginning_and_end_both_sides_may_be_seen_and_after_it_one() {
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
fn of_two_changes_at_once_each_leaves_what_came_after_its_beginning() {
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
fn a_shared_file_is_one_page_for_all_and_a_private_one_follows_it_until_it_is_written() {
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
fn a_write_has_a_file_copied_at_some_time_since_its_fault() {
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
fn an_offer_is_taken_up_until_the_next_write() {
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
fn a_child_has_what_the_parent_had_at_some_time_while_it_was_made() {
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

#[test]
fn pages_move_with_what_is_written_meanwhile_and_areas_grow_at_their_end() {
    let (mut model, process) = process(&[private(), Shown::Anonymous]);
    model.wrote(process, 1, 1);
    let go = model.begin(process, Change::Move { from: 0..4, to: 20..26 });
    model.wrote(process, 1, 2);
    model.wrote(process, 21, 3);
    may_read(&model, process, 21, &[0, 1, 2, 3]);
    model.end(go, Ended::Done);
    may_read(&model, process, 21, &[1, 2, 3]);
    may_read(&model, process, 1, &[]);
    model.files.settle(FILE, 5, 6, model.now);
    may_read(&model, process, 25, &[6]);
    let grow = model.begin(process, Change::Grow(26..28));
    model.end(grow, Ended::Done);
    model.files.settle(FILE, 7, 8, model.now);
    may_read(&model, process, 27, &[8]);
    assert_eq!(model.wrong(), 0);
}

#[test]
fn what_is_discarded_while_it_moves_may_arrive_all_the_same() {
    let (mut model, process) = process(&[Shown::Anonymous]);
    model.wrote(process, 1, 1);
    let go = model.begin(process, Change::Move { from: 0..4, to: 8..12 });
    let discard = model.begin(process, Change::Discard(0..4));
    model.end(discard, Ended::Done);
    model.end(go, Ended::Done);
    may_read(&model, process, 9, &[0, 1]);
}

#[test]
fn where_room_is_being_looked_for_nothing_may_become_something() {
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
fn at_the_end_pages_are_as_they_must_be_or_need_not_be_there() {
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
