//! Changes of areas in the model.

use shootdown_vm::{Protection, RangeError, RemapError};

use super::{Fixture, Model};
use crate::platform::READ;

impl<const LOCK: u8, const WHEN: u8> Fixture<LOCK, WHEN> {
    pub(super) fn write_back(&self, index: usize, first: u64, count: u64) {
        let (space, model) = &self.spaces[index];
        let is_covered = (first..first + count).all(|page| model.contains_key(&page));
        let result = space.write_back(self.scale.pages(first, count));
        assert_eq!(result, if is_covered { Ok(()) } else { Err(RangeError::NoArea) });
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
