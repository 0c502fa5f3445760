//! The mappings of a process, with the times at which they began and ended.

use core::ops::Range;

use super::{Shown, Tick};

/// A mapping that a range has, or had, or may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    pub(super) range: Range<u64>,
    pub(super) shown: Shown,
    /// The end of the change that made the mapping, which may have appeared earlier.
    pub(super) since: Tick,
    /// The time at which the mapping was certainly removed; `None` if it was not.
    pub(super) removed: Option<Tick>,
}

/// The mappings of a process, in no order.
#[derive(Clone, Debug, Default)]
pub(super) struct Layers {
    layers: Vec<Layer>,
}

impl Layer {
    pub(super) const fn new(range: Range<u64>, shown: Shown, since: Tick) -> Self {
        Self { range, shown, since, removed: None }
    }

    /// Returns the part in `range`.
    pub(super) fn clipped(&self, range: &Range<u64>) -> Option<Self> {
        let part = self.range.start.max(range.start)..self.range.end.min(range.end);
        (!part.is_empty()).then(|| Self { range: part, ..self.clone() })
    }

    /// Returns a layer of `from` after a move to the beginning of `to`. The last layer ends at the
    /// end of `to`.
    pub(super) fn moved(&self, from: &Range<u64>, to: &Range<u64>) -> Option<Self> {
        let by = to.start.wrapping_sub(from.start);
        let end = if self.range.end == from.end { to.end } else { self.range.end.wrapping_add(by) };
        let range = self.range.start.wrapping_add(by)..end;
        Self { range, shown: self.shown.moved(by), ..self.clone() }.clipped(to)
    }
}

impl Layers {
    /// Returns the layers in `range` that may have existed at `since` or later, clipped.
    pub(super) fn since(&self, range: &Range<u64>, since: Tick) -> Vec<Layer> {
        let was_there = |layer: &&Layer| layer.removed.is_none_or(|removed| removed > since);
        self.layers.iter().filter(was_there).filter_map(|layer| layer.clipped(range)).collect()
    }

    /// Removes the layers that were in `range` before a change began, when the change ends. A copy
    /// in progress since `copied_since` may still need them.
    pub(super) fn replace(
        &mut self,
        range: &Range<u64>,
        began: Tick,
        now: Tick,
        copied_since: Option<Tick>,
    ) {
        let is_needed = |layer: &Layer| {
            layer.removed.is_none_or(|removed| copied_since.is_some_and(|at| at < removed))
        };
        let mut kept = Vec::new();
        for layer in self.layers.drain(..) {
            let is_replaced = layer.removed.is_none() && layer.since < began;
            match layer.clipped(range).filter(|_| is_replaced) {
                None => kept.push(layer),
                Some(inside) => {
                    kept.extend(layer.clipped(&(0..range.start)));
                    kept.extend(layer.clipped(&(range.end..u64::MAX)));
                    kept.push(Layer { removed: Some(now), ..inside });
                }
            }
        }
        kept.retain(is_needed);
        self.layers = kept;
    }

    /// Adds mappings.
    pub(super) fn add(&mut self, layers: impl IntoIterator<Item = Layer>) {
        self.layers.extend(layers);
    }

    /// Removes unneeded layers while no change is in progress: those that show no page, where no
    /// other layer overlaps them.
    pub(super) fn tidy(&mut self) {
        let overlaps = |layer: &Layer| {
            let others = self.layers.iter().filter(|other| other.shown != Shown::Nothing);
            others.filter(|other| other.clipped(&layer.range).is_some()).count() > 0
        };
        let is_needed = |layer: &Layer| layer.shown != Shown::Nothing || overlaps(layer);
        if !self.layers.iter().all(is_needed) {
            self.layers = self.layers.iter().filter(|layer| is_needed(layer)).cloned().collect();
        }
    }
}
