//! Relations between at most 64 events.

/// A relation, as one bit mask of successors for each event.
#[derive(Clone, Debug)]
pub(super) struct Relation(Vec<u64>);

/// Returns the events of a mask, lowest first.
pub(super) fn events(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let event = (mask != 0).then(|| mask.trailing_zeros() as usize)?;
        mask &= mask - 1;
        Some(event)
    })
}

impl Relation {
    /// Returns the empty relation between `count` events.
    pub(super) fn empty(count: usize) -> Self {
        assert!(count <= 64, "{count} events are more than a mask has bits");
        Self(vec![0; count])
    }

    pub(super) fn insert(&mut self, from: usize, to: usize) {
        self.0[from] |= 1 << to;
    }

    pub(super) fn contains(&self, from: usize, to: usize) -> bool {
        self.0[from] >> to & 1 != 0
    }

    pub(super) fn union(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(one, two)| one | two).collect())
    }

    /// Returns the composition `self; other`.
    pub(super) fn then(&self, other: &Self) -> Self {
        let row = |&mask: &u64| events(mask).fold(0, |row, middle| row | other.0[middle]);
        Self(self.0.iter().map(row).collect())
    }

    /// Returns the pairs from an event of one mask to an event of another.
    pub(super) fn between(&self, from: u64, to: u64) -> Self {
        let row = |(event, row): (usize, &u64)| if from >> event & 1 != 0 { row & to } else { 0 };
        Self(self.0.iter().enumerate().map(row).collect())
    }

    /// Returns the pairs for which a condition holds.
    pub(super) fn filter(&self, keep: impl Fn(usize, usize) -> bool) -> Self {
        let row = |(from, &row): (usize, &u64)| {
            events(row).filter(|&to| keep(from, to)).fold(0, |row, to| row | 1 << to)
        };
        Self(self.0.iter().enumerate().map(row).collect())
    }

    /// Adds the pairs of each event of the mask with itself.
    pub(super) fn with_identity(mut self, mask: u64) -> Self {
        for event in events(mask) {
            self.0[event] |= 1 << event;
        }
        self
    }

    /// Returns the transitive closure.
    pub(super) fn closure(mut self) -> Self {
        for middle in 0..self.0.len() {
            let after = self.0[middle];
            for row in &mut self.0 {
                if *row >> middle & 1 != 0 {
                    *row |= after;
                }
            }
        }
        self
    }

    pub(super) fn is_irreflexive(&self) -> bool {
        (0..self.0.len()).all(|event| !self.contains(event, event))
    }
}
