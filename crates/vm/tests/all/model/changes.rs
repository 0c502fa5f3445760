//! Changes of areas in the model.

use std::ops::Range;

use shootdown_vm::{Moves, Protection, RangeError, RemapError};

use super::steps::Step;
use super::{Fixture, Model};
use crate::platform::{PAGES, READ};

impl<const LOCK: u8, const WHEN: u8> Fixture<LOCK, WHEN> {
    pub(super) fn write_back(&self, index: usize, first: u64, count: u64) {
        let (space, model) = &self.spaces[index];
        let is_covered = (first..first + count).all(|page| model.contains_key(&page));
        let result = space.write_back(self.scale.pages(first, count));
        assert_eq!(result, if is_covered { Ok(()) } else { Err(RangeError::NoArea) });
    }
}

impl<const LOCK: u8, const WHEN: u8> Fixture<LOCK, WHEN> {
    /// Performs the steps that are not in [`step`](Self::step).
    pub(super) fn change(&mut self, index: usize, step: &Step) {
        let (scale, space) = (self.scale, &self.spaces[index].0);
        match *step {
            Step::Resize { first, count, to_count, moves } => {
                self.resize(index, first..first + count, to_count, moves);
            }
            Step::Hint { first, count } => space.hint(scale.pages(first, count)).unwrap(),
            Step::UseLargePages { first, count } => {
                space.use_large_pages(scale.pages(first, count)).unwrap();
            }
            Step::Truncate { first } => {
                let (file, object) = &self.file;
                space.vm().truncate(file, first * scale.0);
                if space.vm().has_reclaim() {
                    object.borrow_mut().retain(|&page, _| page < first);
                }
            }
            // There are too many spaces, or only one.
            Step::Fork | Step::Exit => {}
            _ => unreachable!("{step:?} is performed elsewhere"),
        }
    }

    /// Resizes a range that may have to move, to addresses that the memory manager chooses.
    pub(super) fn resize(&mut self, index: usize, from: Range<u64>, to_count: u64, moves: Moves) {
        let scale = self.scale;
        let (space, model) = &mut self.spaces[index];
        let (count, mut chosen) = (from.end - from.start, None);
        let old = scale.pages(from.start, count);
        let length = to_count * scale.bytes();
        let result = space.remap_anywhere(old.clone(), length, moves, |to| {
            chosen = Some(to.clone());
        });
        let grown = from.end..(from.start + to_count).max(from.end);
        let fits = grown.end <= PAGES && !grown.clone().any(|page| model.contains_key(&page));
        let is_free = |first| !(first..first + to_count).any(|page| model.contains_key(&page));
        let is_covered = from.clone().all(|page| model.contains_key(&page));
        match result {
            Err(error @ RemapError::NoArea) => assert!(!is_covered, "{error}"),
            Err(RemapError::NoRoom) => {
                assert!(moves == Moves::Always || !fits);
                assert!(!(0..=PAGES - to_count).any(is_free), "there is room");
            }
            Err(error) => panic!("{error}"),
            Ok(start) => {
                let to = scale.page(start);
                assert_eq!(chosen, Some(scale.pages(to, to_count)));
                let stays = moves == Moves::IfNecessary && fits;
                assert!(if stays { to == from.start } else { is_free(to) });
                assert_eq!(model_move(model, from.start, count, to, to_count), Ok(()));
            }
        }
    }
}

pub(super) fn model_protect(model: &mut Model, first: u64, count: u64, protection: Protection) {
    for (_, page) in model.range_mut(first..first + count) {
        page.protection = enforced(protection);
    }
}

pub(super) fn model_move(
    model: &mut Model,
    first: u64,
    count: u64,
    to: u64,
    to_count: u64,
) -> Result<(), RemapError> {
    let (from, target) = (first..first + count, to..to + to_count);
    if first != to && from.start < target.end && target.start < from.end {
        return Err(RemapError::BadRange);
    }
    if !from.clone().all(|page| model.contains_key(&page)) {
        return Err(RemapError::NoArea);
    }
    if first == to && target.clone().any(|page| page >= from.end && model.contains_key(&page)) {
        return Err(RemapError::NoRoom);
    }
    let mut moving: Vec<_> = from.filter_map(|page| model.remove(&page)).collect();
    while moving.len() < to_count as usize {
        let mut next = moving[moving.len() - 1].clone();
        next.own = None;
        next.object = next.object.map(|(object, page)| (object, page + 1));
        moving.push(next);
    }
    model.retain(|page, _| !target.contains(page));
    model.extend(target.zip(moving));
    Ok(())
}

pub(super) fn enforced(protection: Protection) -> Protection {
    if protection.is_empty() { protection } else { protection | READ }
}
