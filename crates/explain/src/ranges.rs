//! Disjoint ranges of addresses.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint ranges of addresses, each with a value.
#[derive(Debug)]
pub(crate) struct Ranges<T>(BTreeMap<u64, (u64, T)>);

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Copy> Ranges<T> {
    /// Adds a range, instead of what lay there.
    pub(crate) fn insert(&mut self, range: Range<u64>, value: T) {
        self.remove(&range);
        self.0.insert(range.start, (range.end, value));
    }

    /// Removes a range, and cuts those that reach into it.
    pub(crate) fn remove(&mut self, range: &Range<u64>) {
        while let Some((start, end, value)) = self.last_in(range) {
            self.0.remove(&start);
            if start < range.start {
                self.0.insert(start, (range.start, value));
            }
            if end > range.end {
                self.0.insert(range.end, (end, value));
            }
        }
    }

    pub(crate) fn has_part_of(&self, range: &Range<u64>) -> bool {
        self.last_in(range).is_some()
    }

    /// Returns the value of the range that contains an address, and the range.
    pub(crate) fn at(&self, address: u64) -> Option<(Range<u64>, T)> {
        let (start, (end, value)) = self.0.range(..=address).next_back()?;
        (address < *end).then_some((*start..*end, *value))
    }

    fn last_in(&self, range: &Range<u64>) -> Option<(u64, u64, T)> {
        let (start, (end, value)) = self.0.range(..range.end).next_back()?;
        (*end > range.start).then_some((*start, *end, *value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_middle_leaves_both_ends() {
        let mut ranges = Ranges::default();
        ranges.insert(10..20, 'a');
        ranges.insert(20..30, 'b');
        ranges.insert(19..21, 'c');
        let at = |ranges: &Ranges<char>, at| ranges.at(at);
        assert_eq!(at(&ranges, 18), Some((10..19, 'a')));
        assert_eq!(at(&ranges, 20), Some((19..21, 'c')));
        assert_eq!(at(&ranges, 21), Some((21..30, 'b')));
        ranges.remove(&(12..14));
        assert_eq!([11, 12, 13].map(|it| ranges.at(it).is_some()), [true, false, false]);
        assert_eq!(at(&ranges, 14), Some((14..19, 'a')));
        assert!(ranges.has_part_of(&(29..40)) && !ranges.has_part_of(&(30..40)));
    }
}
