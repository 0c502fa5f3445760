//! What is mapped where, and when it came to be.

use core::ops::Range;

use super::{Moment, Shown};

/// A mapping that a range has, or had, or may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    pub(super) range: Range<u64>,
    pub(super) shown: Shown,
    /// When the change that brought it ended: it may have come earlier.
    pub(super) since: Moment,
    /// When it was gone for certain.
    pub(super) gone: Option<Moment>,
}

/// All of them, in no order.
#[derive(Clone, Debug, Default)]
pub(super) struct Layers {
    layers: Vec<Layer>,
}

impl Layer {
    pub(super) const fn new(range: Range<u64>, shown: Shown, since: Moment) -> Self {
        Self { range, shown, since, gone: None }
    }

    /// The part in `range`.
    pub(super) fn clipped(&self, range: &Range<u64>) -> Option<Self> {
        let part = self.range.start.max(range.start)..self.range.end.min(range.end);
        (!part.is_empty()).then(|| Self { range: part, ..self.clone() })
    }

    /// What a layer in `from` becomes that moves to the beginning of `to`. The last one ends where
    /// `to` ends.
    pub(super) fn moved(&self, from: &Range<u64>, to: &Range<u64>) -> Option<Self> {
        let by = to.start.wrapping_sub(from.start);
        let end = if self.range.end == from.end { to.end } else { self.range.end.wrapping_add(by) };
        let range = self.range.start.wrapping_add(by)..end;
        Self { range, shown: self.shown.moved(by), ..self.clone() }.clipped(to)
    }
}

impl Layers {
    /// Those in `range` that may have been there at `since` or later, clipped.
    pub(super) fn since(&self, range: &Range<u64>, since: Moment) -> Vec<Layer> {
        let was_there = |layer: &&Layer| layer.gone.is_none_or(|gone| gone > since);
        self.layers.iter().filter(was_there).filter_map(|layer| layer.clipped(range)).collect()
    }

    /// A change of `range` that began at `begun` has ended: what was there before it began is gone.
    /// Whoever copies something since `copied_since` may still need it.
    pub(super) fn replace(
        &mut self,
        range: &Range<u64>,
        begun: Moment,
        now: Moment,
        copied_since: Option<Moment>,
    ) {
        let is_needed =
            |layer: &Layer| layer.gone.is_none_or(|gone| copied_since.is_some_and(|at| at < gone));
        let mut kept = Vec::new();
        for layer in self.layers.drain(..) {
            let is_replaced = layer.gone.is_none() && layer.since < begun;
            match layer.clipped(range).filter(|_| is_replaced) {
                None => kept.push(layer),
                Some(inside) => {
                    kept.extend(layer.clipped(&(0..range.start)));
                    kept.extend(layer.clipped(&(range.end..u64::MAX)));
                    kept.push(Layer { gone: Some(now), ..inside });
                }
            }
        }
        kept.retain(is_needed);
        self.layers = kept;
    }

    /// Something has come.
    pub(super) fn add(&mut self, layers: impl IntoIterator<Item = Layer>) {
        self.layers.extend(layers);
    }

    /// While nothing is under way: where there is nothing for certain, no layer is needed.
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
